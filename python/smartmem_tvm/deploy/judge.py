# SPDX-License-Identifier: Apache-2.0
"""Whether a tuned kernel is worth having: it computes what the untuned one does, and is faster, measured in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..analysis.texels import is_texture
from ..pipeline import Options
from ..schedule.gpu_launch import has_textures, is_gpu
from ..tune.apply_records import LEFT_OUT, ApplyRecords, tuning_of
from ..tune.kernel import CONSTANTS
from ..tune.records import workload_key
from .build import generate, lower, to_numpy
from .device_clock import device_clock
from .measure import interleaved, random_arguments
from .target import device_of
from .weights import Machine, Weight

# Of the largest number of an output. Sums in another order differ by 1e-6 of it; one wrong element of a sum of some
# thousands of about equal ones by more than this.
_TOLERANCE = {"float32": 2e-5, "float64": 1e-9, "float16": 1e-2, "bfloat16": 5e-2}
_TURNS = 20
_REPEATS = 3


@dataclass(frozen=True)
class Verdict:
    """What was found out about one record.

    Attributes
    ----------
    seconds, untuned : float or None
        Of a launch, measured in turns; None if the kernel is wrong.
    wrong : str
        What is wrong with its outputs; empty if nothing is.
    """

    seconds: float | None
    untuned: float | None
    wrong: str = ""


def untuned_seconds(mod: tvm.IRModule, target: Target) -> float:
    """Seconds of a launch of a kernel with the schedule that it has without tuning."""
    return _in_turns([_Run(mod, target, None)], target)[0]


def judge(mod: tvm.IRModule, target: Target, records: Sequence[ms.database.TuningRecord]) -> list[Verdict]:
    """Compare records of one kernel with the untuned kernel, on random data within the bounds of what is indexed.

    Parameters
    ----------
    mod : tvm.IRModule
        `tune.tasks.Task.mod`.
    target : tvm.target.Target
        One that this machine can run.

    Returns
    -------
    list of Verdict
        In the order of `records`.
    """
    plain = _Run(mod, target, None)
    want = plain.outputs()
    tuned = [_attempt(mod, target, record, want) for record in records]
    right = [run for run, _ in tuned if run is not None]
    rounds = [_in_turns([plain, *right], target) for _ in range(_REPEATS)] if right else []
    seconds = [median(times) for times in zip(*rounds)]
    found = iter(seconds[1:])
    return [Verdict(None, None, wrong) if run is None else Verdict(next(found), seconds[0]) for run, wrong in tuned]


def _in_turns(runs: Sequence[_Run], target: Target) -> list[float]:
    """Median seconds of a launch of each."""
    if not is_gpu(target):
        return interleaved([run.launch for run in runs], _TURNS)
    clock = device_clock(target.kind.name)
    turns = [[clock.seconds(run.once) for run in runs] for _ in range(1 + _TURNS)]
    return [median(times) for times in zip(*turns[1:])]  # the first turn warms up


def _attempt(mod, target, record, want: Sequence[np.ndarray]) -> tuple[_Run | None, str]:
    run = _Run(mod, target, record)
    wrong = run.problem or difference(run.outputs(), want)
    return (None, wrong) if wrong else (run, "")


def difference(found: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> str:
    """What is wrong with outputs, empty if nothing is."""
    for number, (mine, theirs) in enumerate(zip(found, want, strict=True)):
        tolerance = _TOLERANCE.get(str(theirs.dtype))
        if tolerance is None:
            if not np.array_equal(mine, theirs):
                return f"output {number}: {int(np.sum(mine != theirs))} of {theirs.size} elements differ"
            continue
        mine, theirs = mine.astype("float64"), theirs.astype("float64")
        if not np.array_equal(np.isfinite(mine), np.isfinite(theirs)):
            return f"output {number}: {int(np.sum(~np.isfinite(mine)))} of {mine.size} elements are not finite"
        sane = np.isfinite(theirs)
        most = np.abs(theirs[sane]).max(initial=0.0)
        error = np.abs(mine[sane] - theirs[sane]).max(initial=0.0)
        if error > tolerance * most:
            return f"output {number} differs by {error:.3g}, where the largest element is {most:.3g}"
    return ""


class Compiled:
    """A kernel compiled as a model is, alone, with random data.

    Attributes
    ----------
    code : relax.VMExecutable
    weights, inputs : list of Weight
        Constants packed for the kernel, and arguments.
    problem : str
        Why the kernel was not scheduled as its record says; empty if it was.
    """

    def __init__(self, mod: tvm.IRModule, target: Target, record: ms.database.TuningRecord | None):
        graph, self.inputs = _model(mod["main"], target)
        records = _pass_of(record) if record is not None else None
        with target:
            lowered, self.weights, _ = lower(graph, target, Options(records=records, cuda_graph=False))
        self.problem = _problem(lowered) if record is not None else ""
        self.code = generate(lowered, target)


class _Run:
    """A compiled kernel on its device."""

    def __init__(self, mod: tvm.IRModule, target: Target, record: ms.database.TuningRecord | None):
        compiled = Compiled(mod, target, record)
        self.problem = compiled.problem
        machine = Machine(compiled.code, compiled.weights, device_of(target), has_textures(target))
        self._main, self._device = machine["main"], machine.device
        self._tensors = [each.on(machine.device) for each in compiled.inputs]

    def outputs(self) -> list[np.ndarray]:
        return to_numpy(self.once())

    def once(self):
        return self._main(*self._tensors)

    def launch(self, times: int) -> None:
        for _ in range(times):
            self.once()
        self._device.sync()


def _pass_of(record: ms.database.TuningRecord) -> ApplyRecords:
    database = ms.database.MemoryDatabase()
    database.commit_workload(record.workload.mod)
    database.commit_tuning_record(record)
    return ApplyRecords(database, {workload_key(record.workload.mod): {}})


def _problem(lowered: tvm.IRModule) -> str:
    """Why a kernel was not scheduled as its record says; empty if it was."""
    facts = list(tuning_of(lowered).values())
    return facts[0].get(LEFT_OUT, "") if facts else "the record is of another kernel"


def _model(func: tirx.PrimFunc, target: Target) -> tuple[tvm.IRModule, list[Weight]]:
    """A model that launches a kernel, its constants in it, and random inputs: textures where it reads textures."""
    first = len(func.params) - _outputs(func)
    builder, plain = relax.BlockBuilder(), tirx.PrimFunc(func.params, func.body, func.ret_type)
    kernel = builder.add_func(plain.with_attrs({"s_tir": True, "tirx.noalias": True}), "kernel")
    places = _places(func, target)
    arrays, types = random_arguments(func), [_type(param, places) for param in func.params]
    constants = {int(position) for position in (func.attrs or {}).get(CONSTANTS) or ()}
    inputs = {n: relax.Var(f"x{n}", types[n]) for n in range(first) if n not in constants}
    constant = [ir.GenericConst(tvm.runtime.tensor(array), ty) for array, ty in zip(arrays, types, strict=True)]
    values = [inputs.get(n, constant[n]) for n in range(first)]
    results = types[first:]
    with builder.function("main", list(inputs.values())):
        with builder.dataflow():
            call = relax.op.call_tir(kernel, relax.Tuple(values), out_ty=results if len(results) > 1 else results[0])
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    mod = builder.get()
    if places:
        mod.update_global_info("vdevice", list(places.values()))
    return mod, [Weight(tvm.runtime.tensor(arrays[n]), str(func.params[n].scope())) for n in inputs]


def _places(func: tirx.PrimFunc, target: Target) -> dict[str, relax.VDevice]:
    """The memory scopes of a kernel with textures, as Relax names them; none where all is in buffers."""
    scopes = sorted({str(param.scope()) for param in func.params if is_texture(param)})
    return {scope: relax.VDevice(target, 0, scope) for scope in ("global", *scopes)} if scopes else {}


def _type(param: tirx.Buffer, places: Mapping[str, relax.VDevice]) -> relax.TensorType:
    vdevice = places[str(param.scope())] if is_texture(param) else None
    return relax.TensorType([int(dim) for dim in param.shape], str(param.dtype), vdevice=vdevice)


def _outputs(func: tirx.PrimFunc) -> int:
    """How many parameters a kernel writes; they come last."""
    written: list = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, lambda store: written.append(store.buffer)))
    return sum(any(param.same_as(buffer) for buffer in written) for param in func.params)

# SPDX-License-Identifier: Apache-2.0
"""Whether a tuned kernel is worth having: it computes what the untuned one does, and is faster, measured in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..pipeline import Options
from ..schedule.gpu_launch import has_textures
from ..tune.apply_records import ApplyRecords
from ..tune.kernel import CONSTANTS
from .build import generate, lower, to_numpy
from .measure import interleaved, random_arguments
from .target import device_of
from .weights import Machine

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
    return interleaved([_Run(mod, target, None).launch], _TURNS)[0]


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
    calls = [plain.launch, *(run.launch for run in right)]
    rounds = [interleaved(calls, _TURNS) for _ in range(_REPEATS)] if right else []
    seconds = [median(times) for times in zip(*rounds)]
    found = iter(seconds[1:])
    return [Verdict(None, None, wrong) if run is None else Verdict(next(found), seconds[0]) for run, wrong in tuned]


def _attempt(mod, target, record, want: Sequence[np.ndarray]) -> tuple[_Run | None, str]:
    run = _Run(mod, target, record)
    wrong = difference(run.outputs(), want)
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


class _Run:
    """A kernel compiled as a model is, alone, with random data."""

    def __init__(self, mod: tvm.IRModule, target: Target, record: ms.database.TuningRecord | None):
        func, database = mod["main"], ms.database.MemoryDatabase()
        if record is not None:
            database.commit_workload(record.workload.mod)
            database.commit_tuning_record(record)
        graph, inputs = _model(func)
        options = Options(records=ApplyRecords(database) if record is not None else None, cuda_graph=False)
        with target:
            lowered, weights, _ = lower(graph, target, options)
        machine = Machine(generate(lowered, target), weights, device_of(target), has_textures(target))
        self._main, self._tensors, self._device = machine["main"], machine.tensors(inputs), machine.device

    def outputs(self) -> list[np.ndarray]:
        return to_numpy(self._main(*self._tensors))

    def launch(self, times: int) -> None:
        for _ in range(times):
            self._main(*self._tensors)
        self._device.sync()


def _model(func: tirx.PrimFunc) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """A model that launches a kernel, its constants in it, and random inputs."""
    constants = {int(position) for position in (func.attrs or {}).get(CONSTANTS) or ()}
    first = len(func.params) - _outputs(func)
    builder, plain = relax.BlockBuilder(), tirx.PrimFunc(func.params, func.body, func.ret_type)
    kernel = builder.add_func(plain.with_attrs({"s_tir": True, "tirx.noalias": True}), "kernel")
    arrays = random_arguments(func)
    inputs = {
        position: relax.Var(f"x{position}", relax.TensorType(array.shape, str(array.dtype)))
        for position, array in enumerate(arrays[:first])
        if position not in constants
    }
    values = [inputs[i] if i in inputs else relax.const(array) for i, array in enumerate(arrays[:first])]
    types = [relax.TensorType(array.shape, str(array.dtype)) for array in arrays[first:]]
    with builder.function("main", list(inputs.values())):
        with builder.dataflow():
            call = relax.op.call_tir(kernel, relax.Tuple(values), out_ty=types if len(types) > 1 else types[0])
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    return builder.get(), [arrays[position] for position in inputs]


def _outputs(func: tirx.PrimFunc) -> int:
    """How many parameters a kernel writes; they come last."""
    written: list = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, lambda store: written.append(store.buffer)))
    return sum(any(param.same_as(buffer) for buffer in written) for param in func.params)


Judge = Callable[[tvm.IRModule, Target, Sequence[ms.database.TuningRecord]], list[Verdict]]

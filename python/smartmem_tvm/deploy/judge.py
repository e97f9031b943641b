# SPDX-License-Identifier: Apache-2.0
"""Judge a tuned kernel: it must compute the same as the untuned kernel, and be faster, timed in turns with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..executor.job_devices import Device, Devices
from ..executor.readings import VERDICT, VERDICTS, in_turns
from ..ir.kernel import CONSTANTS, FACTORS, factors_attr
from ..ir.texels import is_texture
from ..ir.walk import stores
from ..pipeline import Options
from ..tables.precisions import PRECISIONS
from ..tune.apply_records import LEFT_OUT, ApplyRecords, tuning_of
from ..tune.records import workload_key
from .build import generate, lower
from .kernel_latency import random_arguments
from .this_machine import LoadedModel, ThisMachine, model_on
from .weights import Weight

# Tolerance relative to the largest number of an output. Sums in another order differ by 1e-6 of it; one wrong element
# in a sum of some thousands of about equal elements differs by more than the tolerance.
_TOLERANCE = {"float32": 2e-5, "float64": 1e-9, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one record.

    Attributes
    ----------
    seconds, untuned : float or None
        Seconds of a launch of the tuned and of the untuned kernel, timed in turns; None if the kernel is wrong.
    wrong : str
        The difference in the outputs; empty if there is none.
    """

    seconds: float | None
    untuned: float | None
    wrong: str = ""


def untuned_seconds(mod: tvm.IRModule, target: Target, devices: Devices | None = None) -> float:
    """Return the seconds of a launch of a kernel with its untuned schedule."""
    untuned, devices = CompiledKernel(mod, target, None), devices or ThisMachine(target)
    return devices.run(lambda device: _seconds(device, [untuned.on(device)])[0], devices.limits.verdict)


def judge(
    mod: tvm.IRModule,
    target: Target,
    records: Sequence[ms.database.TuningRecord],
    devices: Devices | None = None,
) -> list[Verdict]:
    """Compare records of one kernel with the untuned kernel, on random data whose indices stay in bounds.

    Parameters
    ----------
    mod : tvm.IRModule
        `tune.tasks.Task.mod`.
    target : tvm.target.Target
    devices : Devices, optional
        Devices to run on, by default this machine. All kernels run on the same device, which is requested after all are
        compiled.

    Returns
    -------
    list of Verdict
        In the order of `records`.
    """
    untuned, *tuned = (CompiledKernel(mod, target, record) for record in (None, *records))
    devices = devices or ThisMachine(target)
    return devices.run(lambda device: _compared(untuned, tuned, device), devices.limits.verdict)


def _seconds(device: Device, models: Sequence[LoadedModel]) -> list[float]:
    with device.running(len(models)):
        return in_turns([each.clock() for each in models], VERDICT)


def _compared(untuned: CompiledKernel, tuned: Sequence[CompiledKernel], device: Device) -> list[Verdict]:
    plain = untuned.on(device)
    want, right, wrong = plain.outputs(), [], []
    for each in tuned:
        wrong.append(each.problem)
        if not each.problem:
            model = each.on(device)
            wrong[-1] = difference(model.outputs(), want, untuned.rounds_to)
            right += [] if wrong[-1] else [model]
    rounds = [_seconds(device, [plain, *right]) for _ in range(VERDICTS)] if right else []
    seconds = [median(times) for times in zip(*rounds)]
    found = iter(seconds[1:])
    return [Verdict(None, None, reason) if reason else Verdict(next(found), seconds[0]) for reason in wrong]


def difference(found: Sequence[np.ndarray], want: Sequence[np.ndarray], rounds_to: str = "") -> str:
    """Describe how outputs differ, empty if not; `rounds_to` is the type to which schedules may round factors."""
    rounding = PRECISIONS[rounds_to].tolerance if rounds_to else 0.0
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
        if error > max(tolerance, rounding) * most:
            return f"output {number} differs by {error:.3g}, where the largest element is {most:.3g}"
    return ""


class CompiledKernel:
    """A single kernel compiled like a model, with random data.

    Attributes
    ----------
    code : relax.VMExecutable
    weights, inputs : list of Weight
        Constants packed for the kernel, and arguments.
    rounds_to : str
        The type to which factors of products may be rounded, empty if they may not.
    problem : str
        The reason why the kernel was not scheduled by its record; empty if it was.
    """

    def __init__(self, mod: tvm.IRModule, target: Target, record: ms.database.TuningRecord | None):
        graph, self.inputs = _model(mod["main"], target)
        self.rounds_to = factors_attr(mod["main"]).get(FACTORS, "")
        records = _pass_of(record) if record is not None else None
        with target:
            lowered = lower(graph, target, Options(records=records, cuda_graph=False))
        self.weights, self.code = lowered.weights, generate(lowered.module, target)
        self.problem = _problem(lowered.module) if record is not None else ""

    def on(self, device: Device) -> LoadedModel:
        """Load the kernel and its data onto a device."""
        return model_on(device, self.code, self.weights, self.inputs)


def _pass_of(record: ms.database.TuningRecord) -> ApplyRecords:
    database = ms.database.MemoryDatabase()
    database.commit_workload(record.workload.mod)
    database.commit_tuning_record(record)
    return ApplyRecords(database, {workload_key(record.workload.mod): {}})


def _problem(lowered: tvm.IRModule) -> str:
    """Return the reason why a kernel was not scheduled by its record; empty if it was."""
    facts = list(tuning_of(lowered).values())
    return facts[0].get(LEFT_OUT, "") if facts else "the record is of another kernel"


def _model(func: tirx.PrimFunc, target: Target) -> tuple[tvm.IRModule, list[Weight]]:
    """Return a model that launches a kernel, with its constants, and random inputs, in textures where it reads them."""
    first = len(func.params) - _outputs(func)
    builder, plain = relax.BlockBuilder(), tirx.PrimFunc(func.params, func.body, func.ret_type)
    kernel = builder.add_func(plain.with_attrs({"s_tir": True, "tirx.noalias": True, **factors_attr(func)}), "kernel")
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
    """Return the memory scopes of a kernel with textures, as Relax names them; none if all tensors are in buffers."""
    scopes = sorted({str(param.scope()) for param in func.params if is_texture(param)})
    return {scope: relax.VDevice(target, 0, scope) for scope in ("global", *scopes)} if scopes else {}


def _type(param: tirx.Buffer, places: Mapping[str, relax.VDevice]) -> relax.TensorType:
    vdevice = places[str(param.scope())] if is_texture(param) else None
    return relax.TensorType([int(dim) for dim in param.shape], str(param.dtype), vdevice=vdevice)


def _outputs(func: tirx.PrimFunc) -> int:
    """Return the number of parameters that a kernel writes; they come last."""
    written = [store.buffer for store in stores(func.body)]
    return sum(any(param.same_as(buffer) for buffer in written) for param in func.params)

# SPDX-License-Identifier: Apache-2.0
"""A network as scheduled kernels, before code generation, for comparisons: TVM's pipelines, and ours step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import tvm

from ..pipeline import BASELINE_PHASES, Options, graph_phases, lower_phases, run_phases
from ..target import has_textures, is_gpu, is_opencl
from .tvm_pipelines import schedule_tvm


@dataclass(frozen=True)
class Side:
    """One way to schedule a network.

    Attributes
    ----------
    label : str
        Title of the column.
    baseline : bool
        Whether it takes the module of TVM's own importer instead of ours.
    schedule : callable
        Relax module of operators -> module with ``call_tir`` of scheduled kernels.
    """

    label: str
    baseline: bool
    schedule: Callable[[tvm.IRModule], tvm.IRModule]


def sides(target: tvm.target.Target, options: Options | None = None) -> dict[str, Side]:
    """Return the sides of a comparison on a target: TVM's pipelines, and then ours, step by step up to `options`.

    Returns
    -------
    dict
        ``tvm_default``; on targets with textures also ``tvm_textures`` (on Adreno), ``elimination`` and ``layout``, if
        `options` enables later steps; ``smartmem``, with all of `options`.
    """
    options, textures = options or Options(), has_textures(target)
    found = {"tvm_default": Side("TVM default", True, lambda mod: tvm_schedules(mod, target))}
    if textures and "adreno" in target.keys:
        found["tvm_textures"] = Side("TVM textures", True, lambda mod: schedule_tvm(mod, target, "textures"))
    buffers = replace(options, textures=False)
    plain = replace(buffers, layout=False)
    for name, label, less, more in (
        ("elimination", "elimination", plain, buffers),
        ("layout", "+ layout", buffers, options),
    ):
        if textures and less != more:
            found[name] = Side(label, False, lambda mod, less=less: our_schedules(mod, target, less))
    whole = "+ textures" if textures and options.textures else "smartmem"
    found["smartmem"] = Side(whole, False, lambda mod: our_schedules(mod, target, options))
    return found


def our_schedules(mod: tvm.IRModule, target: tvm.target.Target, options: Options | None = None) -> tvm.IRModule:
    """Return the module after this package's passes and schedules: ``call_tir`` of scheduled kernels."""
    phases = lower_phases(target)
    last = [phase.name for phase in phases].index("schedule")
    with target:
        return run_phases(mod, graph_phases(target) + phases[: last + 1], options or Options())


def tvm_schedules(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module after TVM's default passes: in buffers, for a GPU with TVM's schedules, for a CPU without.

    On OpenCL the schedules are those for plain ``opencl``. With a phone's name and limits in the target, the same rules
    choose tiles that request six times as many cache lines on ResNeXt-50, which would flatter the comparison.
    """
    if not is_gpu(target):
        with target:
            return run_phases(mod, BASELINE_PHASES, Options())
    return schedule_tvm(mod, tvm.target.Target("opencl") if is_opencl(target) else target)

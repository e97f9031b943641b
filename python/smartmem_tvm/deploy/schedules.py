# SPDX-License-Identifier: Apache-2.0
"""A network as scheduled kernels, before code is generated: ours and TVM's, to be looked at."""

from __future__ import annotations

import tvm
from tvm.relax.backend import gpu_generic

from ..pipeline import BASELINE_PHASES, Options, graph_phases, lower_phases, run_phases
from ..schedule.gpu_default import is_gpu


def our_schedules(mod: tvm.IRModule, target: tvm.target.Target, options: Options | None = None) -> tvm.IRModule:
    """The module after this package's passes and schedules: ``call_tir`` of scheduled kernels."""
    phases = lower_phases(target)
    last = [phase.name for phase in phases].index("schedule")
    with target:
        return run_phases(mod, graph_phases(target) + phases[: last + 1], options or Options())


def tvm_schedules(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The module after TVM's default passes: for a GPU with its schedules, in buffers; for a CPU it has none.

    On OpenCL the schedules are those for plain ``opencl``. With a phone's name and limits in the target the same rules
    choose tiles that ask for six times as many lines on ResNeXt-50, which would flatter what is compared.
    """
    if not is_gpu(target):
        with target:
            return run_phases(mod, BASELINE_PHASES, Options())
    plain = tvm.target.Target("opencl") if target.kind.name == "opencl" else target
    with plain:
        passes = gpu_generic.library_dispatch_passes(plain) + gpu_generic.legalize_passes(plain)
        return tvm.transform.Sequential(passes)(mod)

# SPDX-License-Identifier: Apache-2.0
"""Kernels of CUDA that are launched while the kernel before them still runs (programmatic dependent launch).

    kernel(...):
      griddepcontrol.wait                  until the kernel before is done, and what it wrote is there
      griddepcontrol.launch_dependents     the next kernel may be launched
      ...

Between two kernels a graph waits for the last thread block of the first, and then launches the second. With these two
instructions the second is launched already, and waits itself. A rule may put the wait later, behind copies of weights,
which no kernel writes: `schedule.gpu.gemm.read_rows` does so.

Each thread block waits, so that a kernel is done only when all kernels before it are: what is launched afterwards
waits for all of them.
"""

from __future__ import annotations

import tvm
from tvm import ir, tirx

from ..ir.walk import contains
from ..schedule.gpu.gemm import ptx
from ..target import launches_early

_PARAMETERS = "tirx.kernel_launch_params"
_EARLY = "tirx.use_programtic_dependent_launch"  # TVM's spelling
_DYNAMIC = "tirx.use_dyn_shared_memory"  # which TVM wants last


def launched_early(kernels: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Let the kernels of a module be launched early, if the target can; others stay as they are.

    Parameters
    ----------
    kernels : tvm.IRModule
        Functions for the device alone, after `split_host_device_mods`.
    """
    if not launches_early(target):
        return kernels
    result = kernels.clone()
    for gvar, func in kernels.functions_items():
        if isinstance(func, tirx.PrimFunc) and _PARAMETERS in (func.attrs or {}):
            result[gvar] = _early(func)
    return result


def _early(func: tirx.PrimFunc) -> tirx.PrimFunc:
    given = [str(each) for each in func.attrs[_PARAMETERS]]
    if _EARLY in given:
        return func
    last = [each for each in given if each == _DYNAMIC]
    tags = [*(each for each in given if each != _DYNAMIC), _EARLY, *last]
    body = func.body if contains(func.body, ir.Call, ptx.is_dependency) else _waiting(func.body)
    return func.with_body(body).with_attr(_PARAMETERS, tags)


def _waiting(body: tirx.Stmt) -> tirx.Stmt:
    """Return the body of a kernel that waits first: behind its buffers and threads, which are no instructions.

    With the wait in front of the declarations, TVM does not compile a kernel that divides once by a number in memory:
    that buffer is undefined then.
    """
    if isinstance(body, tirx.AttrStmt):
        return tirx.AttrStmt(body.node, body.attr_key, body.value, _waiting(body.body))
    if isinstance(body, tirx.SeqStmt) and all(isinstance(each, tirx.DeclBuffer) for each in body.seq[:-1]):
        return tirx.SeqStmt([*body.seq[:-1], _waiting(body.seq[-1])])
    return tirx.SeqStmt([*ptx.depend(), body])

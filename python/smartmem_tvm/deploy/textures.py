# SPDX-License-Identifier: Apache-2.0
"""Relax modules with tensors in texture memory: how they are built, and on which devices they run."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx
from tvm.tirx import compilation_pipeline

from .._tvm import cuda_tir_pipeline, opencl_tir_pipeline, texture_tir_pipeline
from ..ir.half import HALF
from ..pipeline import Options, lower_phases, run_phases
from ..target import has_textures, is_cuda, is_opencl
from ..transform.check_textures import SCOPES, CheckTextures
from ..transform.compute_single import ComputeSingle
from ..transform.half_storage import HalfStorage
from ..transform.mend_vectors import MendVectors
from ..transform.stage_texels import StageTexels
from .cuda_math import LeaveFastMath
from .tvm_texture_mends import ScheduleTexels

TIR_PIPELINE = "smartmem_texture"
"""Name of the TIR pipeline with textures, for ``tvm.compile(mod, target, tir_pipeline=...)``."""
BUFFERS_PIPELINE = "smartmem_opencl"
"""Name of the TIR pipeline for OpenCL without textures."""
CUDA_PIPELINE = "smartmem_cuda"
"""Name of the TIR pipeline for CUDA."""


def build_textures(mod: tvm.IRModule, target: tvm.target.Target) -> relax.VMExecutable:
    """Build a Relax module whose kernels are scheduled and whose tensors may be textures.

    Parameters
    ----------
    mod : tvm.IRModule
        ``call_tir`` of scheduled kernels. The memory scope of a tensor is that of the ``vdevice`` of its type; the
        module lists one ``vdevice`` for each scope. A module that TVM's Adreno pipeline has lowered for the virtual
        machine will do too.
    target : tvm.target.Target
        Of kind opencl, with a host.

    Returns
    -------
    tvm.relax.VMExecutable
        To be run by `texture_machine`.

    Raises
    ------
    UserError
        If a texture, or a kernel that writes one, breaks a rule of `CheckTextures`.
    """
    to_machine = [phase for phase in lower_phases(target) if phase.name in ("lower", "plan_memory", "finish")]
    with target:
        mod = run_phases(CheckTextures()(ScheduleTexels()(mod)), to_machine, Options())
        return relax.build(mod, target, relax_pipeline=None, tir_pipeline=TIR_PIPELINE)


def texture_machine(code: relax.VMExecutable | tvm.runtime.Module, device: tvm.runtime.Device) -> relax.VirtualMachine:
    """A virtual machine for code with textures.

    TVM numbers the memory scopes of a device like devices of their own; here they are all the same one.
    """
    return relax.VirtualMachine(code, [device] * (1 + len(SCOPES)))


def stores_half(mod: tvm.IRModule) -> bool:
    """Whether a kernel of `mod` reads or writes half numbers."""
    params = [param for func in mod.functions.values() if isinstance(func, tirx.PrimFunc) for param in func.params]
    return any(str(getattr(param.ty, "dtype", "")) == HALF for param in params)


def tir_pipeline(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """The name of the pipeline that lowers the kernels of `mod` for a GPU."""
    if not is_opencl(target):
        return CUDA_PIPELINE if is_cuda(target) else "default"
    # TVM's own pipeline indexes textures as if they were buffers, and needs half arithmetic to store halves.
    return TIR_PIPELINE if has_textures(target) or stores_half(mod) else BUFFERS_PIPELINE


def staged(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Scheduled kernels with the loads and stores that code is generated for: what to count accesses of.

    Of a vector that has to be computed number by number, as `erf` is, a schedule says one loop. It is read and written
    as a vector all the same, if it is one of texels or of halves.
    """
    return StageTexels()(mod) if tir_pipeline(mod, target) == TIR_PIPELINE else mod


# Kernels that compute in float32 are taken as they are.
_HALVES = (HalfStorage(), ComputeSingle(), HalfStorage(last=True))


def lower_textures(refuse: bool = True) -> tuple[tvm.transform.Pass, Callable, Callable]:
    """What lowers kernels with textures, as of `texture_tir_pipeline`; `refuse` as of `CheckTextures`."""
    before = [ScheduleTexels(), CheckTextures(refuse), StageTexels(), MendVectors(textures=True)]
    return texture_tir_pipeline(before=before, on_device=_HALVES)


compilation_pipeline.register_tir_pipeline(TIR_PIPELINE, lower_textures)
compilation_pipeline.register_tir_pipeline(BUFFERS_PIPELINE, lambda: opencl_tir_pipeline(_HALVES))
compilation_pipeline.register_tir_pipeline(CUDA_PIPELINE, lambda: cuda_tir_pipeline([LeaveFastMath()]))

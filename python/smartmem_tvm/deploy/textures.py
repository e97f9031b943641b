# SPDX-License-Identifier: Apache-2.0
"""Build Relax modules with tensors in texture memory, and run them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx
from tvm.tirx import compilation_pipeline

from ..ir.half import HALF
from ..pipeline import Options, lower_phases, run_phases
from ..target import has_textures, is_cuda, is_opencl
from ..transform.layout.check_textures import SCOPES, CheckTextures
from ..transform.precision.compute_single import ComputeSingle
from ..transform.precision.half_storage import HalfStorage
from ..tvm_mends.lowering import cuda_tir_pipeline, opencl_tir_pipeline, texture_tir_pipeline
from ..tvm_mends.mend_vectors import MendVectors
from ..tvm_mends.stage_texels import StageTexels
from ..tvm_mends.texture_pipeline import ScheduleTexels
from .cuda_math import LeaveFastMath, QuantizeInVectors

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
        ``call_tir`` of scheduled kernels. The ``vdevice`` of a tensor's type gives its memory scope, and the module
        lists one ``vdevice`` for each scope. A module that TVM's Adreno pipeline has lowered for the virtual machine is
        accepted too.
    target : tvm.target.Target
        Target of kind opencl, with a host.

    Returns
    -------
    tvm.relax.VMExecutable
        Code for `texture_machine`.

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
    """Return a virtual machine for code with textures.

    TVM numbers the memory scopes of a device like separate devices; here they are all the same device.
    """
    return relax.VirtualMachine(code, [device] * (1 + len(SCOPES)))


def stores_half(mod: tvm.IRModule) -> bool:
    """Whether a kernel of `mod` reads or writes float16."""
    params = [param for func in mod.functions.values() if isinstance(func, tirx.PrimFunc) for param in func.params]
    return any(str(getattr(param.ty, "dtype", "")) == HALF for param in params)


def tir_pipeline(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """Return the name of the pipeline that lowers the kernels of `mod` for a GPU."""
    if not is_opencl(target):
        return CUDA_PIPELINE if is_cuda(target) else "default"
    # TVM's own pipeline indexes textures as if they were buffers, and needs float16 arithmetic to store float16.
    return TIR_PIPELINE if has_textures(target) or stores_half(mod) else BUFFERS_PIPELINE


def staged(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return scheduled kernels with the loads and stores of the generated code, to count their accesses.

    A schedule has one loop for a vector that must be computed lane by lane, as for `erf`. The generated code still
    loads and stores a vector if it consists of texels or of float16.
    """
    return StageTexels()(mod) if tir_pipeline(mod, target) == TIR_PIPELINE else mod


# These passes do not change kernels that compute in float32.
_HALVES = (HalfStorage(), ComputeSingle(), HalfStorage(last=True))


def lower_textures(refuse: bool = True) -> tuple[tvm.transform.Pass, Callable, Callable]:
    """Return the pipeline for kernels with textures (see `texture_tir_pipeline`); `refuse` is for `CheckTextures`."""
    before = [ScheduleTexels(), CheckTextures(refuse), StageTexels(), MendVectors(textures=True)]
    return texture_tir_pipeline(before=before, on_device=_HALVES)


compilation_pipeline.register_tir_pipeline(TIR_PIPELINE, lower_textures)
compilation_pipeline.register_tir_pipeline(BUFFERS_PIPELINE, lambda: opencl_tir_pipeline(_HALVES))
compilation_pipeline.register_tir_pipeline(
    CUDA_PIPELINE, lambda: cuda_tir_pipeline([LeaveFastMath()], [QuantizeInVectors()])
)

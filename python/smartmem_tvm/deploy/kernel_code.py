# SPDX-License-Identifier: Apache-2.0
"""Code of scheduled kernels without a network around them, made and checked as that of a network is."""

from __future__ import annotations

import tvm
from tvm.target import Target

from ..target import is_gpu
from .check_opencl import check_opencl, planned_memory
from .gpu_build import build_kernels
from .textures import tir_pipeline


def kernel_code(mod: tvm.IRModule, target: Target) -> tvm.runtime.Module:
    """Compile scheduled PrimFuncs.

    Raises
    ------
    UserError
        If OpenCL cannot hold a texture of theirs, generated OpenCL breaks a rule of `check_opencl`, or there is no
        compiler for CUDA.
    """
    if not is_gpu(target):
        return tvm.tirx.build(mod, target=target)
    code = build_kernels(mod, target, tir_pipeline(mod, target))
    check_opencl(code, planned_memory(mod))
    return code

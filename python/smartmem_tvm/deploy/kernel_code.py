# SPDX-License-Identifier: Apache-2.0
"""Compile scheduled kernels without a network, with the same passes and checks as those of a network."""

from __future__ import annotations

import tvm
from tvm.target import Target

from ..cpu_code import code_generation
from ..target import is_gpu
from ..tvm_mends.check_images import CheckImages, planned_memory
from .gpu_build import build_kernels
from .textures import tir_pipeline


def kernel_code(mod: tvm.IRModule, target: Target) -> tvm.runtime.Module:
    """Compile scheduled PrimFuncs.

    Raises
    ------
    UserError
        If OpenCL cannot hold a texture of a kernel, if a lowered kernel breaks a rule of `CheckImages`, or if there is
        no compiler for CUDA.
    """
    if not is_gpu(target):
        with code_generation(target) as given:
            return tvm.tirx.build(mod, target=given)
    check = CheckImages(planned_memory(mod)) if target.kind.name == "opencl" else lambda kernels: None
    return build_kernels(mod, target, tir_pipeline(mod, target), check)

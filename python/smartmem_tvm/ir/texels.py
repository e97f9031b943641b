# SPDX-License-Identifier: Apache-2.0
"""Textures among the buffers of a kernel: kernels write whole texels, and should read whole texels."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from .index_map import variables
from .kernel import Kernel
from .vectorized import lanes_of
from .walk import loads


def is_texture(buffer) -> bool:
    """Whether a buffer is a texture, whose innermost dimension is a texel of four numbers."""
    return "texture" in buffer.scope()


def texture_loads(root) -> list:
    """Return every load from a texture."""
    return [load for load in loads(root) if is_texture(load.source)]


def writes_texels(kernel: Kernel) -> bool:
    """Whether a kernel writes a texture."""
    return any(is_texture(output) for output in kernel.outputs)


def read_singly(func: tirx.PrimFunc) -> frozenset[int]:
    """Return the positions of those texture parameters of which some read uses only one of four numbers.

    Parameters
    ----------
    func : tirx.PrimFunc
        Scheduled kernel after `tvm_mends.StageTexels`: one access reads each vector.
    """
    single: list = []

    def vector(loop: tirx.For) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        lanes = lanes_of(loop)
        single.extend(load for load in texture_loads(loop) if not lanes & set(variables(load.indices[-1])))
        return tirx.Evaluate(tirx.const(0))

    single += texture_loads(tvm_ffi.structural_map(func.body, (tirx.For, vector)))
    return frozenset(i for i, param in enumerate(func.params) if any(load.source.same_as(param) for load in single))

# SPDX-License-Identifier: Apache-2.0
"""Textures among the buffers of a kernel: whoever writes one writes whole texels."""

from __future__ import annotations

from ..analysis.kernel import Kernel

TEXEL = 4


def is_texture(buffer) -> bool:
    """Whether a buffer is a texture, whose innermost dimension is a texel of four numbers."""
    return "texture" in buffer.scope()


def writes_texels(kernel: Kernel) -> bool:
    """Whether a kernel writes a texture."""
    return any(is_texture(output) for output in kernel.outputs)


def has_textures(kernel: Kernel) -> bool:
    """Whether a kernel reads or writes a texture."""
    return any(is_texture(buffer) for buffer in (*kernel.inputs, *kernel.outputs))

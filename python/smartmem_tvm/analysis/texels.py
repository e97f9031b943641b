# SPDX-License-Identifier: Apache-2.0
"""Textures among the buffers of a kernel: whoever writes one writes whole texels."""

from __future__ import annotations

from .kernel import Kernel


def is_texture(buffer) -> bool:
    """Whether a buffer is a texture, whose innermost dimension is a texel of four numbers."""
    return "texture" in buffer.scope()


def writes_texels(kernel: Kernel) -> bool:
    """Whether a kernel writes a texture."""
    return any(is_texture(output) for output in kernel.outputs)

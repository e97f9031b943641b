# SPDX-License-Identifier: Apache-2.0
"""Kernels that more than one rule can take, where the first one that answers is not always the fastest.

Which rule takes a kernel is a decision too: ``"rule": 3`` in the attribute ``smartmem.decisions`` is the number of a
rule in `NUMBERED`. With it goes the memory that operands are read from: `WindowProduct` and `GpuMatmul` stage them in
shared memory, `WindowSlide` reads them where they lie; `Matmul` copies the places of a window, `Slide` and
`Window` do not, `Depthwise` copies some lines of the picture.
"""

from __future__ import annotations

RIVALS: dict[str, tuple[str, ...]] = {
    "Depthwise": ("Window",),
    "Slide": ("Matmul", "Window"),
    "WindowProduct": ("WindowSlide", "GpuMatmul"),
    "WindowSlide": ("GpuMatmul",),
    "GpuMatrix": ("WindowProduct", "WindowSlide", "GpuMatmul"),
}
"""The rule that takes a kernel -> those that it could be left to; rules that are slower wherever they can are not."""

NUMBERED = (
    "Slide",
    "Matmul",
    "Window",
    "WindowProduct",
    "WindowSlide",
    "GpuMatmul",
    "GpuMatrix",
    "Depthwise",
)
"""Records name rules by their places here, which do not change."""

# SPDX-License-Identifier: Apache-2.0
"""Rivals: rules that can take the same kernel, where the first one is not always the fastest.

The choice among rivals is a decision: ``"rule": 3`` in the attribute ``smartmem.decisions`` is the number of a
rule in `NUMBERED`. It also chooses the memory that operands are read from: `WindowProduct` and `GpuMatmul` stage them
in shared memory, and `WindowSlide` reads them in place; `Matmul` copies windows (im2col), `Slide` and `Window` do not,
and `Depthwise` copies some lines of the picture.
"""

from __future__ import annotations

RIVALS: dict[str, tuple[str, ...]] = {
    "Depthwise": ("Window",),
    "Slide": ("Matmul", "Window"),
    "WindowProduct": ("WindowSlide", "GpuMatmul"),
    "WindowSlide": ("GpuMatmul",),
    "GpuMatrix": ("WindowProduct", "WindowSlide", "GpuMatmul"),
}
"""Rule that takes a kernel -> its rivals, without rules that are slower wherever they can take it."""

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
"""Tuning records hold the positions of rules in this tuple, so a position never changes."""

# SPDX-License-Identifier: Apache-2.0
"""Estimate the time of a scheduled kernel on a device, from the load on each part of the device."""

from __future__ import annotations

from collections.abc import Iterable

from tvm import tirx

from ..ir.kernel import Opaque, parse
from ..planner.texture_form import TEXEL
from ..tables.targets import Row
from .access_pattern import Unmodelled
from .facts import flops
from .memory_access import Accesses, Effort, kernel_accesses

# Enough to compare two forms of a kernel. For the kernels of Swin-T, the mean error against the full effort is 3% in
# lines and 6% in misses of the second level, in less than half of the time.
EFFORT = Effort(points=1 << 16, lines=1 << 15, windows=2)
_TEXEL_BYTES = 4 * TEXEL
_ISSUED = 2  # instructions of a thread per access: the access and its address
_SERIAL = 0.15  # share of the shorter parts that adds to the longest: the parts do not overlap perfectly


def kernel_seconds(kernel: tirx.PrimFunc, scheduled: tirx.PrimFunc, row: Row) -> float | None:
    """Estimate the seconds of one launch; None if the kernel cannot be modelled.

    A roofline with a roof for each part of the device (Williams et al., 2009; SmartMem 4.6 draws two of them for
    Adreno 740, 55 GB/s from memory and 511 GB/s from textures, below 2.0 TMACs/s)::

        arithmetic   (multiply-adds + 2 * accesses of threads) / peak
        memory       lines that miss the second level * bytes of a line / bandwidth,
                     loads of buffers at `buffer_share` of it
        second level lines that miss or bypass the first * bytes of a line / l2_bandwidth
        buffers      lines of buffers requested of the first level * bytes of a line / buffer_bandwidth
        texels       texels of threads * 16 bytes / texture_bandwidth
        seconds = longest + 0.15 * (sum of the others)

    Threads that read the same line of a buffer in one instruction share it; each texel is filtered for its own thread.

    Parameters
    ----------
    kernel, scheduled : tvm.tirx.PrimFunc
        The loop program, for its arithmetic, and its schedule, for its accesses.
    row : Row
        The device.
    """
    try:
        accesses, multiply_adds = kernel_accesses(scheduled, row, EFFORT), flops(parse(kernel)) / 2
    except (Unmodelled, Opaque):
        return None
    arithmetic = (multiply_adds + _ISSUED * (accesses.loads + accesses.stores)) / row.peak
    return overlapped([arithmetic, *memory_parts(accesses, row)])


def overlapped(parts: Iterable[float]) -> float:
    """Return the seconds of parts of a device that work at the same time: the longest, and a share of the others."""
    *others, longest = sorted(parts)
    return longest + _SERIAL * sum(others)


def memory_seconds(found: Accesses, row: Row) -> float:
    """Return the longest of the seconds that each level of memory takes for some accesses (`kernel_seconds`)."""
    return max(memory_parts(found, row))


def memory_parts(found: Accesses, row: Row) -> list[float]:
    """Return the seconds of the last four parts of `kernel_seconds`, from memory to texels, in its order."""
    texels = found.texel_loads + found.texel_stores
    misses = found.l2_misses + found.buffer_misses * (1 / row.buffer_share - 1)
    return [
        misses * row.sector_bytes / row.bandwidth,
        found.l1_misses * row.sector_bytes / row.l2_bandwidth,
        found.buffer_lines * row.sector_bytes / row.buffer_bandwidth if row.buffer_bandwidth else 0.0,
        texels * _TEXEL_BYTES / row.texture_bandwidth if texels else 0.0,
    ]

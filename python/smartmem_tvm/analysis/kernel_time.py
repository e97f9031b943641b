# SPDX-License-Identifier: Apache-2.0
"""How long a scheduled kernel takes on a device, from what it asks of each part of it."""

from __future__ import annotations

from tvm import tirx

from ..ir.kernel import Opaque, parse
from ..planner.texture_form import TEXEL
from ..tables.targets import Row
from .access_pattern import Unmodelled
from .facts import flops
from .memory_access import Accesses, Effort, kernel_accesses

# Enough to compare two forms of a kernel: on Swin-T's, lines are within 3% of those of the full effort in the mean,
# and misses of the second level within 6%, in less than half of the time.
EFFORT = Effort(points=1 << 16, lines=1 << 15, windows=2)
_TEXEL_BYTES = 4 * TEXEL
_ISSUED = 2  # instructions of a thread for an access: itself, and its address
_SERIAL = 0.15  # of what does not take longest, as far as it adds to that: nothing overlaps without gaps


def kernel_seconds(kernel: tirx.PrimFunc, scheduled: tirx.PrimFunc, row: Row) -> float | None:
    """Estimated seconds of one launch, None for what cannot be modelled.

    A roofline with a roof for each part of the device (Williams et al., 2009; SmartMem 4.6 draws two of them for
    Adreno 740, 55 GB/s from memory and 511 GB/s from textures, below 2.0 TMACs/s)::

        arithmetic   (multiply-adds + 2 * accesses of threads) / peak
        memory       lines that miss the second level * bytes of a line / bandwidth,
                     loads of buffers at `buffer_share` of it
        second level lines that miss or pass by the first * bytes of a line / l2_bandwidth
        buffers      lines of buffers that the first level is asked for * bytes of a line / buffer_bandwidth
        texels       texels of threads * 16 bytes / texture_bandwidth
        seconds = longest + 0.15 * (sum of the others)

    Threads that read the same line of a buffer in one instruction share it; each texel is filtered for its own thread.

    Parameters
    ----------
    kernel, scheduled : tvm.tirx.PrimFunc
        The loop program, for its arithmetic, and what was made of it, for its accesses.
    row : Row
        The device.
    """
    try:
        accesses, multiply_adds = kernel_accesses(scheduled, row, EFFORT), flops(parse(kernel)) / 2
    except (Unmodelled, Opaque):
        return None
    *others, longest = sorted(_parts(accesses, multiply_adds, row))
    return longest + _SERIAL * sum(others)


def _parts(found: Accesses, multiply_adds: float, row: Row) -> list[float]:
    texels = found.texel_loads + found.texel_stores
    misses = found.l2_misses + found.buffer_misses * (1 / row.buffer_share - 1)
    return [
        (multiply_adds + _ISSUED * (found.loads + found.stores)) / row.peak,
        misses * row.sector_bytes / row.bandwidth,
        found.l1_misses * row.sector_bytes / row.l2_bandwidth,
        found.buffer_lines * row.sector_bytes / row.buffer_bandwidth if row.buffer_bandwidth else 0.0,
        texels * _TEXEL_BYTES / row.texture_bandwidth if texels else 0.0,
    ]

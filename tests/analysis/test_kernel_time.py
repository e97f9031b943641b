# SPDX-License-Identifier: Apache-2.0
"""The time of a kernel on a device, against sums done by hand."""

from dataclasses import replace

import pytest
from tvm import te

from memory_kernels import vector_copy
from smartmem_tvm.analysis.kernel_time import kernel_seconds, memory_seconds
from smartmem_tvm.analysis.memory_access import Accesses
from smartmem_tvm.tables.targets import TARGETS

ADRENO, MALI = TARGETS["adreno-740"], TARGETS["mali-g57"]
LINE, LINES, THREADS = 64, 256, 1024  # 16 KiB in lines of 64 bytes, read and written by threads of 16 bytes each
A = te.placeholder((64, 16, 4), name="A")
NOTHING_COMPUTED = te.create_prim_func([A, te.compute(A.shape, lambda *at: A[at], name="B")])


def seconds(scope, row):
    return kernel_seconds(NOTHING_COMPUTED, vector_copy(scope), row)


def roofline(parts) -> float:
    *others, longest = sorted(parts)
    return longest + 0.15 * sum(others)


def test_a_copy_between_buffers():
    """Memory is read at two fifths of the bandwidth, and written at all of it."""
    parts = (
        2 * 2 * THREADS / ADRENO.peak,
        (LINES / 0.4 + LINES) * LINE / ADRENO.bandwidth,
        2 * LINES * LINE / ADRENO.l2_bandwidth,
    )
    assert seconds("global", ADRENO) == pytest.approx(roofline(parts))


def test_a_copy_between_textures():
    parts = (
        2 * 2 * THREADS / ADRENO.peak,
        2 * LINES * LINE / ADRENO.bandwidth,
        2 * LINES * LINE / ADRENO.l2_bandwidth,
        2 * THREADS * 16 / ADRENO.texture_bandwidth,
    )
    assert seconds("global.texture", ADRENO) == pytest.approx(roofline(parts))


def test_faster_memory_helps_and_a_slower_texture_path_hurts():
    usual = seconds("global.texture", MALI)
    assert seconds("global.texture", replace(MALI, bandwidth=2 * MALI.bandwidth)) < usual
    assert seconds("global.texture", replace(MALI, texture_bandwidth=MALI.bandwidth / 10)) > 2 * usual


def test_memory_takes_as_long_as_its_slowest_level():
    lines = {"l1_misses": 1000.0, "l2_misses": 100.0, "texel_loads": 10.0}
    assert memory_seconds(Accesses(**lines), ADRENO) == pytest.approx(1000 * LINE / ADRENO.l2_bandwidth)
    assert memory_seconds(Accesses(**{**lines, "l2_misses": 1000.0}), ADRENO) == pytest.approx(
        1000 * LINE / ADRENO.bandwidth
    )
    of_buffers = Accesses(l2_misses=10.0, buffer_misses=10.0)
    assert memory_seconds(of_buffers, ADRENO) == pytest.approx(10 * LINE / (ADRENO.bandwidth * ADRENO.buffer_share))

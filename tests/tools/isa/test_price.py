# SPDX-License-Identifier: Apache-2.0
"""The price of a kernel for Adreno: instructions at its occupancy, scratch memory, and what its accesses take."""

from dataclasses import replace

import pytest

from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.tools.isa import price
from smartmem_tvm.tools.isa.compiler import Compiled
from smartmem_tvm.tools.isa.kernels import KernelCode

ROW = TARGETS["adreno-740"]  # 6 cores of 2 schedulers each
CODE = """Native code for unnamed CL shader:
mov.f32f32 r0.x, c0.x
(sy)(ss)(rpt1)mad.f32 r0.y, r0.x, (r)r1.x, (r)r0.y
mad.f16 hr0.y, hr0.x, hr1.x, hr0.y
(rpt1)nop
(ss)(nop2) stp.u32 p[r0.x], r0.x, 4
end
; CL: outputs
; CL prog 1/1: 8 instr, 4 nops, 0 half, 4 full
; CL prog 1/1: 10 sstall, 2 (ss), 30 systall, 1 (sy), 0 loops
; CL prog 1/1: {waves} max_waves, 0 double_threadsize
"""
ISSUED = 1 + 2 + 0.5 + 1 + 1  # mov, two mads, half a mad, stp, end
ALONE = ISSUED + 2 + 2 + 2 * 10 / 2 + 30  # empty slots of nop and of stp; waits for two (ss) and a (sy)
LOOP = """l1:
(ss)stp.u32 p[r0.x], r0.x, 3
br p0.x, #l1
"""


def kernel(blocks=1, threads=64, waves=16, scratch=16, code=CODE) -> KernelCode:
    source = f"// Work group {threads} 1 1, grid {blocks} 1 1\n"
    return KernelCode.of("k", source, Compiled(code.format(waves=waves), 1024, 0, scratch))


def slots(seconds: float) -> float:
    """Slots of the schedulers, each of which issues for 64 threads."""
    return seconds * ROW.peak / (64 * 6 * 2)


def test_waves_of_a_wave_that_wait_are_hidden_by_others():
    assert price.slots_alone(kernel().code) == pytest.approx(ALONE)
    assert slots(price.issue_seconds(kernel(), ROW)) == pytest.approx(ALONE)  # one block has nothing beside it
    # 96 waves, of which 8 are on each scheduler, all at once: they take as long as one, or as what they issue.
    assert slots(price.issue_seconds(kernel(blocks=96), ROW)) == pytest.approx(max(ALONE, 8 * ISSUED))
    # If two are there at a time, there are four rounds.
    assert slots(price.issue_seconds(kernel(blocks=96, waves=4), ROW)) == pytest.approx(4 * ALONE)
    many = price.issue_seconds(kernel(blocks=12000, waves=32), ROW)  # more than wait at a time
    assert many == pytest.approx(kernel(blocks=12000).issue_seconds(ROW))


@pytest.mark.parametrize(("blocks", "threads"), [(1, 64), (2, 64), (7, 64), (13, 128), (100, 192)])
def test_the_scheduler_with_the_most_waves_counts(blocks, threads):
    most = -(-(-(-blocks // 6) * (threads // 64)) // 2)
    found = slots(price.issue_seconds(kernel(blocks, threads, waves=32), ROW))
    assert found == pytest.approx(max(most * ISSUED, max(1, most / 16) * ALONE))


def test_scratch_memory_is_memory():
    spilled = price.scratch_seconds(kernel(blocks=10), ROW)
    assert spilled == pytest.approx(4 * 4 * 640 / ROW.l2_bandwidth)
    large = ROW.l2_bytes // 640 + 1  # bytes of each thread: together more than the second level holds
    beyond = price.scratch_seconds(kernel(blocks=10, scratch=large), ROW)
    assert beyond == pytest.approx(4 * 4 * 640 / ROW.bandwidth)
    assert price.scratch_seconds(kernel(code=CODE.replace("stp.u32 p[r0.x], r0.x, 4", "add.u r0.x, r0.x, 1")), ROW) == 0


def test_the_price_is_the_longest_part_and_a_share_of_the_others():
    code, memory = kernel(blocks=10), [3e-6, 1e-6, 0.0, 2e-6]
    issued, spilled = price.issue_seconds(code, ROW), price.scratch_seconds(code, ROW)
    one, two = price.seconds([code], memory, ROW), price.seconds([code, code], memory, ROW)
    assert one == pytest.approx(3e-6 + 0.15 * (issued + 1e-6 + spilled + 2e-6))
    assert two - one == pytest.approx(0.15 * (issued + spilled))
    fast = replace(ROW, peak=ROW.peak / 1e6)
    assert price.seconds([code], memory, fast) == pytest.approx(1e6 * issued + 0.15 * (6e-6 + spilled))


def test_a_loop_whose_trips_are_not_known_has_no_price():
    code = kernel(code=CODE.replace("(rpt1)nop\n", LOOP))
    assert price.issue_seconds(code, ROW) is None and price.scratch_seconds(code, ROW) is None
    assert price.seconds([kernel(), code], [0.0] * 4, ROW) is None

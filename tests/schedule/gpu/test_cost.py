# SPDX-License-Identifier: Apache-2.0
"""The model of time of GPU kernels: how the amounts of a thread block become cycles."""

import math
from dataclasses import replace

import pytest

from smartmem_tvm.schedule.gpu.attention.chain_tile import GpuChainParams
from smartmem_tvm.schedule.gpu.cost import (
    BlockKernel,
    BlockRates,
    BlockWork,
    TileParams,
    Wait,
    cycles,
    price,
    turn_alone,
)
from smartmem_tvm.schedule.gpu.machine import Processor
from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuMatmulParams
from smartmem_tvm.schedule.gpu.window.window import GpuWindowParams
from smartmem_tvm.target import Limits

RATES = BlockRates(vector=2.0, last_level=32.0)
TEN = TileParams(Limits(processors=10), Processor(lanes=128, threads=1024, blocks=4), RATES)


def at(**rates) -> TileParams:
    return replace(TEN, rates=replace(RATES, **rates))


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (BlockWork(3, instructions=8), 3 * 8 / 4),
        (BlockWork(3, vectors=8), 3 * 8 * 2.0),
        (BlockWork(3, loaded=64), 3 * 64 / 32),
        (BlockWork(3, lines=8), 3 * 8),
        (BlockWork(3, measured=8), 3 * 8),
        (BlockWork(3, tensor=8), 3 * 8 * 2),  # 8 warps are two on each of four schedulers
        (BlockWork(3, rest=8), 3 * 8 * 2),
        (BlockWork(3, instructions=8, vectors=8), 3 * 16.0),
        (BlockWork(3, instructions=8, vectors=8, overlap=0.5), 3 * (16 + 0.5 * 2)),
    ],
    ids=str,
)
def test_units_take_what_they_are_given(work, expected):
    assert cycles(BlockKernel(10, 256, work=(work,)), TEN) == expected
    assert cycles(BlockKernel(50, 256, work=(work,)), TEN) == 5 * expected  # by the processor with the most: 5 of 50


def test_a_warp_that_is_left_over_takes_a_scheduler_for_itself():
    work = (BlockWork(tensor=8),)
    assert [cycles(BlockKernel(10 * blocks, 96, work=work), TEN) for blocks in (1, 2, 3)] == [8, 16, 24]


def test_waits_are_hidden_by_thread_blocks_at_the_same_time():
    waits = (Wait(2, 100), Wait(1, 50))
    assert [cycles(BlockKernel(10 * blocks, 256, waits=waits), TEN) for blocks in (1, 4, 5, 8)] == [250, 250, 500, 500]
    crowded = replace(TEN, processor=replace(TEN.processor, threads=512))
    assert cycles(BlockKernel(40, 256, waits=waits), crowded) == 500
    assert cycles(BlockKernel(50, 256, waits=waits), at(whole_waves=False)) == 250 * 5 / 4


def test_what_fills_the_gaps_of_warps_is_other_thread_blocks():
    work = (BlockWork(tensor=8, rest=4, overlap=None),)
    assert cycles(BlockKernel(10, 128, work=work), TEN) == 8 + 4
    assert cycles(BlockKernel(40, 128, work=work), TEN) == 4 * (8 + 4 / 4)


def test_few_warps_issue_less():
    work = (BlockWork(instructions=64),)
    assert cycles(BlockKernel(10, 64, work=work), at(by_warp=0.5)) == 64 / (2 * 0.5)
    assert cycles(BlockKernel(10, 1024, work=work), at(by_warp=0.5)) == 64 / 4


def test_the_longest_counts_and_a_share_of_the_second():
    kernel = BlockKernel(10, 128, work=(BlockWork(measured=100),), waits=(Wait(1, 40),), cached=320 * 60, memory=500)
    assert cycles(kernel, TEN) == 100
    assert cycles(kernel, at(overlap=0.5)) == 100 + 0.5 * 60
    assert cycles(kernel, at(memory=4.0, overlap=0.5)) == 125 + 0.5 * 100


def test_all_else_adds_up():
    kernel = BlockKernel(50, 1024, work=(BlockWork(measured=100),), results=20, sums=3200)
    device = at(begin=1000, wave=7, result=0.5, second=300)
    assert cycles(kernel, device) == 1000 + 5 * 7 + 500 + 5 * 20 * 0.5 + 300 + 3200 / 320
    assert cycles(kernel._replace(sums=0), device) == 1000 + 5 * 7 + 500 + 5 * 20 * 0.5


def test_the_terms_of_a_price_are_those_of_its_cycles():
    kernel = BlockKernel(
        *(50, 1024, 0, 0),
        (BlockWork(2, instructions=40), BlockWork(3, instructions=8, vectors=1)),
        (Wait(1, 5),),
        *(640, 0, 20, 3200),
    )
    device = at(begin=1000, wave=7, result=0.5, second=300)
    found = price(kernel, device)
    assert found.cycles == cycles(kernel, device)
    assert found.terms == {
        "until the first product begins": 1000,
        "thread blocks after thread blocks": 35,
        "instructions": 5 * (2 * 40 + 3 * 8) / 4,
        "loads from shared memory": 5 * 3 * 2.0,
        "operands from the last cache": 2,
        "what a thread block waits for": 25,
        "results": 50,
        "adding parts": 310,
    }


def test_one_turn_alone_keeps_nothing_else_busy():
    work = BlockWork(7, instructions=40, vectors=3)
    assert turn_alone(work, TEN) == 10
    assert turn_alone(work, at(by_warp=0.5)) == 10  # its warps are counted among the instructions


@pytest.mark.parametrize("params", [GpuMatmulParams, GpuChainParams, GpuWindowParams])
def test_parameters_are_those_of_the_target(params):
    made = params.of(Limits(processors=3))
    assert made.limits.processors == 3 and isinstance(made, TileParams)
    assert math.isinf(made.rates.memory)

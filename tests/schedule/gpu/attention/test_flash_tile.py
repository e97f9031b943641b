# SPDX-License-Identifier: Apache-2.0
"""Tiles of an attention by matrix instructions: what fits, and which one is chosen."""

from dataclasses import replace

import pytest
import tvm

from smartmem_tvm.schedule.gpu.attention.flash_tile import (
    AttentionParams,
    AttentionShape,
    AttentionTile,
    best_attention_tile,
    fits,
    price,
)

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
PARAMS = AttentionParams.of(tvm.target.Target({**FACTS, "arch": "sm_90a"}, host="llvm"))
ALONE = replace(PARAMS, warp_groups=False)
LONG = AttentionShape(16, 4096, 4096, 64, 64)


@pytest.mark.parametrize(
    ("shape", "measured"),
    [
        (LONG, AttentionTile(128, 32, 64, 3)),
        (AttentionShape(12, 197, 197, 64, 64), AttentionTile(16, 16, 128, 2)),
        (AttentionShape(12, 197, 197, 64, 64, 0, 1), AttentionTile(16, 16, 128, 2)),
        (AttentionShape(192, 49, 49, 32, 32, 0, 2), AttentionTile(16, 16, 64, 1)),
        (AttentionShape(8, 1024, 1024, 80, 80), AttentionTile(64, 16, 64, 2)),
        (AttentionShape(8, 4096, 77, 40, 40), AttentionTile(128, 16, 80, 1)),
    ],
)
def test_the_fastest_of_those_by_single_warps_is_chosen(shape, measured):
    assert best_attention_tile(shape, ALONE) == measured


@pytest.mark.parametrize(
    ("shape", "measured"),
    [
        (LONG, AttentionTile(128, 16, 64, 4, True)),
        (AttentionShape(16, 4096, 4096, 128, 128), AttentionTile(64, 16, 64, 3, True)),
        (AttentionShape(8, 4096, 4096, 40, 40), AttentionTile(128, 16, 64, 4, True)),
        (AttentionShape(96, 197, 197, 64, 64), AttentionTile(64, 16, 208, 1, True)),
        (AttentionShape(768, 49, 49, 32, 32), AttentionTile(64, 16, 64, 1, True)),
        (AttentionShape(8, 512, 512, 256, 256), AttentionTile(64, 16, 32, 3, True)),
    ],
)
def test_the_fastest_of_those_measured_on_an_h100_is_chosen(shape, measured):
    assert best_attention_tile(shape, PARAMS) == measured


@pytest.mark.parametrize(
    ("tile", "able"),
    [
        (AttentionTile(128, 32, 64, 3), True),
        (AttentionTile(128, 32, 64, 1), False),  # nothing could be on its way
        (AttentionTile(128, 32, 128, 2), False),  # more scores than registers
        (AttentionTile(48, 32, 64, 2), False),  # rows are no whole number of warps
        (AttentionTile(64, 16, 24, 2), False),  # keys are no whole number of instructions
        (AttentionTile(2048, 32, 16, 2), False),  # threads
        (AttentionTile(128, 16, 64, 3, True), True),
        (AttentionTile(128, 16, 64, 2, True), False),  # values of the block before are still read
        (AttentionTile(32, 16, 64, 3, True), False),  # half of a group
        (AttentionTile(128, 32, 64, 3, True), False),  # a warp of a group has 16 rows
    ],
)
def test_what_fits(tile, able):
    assert fits(tile, LONG, PARAMS) == able


def test_one_stage_is_enough_for_one_block_of_keys():
    assert fits(AttentionTile(64, 16, 64, 1), AttentionShape(4, 49, 49, 32, 32), PARAMS)


@pytest.mark.parametrize("depth", [1, 24, 40, 72, 128, 160, 256])
def test_some_tile_fits_every_depth(depth):
    tile = best_attention_tile(AttentionShape(3, 1000, 1000, depth, depth), PARAMS)
    assert tile is not None and fits(tile, AttentionShape(3, 1000, 1000, depth, depth), PARAMS)


def test_shared_memory_and_candidates_limit_the_choice():
    assert best_attention_tile(LONG, replace(PARAMS, shared_bytes=1024)) is None
    only = AttentionTile(16, 16, 16, 2)
    assert best_attention_tile(LONG, replace(PARAMS, candidates=(only,))) == only


def test_what_is_read_for_scores_takes_time():
    tile = AttentionTile(64, 16, 64, 2)
    assert price(tile, replace(LONG, read=2), PARAMS).cycles > price(tile, LONG, PARAMS).cycles

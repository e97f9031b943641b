# SPDX-License-Identifier: Apache-2.0
"""The tile of a chain of rows on a GPU: what may be chosen, and what is."""

from dataclasses import replace
from itertools import product

import pytest
import tvm

from smartmem_tvm.schedule.gpu.attention.chain_tile import (
    ChainProductTile,
    ChainShape,
    ChainTile,
    GpuChainParams,
    KeptVector,
    ProductShape,
    best_chain_tile,
    candidates,
    price,
    shared_bytes,
)
from smartmem_tvm.target import Limits, parse_target

LARGE = GpuChainParams()


def attention(heads, rows, keys, depth) -> ChainShape:
    products = (ProductShape(keys, depth, True), ProductShape(depth, keys, False))
    return ChainShape(heads, rows, products, (KeptVector(keys, (0,), (1,)),), 2, keys)


SHAPES = [attention(*s) for s in ((12, 197, 197, 64), (192, 49, 49, 32), (12, 128, 128, 64), (8, 128, 128, 256))]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("limits", [{}, {"shared_bytes": 32 * 1024, "work_group": 64}], ids=str)
def test_a_tile_keeps_to_what_a_group_may_have(shape, limits):
    params = replace(LARGE, limits=replace(LARGE.limits, **limits))
    tile = best_chain_tile(shape, params)
    assert tile.threads <= params.limits.work_group
    assert shared_bytes(shape, tile) <= params.limits.shared_bytes
    assert -(-shape.longest // tile.row_threads) <= params.row_values


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_candidates_share_out_every_row_and_thread(shape, number):
    for rows, threads in product(LARGE.rows, LARGE.threads):
        for own in candidates(number, shape, rows, threads, LARGE.tile_bytes, LARGE):
            down = rows // own.thread_rows
            assert down * own.thread_rows == rows
            assert threads % (down * own.slices) == 0
            assert own.depth % 4 == 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nearly_every_processor_has_work(shape):
    tile = best_chain_tile(shape, LARGE)
    assert shape.batch * -(-shape.rows // tile.rows) >= 0.7 * LARGE.limits.processors


def test_more_work_is_estimated_to_take_longer():
    few, many = (attention(heads, 197, 197, 64) for heads in (12, 96))
    tile = best_chain_tile(few, LARGE)
    assert price(many, tile, LARGE).cycles > 3 * price(few, tile, LARGE).cycles


def tile_of(text: str) -> ChainTile:
    """``rows threads`` and, per product, ``rows x columns of a thread x slices x depth``."""
    rows, threads, *products = text.split()
    return ChainTile(int(rows), int(threads), tuple(ChainProductTile(*map(int, p.split("x"))) for p in products))


# microseconds on an H100; groups of few threads with much to do each are the slow ones
MEASURED = {
    (192, 49, 49, 32): {
        "32 128 4x4x1x32 4x8x4x16": 6.77,
        "16 64 4x4x1x16 4x4x2x16": 7.07,
        "32 64 4x8x1x32 4x8x2x32": 7.43,
        "8 64 4x8x4x8 4x8x8x8": 9.10,
        "8 256 2x4x4x8 2x4x8x8": 11.28,
    },
    (12, 197, 197, 64): {
        "16 128 4x8x1x16 4x8x4x16": 12.70,
        "8 64 8x8x2x8 4x8x4x8": 13.57,
        "8 64 4x8x2x16 8x8x8x8": 14.37,
        "8 256 4x4x2x8 4x4x8x8": 14.41,
    },
    (12, 128, 128, 64): {
        "16 256 4x4x2x16 4x4x4x16": 5.23,
        "16 128 4x8x2x16 4x8x4x16": 5.33,
        "8 64 8x8x4x8 8x8x8x8": 5.70,
        "32 256 4x4x1x32 4x4x2x32": 6.73,
        "16 64 8x8x2x16 8x8x4x16": 7.68,
    },
    (8, 128, 128, 256): {
        "8 256 4x4x4x8 4x4x2x8": 17.60,
        "8 128 4x8x4x8 4x8x2x8": 20.67,
        "16 256 4x4x2x16 4x4x1x16": 23.17,
        "8 64 8x8x4x8 8x8x2x8": 24.16,
        "16 64 8x8x2x16 8x8x1x16": 34.97,
    },
}


@pytest.mark.parametrize("sizes", MEASURED, ids=str)
def test_the_model_finds_what_was_measured_to_be_fast(sizes):
    measured = {tile_of(text): time for text, time in MEASURED[sizes].items()}
    chosen = min(measured, key=lambda tile: price(attention(*sizes), tile, LARGE).cycles)
    assert measured[chosen] <= 1.1 * min(measured.values())


def test_no_tile_for_rows_that_do_not_fit():
    assert best_chain_tile(attention(8, 4096, 4096, 40), LARGE) is None


def test_limits_come_from_the_target():
    limits = GpuChainParams.of(Limits(work_group=128, shared_bytes=32 * 1024)).limits
    assert (limits.work_group, limits.shared_bytes) == (128, 32 * 1024)
    assert GpuChainParams.of(Limits(work_group=1024, shared_bytes=1 << 20)).limits == LARGE.limits


def test_params_read_the_row_of_the_device():
    params = GpuChainParams.of(Limits.of(parse_target("mali-g57")))
    assert (params.limits.processors, params.limits.registers, params.row_values) == (2, 64, 32)
    tiles = candidates(0, SHAPES[0], 16, 128, 18 * 1024, params)
    assert tiles and all(tile.thread_rows * tile.thread_columns <= 32 for tile in tiles)
    assert GpuChainParams.of(Limits.of(tvm.target.Target("opencl"))).limits.processors == LARGE.limits.processors

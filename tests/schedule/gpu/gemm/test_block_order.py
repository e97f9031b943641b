# SPDX-License-Identifier: Apache-2.0
"""The order of tiles: every tile once, and what is held in a cache on the way."""

import numpy as np
import pytest

from smartmem_tvm.ir.index_map import evaluate
from smartmem_tvm.schedule.core.nest import fresh
from smartmem_tvm.schedule.gpu.gemm import block_order as gpu_group_order
from smartmem_tvm.schedule.gpu.gemm.block_order import bands, place_of, traffic, walk

SIZES = (100, 10, 1)


def places(rows: int, columns: int, band: int, count: int) -> list[tuple[int, int]]:
    number = fresh("group")
    numbers = np.arange(count)
    row, column = (evaluate(each, {number: numbers}) for each in place_of(number, rows, columns, band))
    return list(zip(np.broadcast_to(row, count).tolist(), np.broadcast_to(column, count).tolist(), strict=True))


@pytest.mark.parametrize("rows", range(1, 6))
def test_every_tile_is_visited_once(rows):
    for columns in range(1, 14):
        every = sorted((row, column) for row in range(rows) for column in range(columns))
        for band in range(1, columns + 1):
            order = list(walk(rows, columns, band))
            assert sorted(order) == every
            assert places(rows, columns, band, rows * columns) == order


@pytest.mark.parametrize("band", [1, 2, 3, 5])
def test_the_next_product_is_walked_the_same_way(band):
    assert places(3, 5, band, 45) == 3 * list(walk(3, 5, band))


def test_a_band_is_walked_row_by_row():
    assert list(walk(2, 3, 2)) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("columns", [1, 2, 3, 7, 64])
def test_bands_are_narrower_than_the_product(columns):
    found = bands(columns)
    assert len(set(found)) == len(found) and all(1 <= band < columns for band in found)
    assert bool(found) == (columns > 1)


@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize("band", [1, 2, 3, 5])
def test_with_a_large_cache_everything_comes_once(band, at_once):
    assert traffic(4, 5, band, SIZES, at_once, 1 << 20) == 4 * 100 + 5 * 10 + 20


@pytest.mark.parametrize("band", [1, 2, 3, 5])
def test_without_a_cache_groups_share_only_what_they_read_at_once(band):
    assert traffic(4, 5, band, SIZES, 1, 0) == 20 * 111
    assert traffic(4, 5, band, SIZES, 20, 0) == 4 * 100 + 5 * 10 + 20


def test_what_a_band_holds_is_read_once():
    """A cache for two column tiles and what passes by: all rows are read for each band, columns once."""
    sizes, cached = (10, 100, 1), 250
    assert traffic(50, 4, 2, sizes, 1, cached) == 2 * 50 * 10 + 4 * 100 + 200
    assert traffic(50, 4, 4, sizes, 1, cached) == 50 * 10 + 50 * 4 * 100 + 200


@pytest.mark.parametrize("band", [1, 6, 40])
def test_a_large_product_is_estimated_from_its_beginning(band, monkeypatch):
    estimate = traffic(90, 40, band, SIZES, 6, 700)
    monkeypatch.setattr(gpu_group_order, "_LOOKED_AT", 1 << 20)
    exact = traffic.__wrapped__(90, 40, band, SIZES, 6, 700)
    assert estimate == pytest.approx(exact, rel=0.05)

# SPDX-License-Identifier: Apache-2.0
"""The tile of a matmul on a GPU: what may be chosen, and what is."""

import json
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuMatmulParams, best_gpu_tile, candidates, price
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import Limits, parse_target

LARGE = GpuMatmulParams()
MALI = parse_target("mali-g57")
SHAPES = [(1, 197, 2304, 768), (12, 197, 197, 64), (1, 49, 768, 3072), (1, 3136, 288, 96), (192, 49, 49, 32)]


def cycles(tile, batch, rows, columns, depth, params) -> float:
    return price(tile, batch, rows, columns, depth, params).cycles


def groups(tile, batch, rows, columns) -> int:
    return batch * -(-rows // tile.rows) * -(-columns // tile.columns) * tile.splits


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_most_processors_have_work(shape):
    tile = best_gpu_tile(*shape, LARGE)
    assert groups(tile, *shape[:3]) >= 0.7 * LARGE.limits.processors


def test_candidates_keep_to_what_a_group_may_have():
    small = GpuMatmulParams.of(Limits(work_group=64, shared_bytes=4096))
    found = candidates(768, small)
    assert found
    assert all(t.threads <= 64 and t.shared_bytes <= 4096 and t.depth % t.unroll == 0 for t in found)


def test_a_tile_is_cut_into_whole_threads():
    for tile in candidates(768, LARGE):
        assert tile.rows % tile.thread_rows == 0 and tile.columns % tile.thread_columns == 0
        assert tile.threads % 32 == 0


def test_few_terms_are_not_split():
    assert {tile.splits for tile in candidates(96, LARGE)} == {1}


def test_a_large_product_takes_a_large_tile_and_a_deep_one_is_split():
    large = best_gpu_tile(1, 4096, 4096, 4096, LARGE)
    assert large.rows * large.columns >= 128 * 64 and large.splits == 1
    assert best_gpu_tile(1, 49, 768, 3072, LARGE).splits > 1


def test_a_split_has_to_win_clearly():
    assert best_gpu_tile(1, 197, 2304, 768, LARGE).splits == 1


def test_the_source_of_a_kernel_stays_short():
    for tile in candidates(768, LARGE):
        written = tile.unroll * tile.thread_rows * tile.thread_columns
        assert (written <= 1024 or tile.unroll <= 16) and written <= 2048 and tile.depth % tile.unroll == 0


def test_tiles_are_chosen_by_what_was_measured():
    """Of what was measured of each product the model takes what is nearly fastest, and it knows about what it takes."""
    found = json.loads(Path(__file__).parents[4].joinpath("benchmarks", "float_tiles.json").read_text("utf-8"))
    lost, off = [], []
    for row in found["rows"]:
        measured = {tuple(each["tile"]): each["us"] for each in row["tiles"]}
        taken = best_gpu_tile(1, *row["shape"], LARGE)
        lost.append(measured[astuple(taken)] / min(measured.values()))
        off.append(cycles(taken, 1, *row["shape"], LARGE) / 1980 / measured[astuple(taken)])
    assert len(lost) == 14 and max(lost) < 1.1
    assert np.exp(np.mean(np.log(lost))) < 1.03
    assert 0.9 < np.exp(np.mean(np.log(off))) < 1.2


def test_more_work_takes_longer():
    tile = best_gpu_tile(1, 197, 768, 768, LARGE)
    base = cycles(tile, 1, 197, 768, 768, LARGE)
    assert base < cycles(tile, 1, 197, 768, 3072, LARGE) < cycles(tile, 8, 197, 768, 3072, LARGE)


# What a target names has memories that are known.
SMALL_CACHE = GpuMatmulParams.of(Limits.of(parse_target("adreno-740")))


def test_a_target_that_names_no_device_keeps_the_usual_order():
    sizes = GpuMatmulParams.of(Limits.of(tvm.target.Target("opencl")))
    assert {best_gpu_tile(*shape, sizes).band for shape in SHAPES} == {0}
    assert sizes.limits.processors == LARGE.limits.processors


def test_a_cache_that_holds_everything_keeps_the_usual_order():
    sizes = replace(SMALL_CACHE, cached_bytes=1 << 30)
    assert {best_gpu_tile(*shape, sizes).band for shape in SHAPES} == {0}


@pytest.mark.parametrize("shape", [(1, 196, 1024, 256), (1, 2048, 8192, 2048)], ids=str)
def test_a_small_cache_takes_bands(shape):
    tile = best_gpu_tile(*shape, SMALL_CACHE)
    assert 0 < tile.band < -(-shape[2] // tile.columns)
    assert cycles(tile, *shape, SMALL_CACHE) < cycles(replace(tile, band=0), *shape, SMALL_CACHE)


def test_few_processors_need_no_split():
    assert best_gpu_tile(1, 128, 768, 3072, LARGE).splits > 1
    assert best_gpu_tile(1, 128, 768, 3072, SMALL_CACHE).splits == 1


def test_few_groups_get_threads_that_share_their_terms():
    assert best_gpu_tile(1, 128, 768, 768, LARGE).slices > 1
    assert best_gpu_tile(1, 4096, 4096, 1024, LARGE).slices == 1


def test_slow_memory_costs_time():
    slow = replace(SMALL_CACHE, rates=replace(SMALL_CACHE.rates, memory=SMALL_CACHE.rates.memory / 10))
    tile = best_gpu_tile(1, 196, 768, 256, SMALL_CACHE)
    assert cycles(tile, 1, 196, 768, 256, slow) > 2 * cycles(tile, 1, 196, 768, 256, SMALL_CACHE)


@pytest.mark.parametrize("name", ["adreno-740", "mali-g57", "mali-g76"])
def test_no_thread_keeps_more_than_the_device_has_registers(name):
    sizes = GpuMatmulParams.of(Limits.of(parse_target(name)))
    found = candidates(768, sizes)
    assert found and candidates(768, sizes.in_texels())
    assert all(tile.values < TARGETS[name].registers for tile in found)
    assert sizes.limits.processors == TARGETS[name].cores


def test_sixty_four_registers_hold_no_tile_of_eight_by_eight():
    large = {(t.thread_rows, t.thread_columns) for t in candidates(768, LARGE)}
    mali = {(t.thread_rows, t.thread_columns) for t in candidates(768, GpuMatmulParams.of(Limits.of(MALI)))}
    assert (8, 8) in large and max(rows * columns for rows, columns in mali) == 16


def test_threads_have_many_results_where_they_read_vectors_of_shared_memory():
    def most(target: tvm.target.Target) -> int:
        found = candidates(768, GpuMatmulParams.of(Limits.of(target)))
        return max(tile.thread_rows * tile.thread_columns for tile in found)

    assert (most(tvm.target.Target("opencl")), most(parse_target("cuda"))) == (64, 128)


def test_without_a_device_nothing_is_left_out():
    generic = GpuMatmulParams.of(Limits.of(tvm.target.Target("opencl")))
    assert candidates(768, generic) == candidates(
        768, replace(generic, limits=replace(generic.limits, registers=10**6))
    )

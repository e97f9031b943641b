# SPDX-License-Identifier: Apache-2.0
"""Which tiles a product by matrix instructions gets."""

import json
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from smartmem_tvm.schedule.gpu import cost
from smartmem_tvm.schedule.gpu.gemm import ptx
from smartmem_tvm.schedule.gpu.matrix.matrix_tile import (
    MatrixParams,
    MatrixTile,
    Shape,
    best_matrix_tile,
    described,
    divided,
    fits,
)

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}


def cycles(candidate, shape, known) -> float:
    return cost.cycles(described(candidate, shape, known), known)


def params(arch: str) -> MatrixParams | None:
    return MatrixParams.of(tvm.target.Target({**FACTS, "arch": arch}, host="llvm"))


@pytest.mark.parametrize(
    ("arch", "kibibytes", "groups"),
    [("sm_80", 163, False), ("sm_86", 99, False), ("sm_90", 227, False), ("sm_90a", 227, True)],
)
def test_what_an_architecture_has(arch, kibibytes, groups):
    known = params(arch)
    assert known.shared_bytes == kibibytes * 1024
    assert any(each.tile.group for each in known.candidates) == groups


@pytest.mark.parametrize("arch", ["sm_61", "sm_75"])
def test_older_architectures_have_none(arch):
    assert params(arch) is None


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 197, 768, 3072),
        Shape(12, 197, 197, 64),
        Shape(1, 8, 8, 8),
        Shape(1, 4096, 4096, 4096),
        Shape(1, 64, 49, 9000),
    ],
    ids=str,
)
def test_the_tile_of_every_shape_fits(arch, shape):
    known = params(arch)
    tile = best_matrix_tile(shape, known)
    assert fits(tile, shape, known) and tile.shared_bytes(known.element) <= known.shared_bytes


def test_long_sums_with_few_results_are_divided():
    known = params("sm_90a")
    assert best_matrix_tile(Shape(1, 49, 768, 3072), known).splits > 1
    assert best_matrix_tile(Shape(1, 4096, 4096, 4096), known).splits == 1


def test_large_products_get_large_tiles():
    known = params("sm_90a")
    small, large = (best_matrix_tile(Shape(1, n, n, 512), known) for n in (128, 8192))
    assert small.rows * small.columns < large.rows * large.columns


def test_what_passes_through_registers_takes_longer():
    known = params("sm_90a")
    shape = Shape(1, 256, 256, 1024)
    for candidate in known.candidates:
        assert cycles(candidate, replace(shape, right_held=True), known) > cycles(candidate, shape, known)


@pytest.mark.parametrize(
    "tile",
    [
        MatrixTile(64, 24, 64, 16, 24, 4, group=True),  # columns that are no pairs of fragments
        MatrixTile(32, 64, 64, 16, 64, 4, group=True),  # half a group of warps
        MatrixTile(64, 64, 64, 16, 64, 2, group=True),  # nothing ahead
        MatrixTile(64, 64, 24, 32, 32, 3),  # no whole number of instructions
        MatrixTile(256, 256, 128, 64, 64, 4),  # more shared memory than there is
    ],
    ids=str,
)
def test_what_the_instructions_cannot_do(tile):
    assert not fits(tile, Shape(1, 4096, 4096, 4096), params("sm_90a"))


@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 64, 100352, 147, True, True),
        Shape(1, 512, 6272, 256, False, True),
        Shape(1, 64, 100352, 576, True, True),
    ],
    ids=str,
)
def test_elements_that_pass_through_registers_find_room_there(shape):
    """Convolutions of ResNet-50 on eight images: larger tiles kept 3 KB of each thread's numbers in memory."""
    known = params("sm_90a")
    wide = next(each.tile for each in known.candidates if each.tile.columns == 256)
    assert fits(wide, replace(shape, left_held=False, right_held=False), known) and not fits(wide, shape, known)
    tile = best_matrix_tile(shape, known)
    assert tile.values + 3 * shape.held(tile) // tile.threads <= 255 - 16


@pytest.mark.parametrize("kind", ptx.ELEMENTS)
def test_candidates_of_other_types_are_as_many_bytes_in_the_same_time(kind):
    known, element = params("sm_90a"), ptx.ELEMENTS[kind]
    own = known.multiplying(element, turned=False)
    for mine, halves in zip(own.candidates, known.candidates, strict=True):
        assert mine.tile.shared_bytes(element) == halves.tile.shared_bytes(ptx.HALF)
        assert mine.tile.steps(element) == halves.tile.steps(ptx.HALF) and mine.busy == halves.busy
        assert fits(mine.tile, Shape(1, 4096, 4096, 4096), own)
    slow = cycles(own.candidates[0], Shape(1, 4096, 4096, 4096), own)
    fast = cycles(known.candidates[0], Shape(1, 4096, 4096, 4096), known)
    assert slow == pytest.approx(fast * element.bytes / 2, rel=0.02)


def test_terms_of_four_bytes_that_lie_apart_are_for_single_warps():
    known = params("sm_90a")
    assert known.multiplying(ptx.HALF, turned=True).warp_groups
    apart = known.multiplying(ptx.ELEMENTS["tf32"], turned=True)
    assert not apart.warp_groups and not any(each.tile.group for each in apart.candidates)
    tile = known.multiplying(ptx.ELEMENTS["tf32"], turned=False).candidates[0].tile
    assert not fits(tile, Shape(1, 4096, 4096, 4096), apart)


def test_tiles_are_chosen_by_what_was_measured():
    """Of what was measured of each product the model takes what is nearly fastest: 1.05x of its time in the mean."""
    found = json.loads(Path(__file__).parents[4].joinpath("benchmarks", "matrix_tiles.json").read_text("utf-8"))
    known, lost = params("sm_90a"), []
    for row in found["rows"]:
        shape, measured = Shape(1, *row["shape"]), {tuple(each["tile"]): each["us"] for each in row["tiles"]}
        able = [one for each in known.candidates for one in divided(each, shape, known.limits.processors)]
        able = [each for each in able if astuple(each.tile) in measured]
        best = min(able, key=lambda each: cycles(each, shape, known))
        lost.append(measured[astuple(best.tile)] / min(measured.values()))
    assert len(lost) == 18 and max(lost) < 1.5
    assert np.exp(np.mean(np.log(lost))) < 1.05

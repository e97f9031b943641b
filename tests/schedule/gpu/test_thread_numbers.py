# SPDX-License-Identifier: Apache-2.0
"""Numbers that a thread holds and instructions of its loop, beside kernels that Mesa's compiler made."""

import pytest

from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuMatmulParams, GpuTile, best_gpu_tile, candidates
from smartmem_tvm.schedule.gpu.thread_numbers import Held, gemm_trip, of_chain, of_rows, sliding
from smartmem_tvm.schedule.gpu.waves import allotted, most_registers, spills
from smartmem_tvm.schedule.gpu.window.window_tiles import GpuWindowParams, product_tile
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import Limits, parse_target

# rows and columns of a thread, staged elements, halves, threads, local memory -> registers on Adreno 740 and 660
COMPILED = [
    (8, 8, 32, False, 64, 8432, (48, 48)),
    (8, 8, 16, False, 256, 16624, (48, 32)),
    (8, 4, 24, False, 64, 6384, (32, 32)),
    (4, 4, 16, False, 64, 4336, (16, 16)),
    (8, 4, 24, True, 64, 3192, (24, 32)),
    (8, 8, 32, True, 64, 4336, (42, 42)),
]


@pytest.mark.parametrize(("rows", "columns", "staged", "halves", "threads", "local_bytes", "expected"), COMPILED)
def test_registers_of_gemms(rows, columns, staged, halves, threads, local_bytes, expected):
    numbers = Held(rows, columns, staged, halves).gemm
    cores = [TARGETS[name].core for name in ("adreno-740", "adreno-660")]
    assert tuple(allotted(core, numbers, threads, local_bytes, halves) for core in cores) == expected


def test_a_thread_holds_more_with_more_results_and_less_in_halves():
    for rows in (2, 4, 8):
        floats, halves = (Held(rows, 4, 16, each) for each in (False, True))
        assert halves.gemm < floats.gemm < Held(2 * rows, 4, 16).gemm
        assert Held(rows, 4, 0).gemm < floats.gemm
        assert Held(rows, 4, 16, True).gemm > Held(rows, 4, 0, True).gemm
        assert floats.window <= Held(2 * rows, 4, 16).window
        assert Held(rows, 4, 16, terms=32).gemm > floats.gemm == Held(rows, 4, 16, terms=8).gemm
    assert sliding(16, 1, True) < sliding(16, 1, False) < sliding(16, 2, False)
    assert of_rows(2, 4, 64) < of_rows(2, 4, 48) < of_chain()


@pytest.mark.parametrize(
    ("rows", "columns", "terms", "copied", "halves", "instructions"),
    [
        (8, 8, 16, 8, False, 1195),
        (8, 8, 16, 4, False, 1190),
        (8, 4, 16, 6, False, 639),
        (8, 4, 8, 3, False, 337),
        (4, 4, 16, 4, False, 336),
        (8, 8, 16, 8, True, 1416),
        (8, 4, 16, 6, True, 714),
    ],
)
def test_instructions_of_a_trip(rows, columns, terms, copied, halves, instructions):
    assert gemm_trip(rows, columns, terms, copied, halves) == pytest.approx(instructions, rel=0.1)


SHAPES = [(1, 3136, 256, 256), (1, 197, 384, 1536), (1, 1000, 208, 512), (1, 729, 128, 32), (12, 49, 49, 32)]


@pytest.mark.parametrize("name", [name for name in TARGETS if name.startswith("adreno")])
@pytest.mark.parametrize("factor", ["float32", "float16"])
def test_no_tile_of_a_gemm_spills(name, factor):
    params = GpuMatmulParams.of(Limits.of(parse_target(name))).in_texels().of_type(factor)
    core = TARGETS[name].core
    for shape in SHAPES:
        tile = best_gpu_tile(*shape, params)
        assert tile is not None and not spills(core, tile.numbers(params.halves), tile.threads)


def test_a_660_has_8_x_8_results_only_in_one_wave():
    """128 and 256 threads have 32 registers each there, in which 8 x 8 sums spill."""
    params = GpuMatmulParams.of(Limits.of(parse_target("adreno-660")))
    core = TARGETS["adreno-660"].core
    assert [most_registers(core, threads) for threads in (64, 128, 256)] == [48, 32, 32]
    large = [tile for tile in candidates(1024, params) if tile.thread_rows * tile.thread_columns >= 64]
    assert max(tile.unroll for tile in candidates(1024, params)) == 16
    assert large and {tile.threads for tile in large} == {64}


def test_a_610_has_no_wide_window():
    params = GpuWindowParams.of(Limits.of(parse_target("adreno-610")))
    tile = product_tile(1, 64, 3136, 576, 9, params)
    core = TARGETS["adreno-610"].core
    assert not spills(core, Held(tile.thread_rows, tile.thread_columns, 1).window, tile.threads)


def test_other_targets_have_their_registers_of_before():
    for name in ("opencl", "mali-g76"):
        params = GpuMatmulParams.of(Limits.of(parse_target(name)))
        assert params.of_type("float16") is params and params.compiled_core is None
        tile = GpuTile(64, 64, 16, 4, 4)
        assert tile.registers == tile.values + 40

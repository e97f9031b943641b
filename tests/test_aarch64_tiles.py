# SPDX-License-Identifier: Apache-2.0
"""benchmarks/aarch64_tiles.py reads the right counts off compiled tiles; no llvm-mca is needed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import aarch64_tiles as tiles

from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.schedule.cpu.tile import Tile, fits

LOOP = """
main:
\tmov x0, #1
.LBB0_1:
\tldr q0, [x1], #16
.LBB0_2:
\tfmla v1.4s, v0.4s, v2.s[0]
\tfmla v3.4s, v0.4s, v2.s[1]
\tb.ne .LBB0_2
\tfmla v4.4s, v0.4s, v2.s[1]
\tcbnz x2, .LBB0_1
\tret
"""


def test_the_loop_with_the_most_products():
    loop, products = tiles.innermost(LOOP)
    assert products == 3 and len(loop) == 6 and loop[-1].split()[0] == "cbnz"
    assert tiles.innermost("main:\n\tret\n") == ([], 0)


@pytest.mark.parametrize("tile", [Tile(4, 16), Tile(3, 8), Tile(1, 4)])
def test_tiles_keep_their_sums_in_registers(tile):
    """The loop has one multiplication for each vector of sums and step, and no store."""
    loop, products = tiles.innermost(tiles.assembly(tile, tiles.target_of("neoverse-n2")))
    assert products % (tile.height * tile.width // 4) == 0
    assert not any(line.split()[0].startswith("st") for line in loop)


def test_remainders_count():
    params = CpuParams.of(tiles.target_of("cortex-a55"))
    cycles = {Tile(h, w): 100 * h + w for h in (2, 4) for w in (4, 8)}
    # Rows 4 + 4 + 2; columns 8 + 8 + 4.
    expected = 2 * (2 * 408 + 404) + (2 * 208 + 204)
    assert tiles.total(Tile(4, 8), 10, 20, cycles, params) == expected


def test_candidates_are_those_of_the_rule():
    params = CpuParams.of(tiles.target_of("cortex-a55"))
    found = tiles.candidates(params)
    assert (params.lanes, params.registers) == (4, 32) and len(found) > 20
    assert all(fits(tile.height, tile.width, params) for tile in found)

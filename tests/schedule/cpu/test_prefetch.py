# SPDX-License-Identifier: Apache-2.0
"""The next panel of a product: all of it is asked for, nothing else, and results stay the same."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm.ir.index_map import function_name
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.schedule import CpuParams, Matmul
from smartmem_tvm.schedule.core.nest import index
from smartmem_tvm.schedule.cpu.prefetch import NextPanel

LANES = 8


def requested(depth: int, width: int, tiles: int) -> tuple[set, int]:
    """Places of a panel, in elements, that are asked for; and the most lines at once."""
    places, most = set(), 0
    panel = tirx.decl_buffer([index(depth), index(width)], "float32")
    for tile in range(tiles):
        share = NextPanel(depth, width, tiles, lambda k, j: panel[k, j]).share(index(tile))
        assert depth % share.pieces == 0
        for piece in range(share.pieces):
            found = [load.indices for load in collect(share.ask(index(piece)), tvm.ir.TensorLoad)]
            places |= {int(k) * width + int(j) for k, j in found}
            most = max(most, len(found))
    return places, most


@pytest.mark.parametrize(("depth", "width", "tiles"), [(64, 16, 5), (96, 24, 33), (97, 24, 7), (1, 8, 2), (384, 8, 50)])
def test_all_lines_of_a_panel_are_asked_for_and_none_beyond_it(depth, width, tiles):
    places, _ = requested(depth, width, tiles)
    assert {place // 16 for place in places} >= set(range(depth // 2 * 2 * width // 16))
    assert min(places) == 0 and max(places) < depth * width


def test_a_tile_asks_for_a_few_lines_at_once():
    assert requested(768, 24, 50)[1] <= 6
    assert requested(3072, 24, 13)[1] <= 12


def product_of_panels(rows: int, depth: int, panels: int, width: int):
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((panels, depth, width), name="b")
    k = te.reduce_axis((0, depth), "k")
    shape = (rows, panels * width)
    return [a, b], te.compute(shape, lambda i, j: te.sum(a[i, k] * b[j // width, k, j % width], k))


def requests(func) -> list[str]:
    """Names of the buffers that are asked for, in order and once for each line."""
    calls = [call for call in collect(func.body, tvm.ir.Call) if function_name(call) == "call_llvm_intrin"]
    return [load.source.name for call in calls for load in collect(call, tvm.ir.TensorLoad)]


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("shape", [(2, 40), (7, 96), (31, 97), (101, 64)])
def test_results_of_products_that_ask_for_the_next_panel(check, shape, cores):
    rows, depth = shape
    params = CpuParams(cores=cores, serial_below=1, tile_rows=(1, 4), tile_vectors=(2,))
    inputs, output = product_of_panels(rows, depth, 5, 2 * LANES)

    def reference(a, b):
        return a @ b.swapaxes(0, 1).reshape(depth, -1)

    scheduled = check(inputs, output, reference, "Matmul", params=params)
    assert "b" in requests(scheduled)


@pytest.mark.parametrize(("rows", "panels"), [(4, 5), (40, 1)])
def test_one_tile_or_one_panel_asks_for_nothing(check, rows, panels):
    params = CpuParams(cores=1, tile_rows=(4,), tile_vectors=(2,))
    inputs, output = product_of_panels(rows, 64, panels, 2 * LANES)
    scheduled = check(inputs, output, lambda a, b: a @ b.swapaxes(0, 1).reshape(64, -1), "Matmul", params=params)
    assert "b" not in requests(scheduled)


def test_a_matrix_that_lies_in_rows_is_not_asked_for(check):
    a, b = te.placeholder((9, 64), name="a"), te.placeholder((64, 96), name="b")
    k = te.reduce_axis((0, 64), "k")
    output = te.compute((9, 96), lambda i, j: te.sum(a[i, k] * b[k, j], k))
    assert "b" not in requests(check([a, b], output, np.matmul, "Matmul"))


def test_what_an_epilogue_reads_by_row_is_asked_for_with_the_results(check):
    a, b = te.placeholder((9, 64), name="a"), te.placeholder((64, 50), name="b")
    bias, rest = te.placeholder((50,), name="bias"), te.placeholder((9, 50), name="rest")
    k = te.reduce_axis((0, 64), "k")
    total = te.compute((9, 50), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="total")
    output = te.compute((9, 50), lambda i, j: total[i, j] + bias[j] + rest[i, j], name="output")
    scheduled = check([a, b, bias, rest], output, lambda a, b, bias, rest: a @ b + bias + rest, "Matmul")
    assert set(requests(scheduled)) == {"output", "rest"}


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ({"kind": "llvm", "mcpu": "haswell"}, "prefetcht1"),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, "pldl2keep"),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu"}, ""),  # has none
    ],
)
def test_the_request_is_one_instruction_or_nothing(target, instruction):
    target = tvm.target.Target(target)
    width = CpuParams.of(target).lanes
    inputs, output = product_of_panels(64, 96, 9, width)
    func = te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main")
    rule = Matmul()
    rule.params = CpuParams(lanes=width, cores=1, tile_vectors=(1,))
    library = tvm.compile(rule.apply(func, target).mod, target=target)
    assembly = library.mod.inspect_source("asm")
    assert "llvm.prefetch" not in assembly and instruction in assembly

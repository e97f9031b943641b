# SPDX-License-Identifier: Apache-2.0
"""The next panel of a product: all of it is prefetched, nothing else, and results stay the same."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm.ir.index_map import function_name
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.schedule import CpuParams, Matmul
from smartmem_tvm.schedule.core.nest import index
from smartmem_tvm.schedule.cpu.prefetch import NextPanel, NextRows

LANES = 8


def requested(depth: int, width: int, tiles: int, steps: int = 4) -> tuple[set, int]:
    """Places of a panel, in elements, that are prefetched; and the most lines at once."""
    places, most, steps = set(), 0, min(steps, depth)
    panel = tirx.decl_buffer([index(depth), index(width)], "float32")
    analyzer = tvm.sym.Analyzer()
    for tile in range(tiles):
        prefetch = NextPanel(depth, width, tiles, steps, lambda k, j: panel[k, j]).of_tile(index(tile))
        for piece in range(depth // steps):
            found = [load.indices for load in collect(prefetch(index(piece)), tvm.ir.TensorLoad)]
            at = [tuple(int(analyzer.simplify(each)) for each in indices) for indices in found]
            assert all(row < depth and column < width for row, column in at)
            places |= {row * width + column for row, column in at}
            most = max(most, len(found))
    return places, most


SIZES = [(64, 16, 5), (96, 24, 33), (97, 24, 7), (1, 8, 2), (384, 8, 50), (768, 48, 16), (7, 8, 2)]


@pytest.mark.each_value
@pytest.mark.parametrize("steps", [1, 3, 4])
@pytest.mark.parametrize(("depth", "width", "tiles"), SIZES)
def test_all_lines_of_a_panel_are_prefetched_and_none_beyond_it(depth, width, tiles, steps):
    places, _ = requested(depth, width, tiles, steps)
    assert {place // 16 for place in places} == set(range(-(-depth * width // 16)))


def test_a_piece_prefetches_a_line_or_two():
    assert requested(768, 24, 50)[1] == 1
    assert requested(768, 48, 16)[1] == 1
    assert requested(3072, 24, 4)[1] == 2


@pytest.mark.parametrize(("depth", "height", "steps"), [(64, 8, 4), (96, 6, 4), (48, 7, 1), (64, 5, 2), (64, 1, 4)])
def test_all_lines_of_the_next_rows_are_prefetched_and_none_beyond_them(depth, height, steps):
    rows, places, analyzer = tirx.decl_buffer([index(height), index(depth)], "float32"), set(), tvm.sym.Analyzer()
    prefetch = NextRows(height, steps, lambda i, k: rows[i, k]).beside(None)
    for piece in range(depth // steps):
        for load in collect(prefetch(index(piece)), tvm.ir.TensorLoad):
            row, step = (int(analyzer.simplify(each)) for each in load.indices)
            assert row < height and step < depth
            places.add((row, step // 16))
    assert places == {(row, line) for row in range(height) for line in range(-(-depth // 16))}


def product_of_panels(rows: int, depth: int, panels: int, width: int):
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((panels, depth, width), name="b")
    k = te.reduce_axis((0, depth), "k")
    shape = (rows, panels * width)
    return [a, b], te.compute(shape, lambda i, j: te.sum(a[i, k] * b[j // width, k, j % width], k))


def requests(func) -> list[str]:
    """Names of the buffers that are prefetched, in order and once for each line."""
    calls = [call for call in collect(func.body, tvm.ir.Call) if function_name(call) == "call_llvm_intrin"]
    return [load.source.name for call in calls for load in collect(call, tvm.ir.TensorLoad)]


@pytest.mark.each_value
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("shape", [(2, 40), (7, 96), (31, 97), (101, 64)])
def test_results_of_products_that_prefetch_the_next_panel(check, shape, cores):
    rows, depth = shape
    params = CpuParams(cores=cores, serial_below=1, tile_rows=(1, 4), tile_vectors=(2,))
    inputs, output = product_of_panels(rows, depth, 5, 2 * LANES)

    def reference(a, b):
        return a @ b.swapaxes(0, 1).reshape(depth, -1)

    scheduled = check(inputs, output, reference, "Matmul", params=params)
    assert "b" in requests(scheduled)


@pytest.mark.parametrize(("rows", "panels"), [(4, 5), (40, 1)])
def test_one_tile_or_one_panel_prefetches_nothing(check, rows, panels):
    params = CpuParams(cores=1, tile_rows=(4,), tile_vectors=(2,))
    inputs, output = product_of_panels(rows, 64, panels, 2 * LANES)
    scheduled = check(inputs, output, lambda a, b: a @ b.swapaxes(0, 1).reshape(64, -1), "Matmul", params=params)
    assert "b" not in requests(scheduled)


def test_a_matrix_that_lies_in_rows_is_not_prefetched(check):
    a, b = te.placeholder((9, 64), name="a"), te.placeholder((64, 96), name="b")
    k = te.reduce_axis((0, 64), "k")
    output = te.compute((9, 96), lambda i, j: te.sum(a[i, k] * b[k, j], k))
    assert "b" not in requests(check([a, b], output, np.matmul, "Matmul"))


def test_what_an_epilogue_reads_by_row_is_prefetched_with_the_results(check):
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

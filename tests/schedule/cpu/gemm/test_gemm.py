# SPDX-License-Identifier: Apache-2.0
"""The skeleton of products on CPUs: drawn sizes, tiles, chunks and parts of the depth, compared with numpy."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx

from smartmem_tvm.schedule.core.nest import Scope, allocate, block, index, scratch, store
from smartmem_tvm.schedule.cpu.gemm.axis import Axis, Span, Strip
from smartmem_tvm.schedule.cpu.gemm.chunks import Chunks
from smartmem_tvm.schedule.cpu.gemm.depth import FusedDepth
from smartmem_tvm.schedule.cpu.gemm.epilogue import Stored
from smartmem_tvm.schedule.cpu.gemm.fma_kernel import FmaKernel
from smartmem_tvm.schedule.cpu.gemm.gemm import DepthPart, Gemm, in_parts
from smartmem_tvm.schedule.cpu.gemm.operands import Reader, in_place

LANES, FLOAT = 4, "float32"
ZERO = tirx.const(0, FLOAT)


def run(nest, buffers: list, arrays: list[np.ndarray]) -> None:
    """Compile a nest for this machine, and run it on arrays."""
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", nest))
    func = tirx.PrimFunc(buffers, root).with_attrs({"global_symbol": "main", "s_tir": True})
    tensors = [tvm.runtime.tensor(each) for each in arrays]
    tvm.compile(tvm.IRModule({"main": func}), target="llvm")["main"](*tensors)
    arrays[-1][:] = tensors[-1].numpy()


def buffer(name: str, *shape: int):
    return tirx.decl_buffer([index(n) for n in shape], FLOAT, name, layout=None)


def counted(seen, at):
    return store(seen, seen[at] + tirx.const(1, FLOAT), at)


def pieces_of(draw, total: int, sizes: list[int]) -> list[tuple[int, int, int]]:
    """Return (first, count, size) of strips that cover an axis."""
    spans, first = [], 0
    while first < total:
        size = int(min(draw.choice(sizes), total - first))
        count = int(draw.integers(1, (total - first) // size + 1))
        spans.append((first, count, size))
        first += count * size
    return spans


def drawn_product(seed: int, rows_outside: bool):
    """Return a product of drawn sizes as a nest, with its buffers and arrays."""
    draw, scope = np.random.default_rng(seed), Scope()
    rows, columns, depth = (int(draw.integers(1, most)) for most in (24, 40, 30))
    a, b, c = buffer("a", rows, depth), buffer("b", depth, columns), buffer("c", rows, columns)
    arrays = [draw.standard_normal(shape).astype(FLOAT) for shape in ((rows, depth), (depth, columns))]
    length = -(-depth // int(draw.integers(1, 4)))
    parts = -(-depth // length)

    def over_parts(outer: Strip, over):
        """Sums are kept in whole vectors for the tiles of an outer panel: rows of the result, columns of the panel."""
        partial_sums = scratch([rows, outer.size], FLOAT, "kept")
        lengths = parts, length, depth
        return allocate(
            [partial_sums], block(*in_parts(scope, lengths, lambda at, _: (partial_sums, at.first), over, begun=False))
        )

    micro = FmaKernel(
        *(scope, LANES, FLOAT),
        in_place(lambda row, k: a[row, k]),
        Reader(lambda strip, step: lambda j: b[step.number, strip.first + j]),
        FusedDepth(scope, depth, int(draw.integers(1, 5))),
        Stored(lambda value, row, column: store(c, value, row, column), ZERO),
        parts=over_parts if parts > 1 and not rows_outside else None,
    )
    axes = Axis.whole(*pieces_of(draw, rows, [1, 3, 4])), Axis.whole(*pieces_of(draw, columns, [LANES, 2 * LANES, 5]))
    nest = Gemm(scope, micro, *axes, rows_outside).nest()
    return nest, [a, b, c], [*arrays, np.full((rows, columns), np.nan, FLOAT)]


@pytest.mark.parametrize("rows_outside", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_products_of_drawn_sizes_and_pieces(seed, rows_outside):
    nest, buffers, arrays = drawn_product(seed, rows_outside)
    run(nest, buffers, arrays)
    np.testing.assert_allclose(arrays[2], arrays[0] @ arrays[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("as_product", [False, True])
@pytest.mark.parametrize(("total", "size", "parts"), [(24, 4, 3), (23, 4, 3), (7, 2, 9), (3, 4, 2), (41, 5, 4)])
def test_the_chunks_of_an_axis_cover_it_once(total, size, parts, as_product):
    scope, chunks, seen = Scope(), Chunks.of(total // size, parts), buffer("seen", total)
    rest = total % size
    ends = [Span(total - rest, 1, rest)] if rest else []

    def chunk(number):
        axis = Axis(ends, size, chunks, number, only_ends=total < size, as_product=as_product)

        def count(strip: Strip):
            return scope.loop(strip.size, lambda i: counted(seen, strip.first + i))

        return axis.each(scope, count)

    found = np.zeros(total, FLOAT)
    run(scope.loop(chunks.count, chunk, "chunk"), [seen], [found])
    np.testing.assert_array_equal(found, np.ones(total))


def test_pieces_are_numbered_within_their_chunk():
    numbers = []

    def note(strip: Strip):
        numbers.append((int(strip.first), strip.size, strip.kept, int(strip.number)))
        return block()

    Axis([Span(0, 1, 8), Span(8, 1, 8), Span(16, 1, 4, kept=3)]).each(Scope(), note)
    assert numbers == [(0, 8, 8, 0), (8, 8, 8, 1), (16, 4, 3, 2)]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("parts", "length", "depth"), [(2, 5, 9), (2, 4, 8), (3, 4, 11), (5, 2, 9)])
def test_parts_cover_the_depth_once_and_hand_sums_on(parts, length, depth, begun):
    scope, seen, kinds = Scope(), buffer("seen", depth), []

    def over(part: DepthPart):
        kinds.append((part.before is not None, part.after is not None))
        return scope.loop(
            part.length, lambda k: store(seen, seen[part.first + k] + tirx.const(1, FLOAT), part.first + k)
        )

    statements = in_parts(scope, (parts, length, depth), lambda rows, columns: None, over, begun)
    found = np.zeros(depth, FLOAT)
    run(block(*statements), [seen], [found])
    np.testing.assert_array_equal(found, np.ones(depth))
    assert (
        kinds[0] == (begun, True) and kinds[-1] == (True, False) and all(each == (True, True) for each in kinds[1:-1])
    )

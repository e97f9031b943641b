# SPDX-License-Identifier: Apache-2.0
"""Accesses of kernels that can be counted by hand, and their misses against a simulation thread by thread."""

from collections import OrderedDict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

from memory_kernels import GROUP, N, copy, matmul, stencil, transposed, vector_copy, vector_erf, virtual_matmul
from smartmem_tvm.analysis import access_pattern
from smartmem_tvm.analysis.access_pattern import Unmodelled, launches
from smartmem_tvm.analysis.memory_access import Accesses, Effort, kernel_accesses, usual_effort
from smartmem_tvm.ir.kernel import KEY_AXIS
from smartmem_tvm.tables.targets import TARGETS

ADRENO, CPU, H100 = TARGETS["adreno-740"], TARGETS["cpu"], TARGETS["h100"]
GROUPS = N * N // GROUP
ROW = N * 4 // 64  # lines of a row
ALL = Effort(1 << 30, 1 << 30)

# Kernel -> loads, stores, lines loaded and stored, all with 64 threads to a sub-group and lines of 16 elements.
BY_HAND = {
    "copy": (copy, N * N, N * N, ROW * N, ROW * N),
    "transposed": (transposed, N * N, N * N, N * N, ROW * N),
    "vectors": (vector_copy, N * N // 4, N * N // 4, ROW * N, ROW * N),
    # Four loads and stores for a thread, each of them of every line that its neighbours read.
    "numbers": (vector_erf, N * N, N * N, 4 * ROW * N, 4 * ROW * N),
    # Three loads but at the edge, and the sum, which stays in a register from its first value on, once.
    "stencil": (stencil, 3 * N * N - 3 * N + N * N, 2 * N * N, 4 * ROW * N, 2 * ROW * N),
    "matmul": (lambda: matmul(1), 2 * N**3, N * N, GROUPS * N * (1 + 4), ROW * N),
    # Four virtual threads: each has a row of A, and what one of them has read of B is there for the others.
    "virtual threads": (lambda: virtual_matmul(4), N**3 + N**3 // 4, N * N, N // 4 * N * (4 * 1 + 4), ROW * N),
    "matmul in tiles": (lambda: matmul(8), 2 * N**3, N * N, GROUPS * N * (8 + 1), GROUPS * 8),
}


@pytest.mark.parametrize("effort", [None, ALL], ids=["usual", "all"])
@pytest.mark.parametrize("what", BY_HAND)
def test_by_hand(what, effort):
    make, *expected = BY_HAND[what]
    got = kernel_accesses(make(), ADRENO, effort)
    assert (got.loads, got.stores, got.load_lines, got.store_lines) == pytest.approx(tuple(expected))
    assert got.l1_misses == pytest.approx(got.lines)  # buffers have no first level there
    matrices = 3 if "matmul" in what or "virtual" in what else 2
    assert got.l2_misses == pytest.approx(matrices * ROW * N)  # all fits: each line comes once
    assert got.texel_loads == got.texel_stores == 0


@pytest.mark.parametrize("what", ["stencil", "matmul in tiles", "virtual threads"])
def test_what_is_on_chip_need_not_be_made_smaller(what, monkeypatch):
    """The pass that does takes half of the time of all, and leaves the accesses to memory as they are."""
    (make, *_), run = BY_HAND[what], []
    compact = s_tir.transform.CompactBufferAllocation
    monkeypatch.setattr(s_tir.transform, "CompactBufferAllocation", lambda: run.append(compact()) or run[-1])
    found = kernel_accesses(make(), ADRENO)
    assert not run
    workspace = SimpleNamespace(alloc_buffers=[tirx.decl_buffer([4], "float32", "w")])
    monkeypatch.setattr(access_pattern, "collect", lambda *_: [workspace])
    assert kernel_accesses(make(), ADRENO) == found and len(run) == 1


# Kernel -> groups' and threads' accesses one after the other: (tensor, element) or None.
def read_transposed(g, t):
    i, j = divmod(g * GROUP + t, N)
    return [("A", j * N + i), ("B", i * N + j)]


def read_tiles(tile):
    across = GROUP // tile

    def program(g, t):
        i, j = g // (N // across) * tile + t // across, g % (N // across) * across + t % across
        return [each for k in range(N) for each in (("A", i * N + k), ("B", k * N + j))] + [("C", i * N + j)]

    return program


def read_neighbours(g, t):
    i, j = divmod(g * GROUP + t, N)
    first = [("B", i * N + j)] * 2  # its first value, and the same again
    return first + [step for k in range(3) for step in ([("A", i * N + j + k)] if j + k < N else [None])] + [first[0]]


def simulate(program, row, size):
    """Misses of a second level that holds the `size` lines used last, thread by thread."""
    recent, missed, lines = OrderedDict(), 0, 0
    for begin in range(0, GROUPS, row.cores):
        groups = [[program(g, t) for t in range(GROUP)] for g in range(begin, min(GROUPS, begin + row.cores))]
        for step in range(len(groups[0][0])):
            for threads in groups:
                for first in range(0, GROUP, row.sub_group):
                    asked = {each[step] for each in threads[first : first + row.sub_group]} - {None}
                    for line in sorted({(name, element * 4 // 64) for name, element in asked}):
                        lines += 1
                        missed += line not in recent
                        recent[line] = True
                        recent.move_to_end(line)
                        if len(recent) > size:
                            recent.popitem(last=False)
    return lines, missed


@pytest.mark.parametrize("size", [40, 96, 300])
@pytest.mark.parametrize(
    ("kernel", "program"),
    [(transposed, read_transposed), (lambda: matmul(1), read_tiles(1)), (lambda: matmul(8), read_tiles(8))],
    ids=["transposed", "matmul", "tiles"],
)
def test_misses_of_a_small_cache(kernel, program, size):
    row = replace(ADRENO, sub_group=16, cores=3, l2_bytes=size * 64, l2_ways=size)
    got = kernel_accesses(kernel(), row)
    lines, missed = simulate(program, row, size)
    assert got.lines == pytest.approx(lines)
    assert got.l2_misses == pytest.approx(missed)
    assert missed > 3 * ROW * N or size > 40  # otherwise nothing is told apart


def test_a_device_with_more_cores_is_given_more_effort():
    assert usual_effort(ADRENO) == usual_effort(CPU) == Effort()
    assert usual_effort(H100) == Effort(lines=22 * Effort.lines)


def test_misses_of_a_kernel_with_a_guard():
    row = replace(ADRENO, sub_group=16, cores=3, l2_bytes=8 * 64, l2_ways=8)
    got = kernel_accesses(stencil(), row)
    lines, missed = simulate(read_neighbours, row, 8)
    assert (got.lines, got.l2_misses) == pytest.approx((lines, missed), rel=0.01)


@pytest.mark.parametrize("size", [64, 192, 600])
@pytest.mark.parametrize("kernel", [transposed, stencil, lambda: matmul(1), lambda: matmul(8)])
def test_a_sample_is_near_to_all(kernel, size):
    row = replace(ADRENO, sub_group=16, cores=2, l2_bytes=size * 64, l2_ways=8)
    every = kernel_accesses(kernel(), row, ALL)
    sample = kernel_accesses(kernel(), row, Effort(1 << 15, 1 << 14, windows=1))
    assert (sample.loads, sample.stores) == pytest.approx((every.loads, every.stores), rel=0.05)
    assert sample.lines == pytest.approx(every.lines, rel=0.05)
    # What fills the cache at the start is not in the sample.
    assert sample.l2_misses == pytest.approx(every.l2_misses, rel=0.2, abs=0.4 * size)


def test_a_line_has_twice_as_many_texels_of_halves():
    """Side by side: 2 x 2 texels of four float32 numbers, 2 rows of 4 texels of halves."""
    single, half = (kernel_accesses(vector_copy("global.texture", dtype), ADRENO) for dtype in ("float32", "float16"))
    assert half.texel_loads == single.texel_loads == N * N / 4
    assert single.load_lines == single.store_lines == N * N / 16
    assert half.load_lines == half.store_lines == N * N / 32


def test_textures_are_counted_in_texels_and_near_in_both_directions():
    got = kernel_accesses(vector_copy("global.texture"), ADRENO)
    texels = N * N // 4
    assert (got.loads, got.stores, got.texel_loads, got.texel_stores) == (texels,) * 4
    # 64 threads are four rows of 16 texels; a line holds two by two.
    assert (got.load_lines, got.store_lines) == (texels // 4, texels // 4)
    thin = kernel_accesses(vector_copy("global.texture"), replace(ADRENO, sub_group=16))
    assert thin.load_lines == texels // 2  # one row of threads asks for half of each line
    assert thin.l1_misses == texels // 4 + thin.store_lines  # the other half is in the first level
    assert thin.l2_misses == got.l2_misses == 2 * texels // 4


def test_sectors_of_a_line_are_counted_apart():
    assert kernel_accesses(copy(), H100).load_lines == N * N * 4 // 32
    got = kernel_accesses(transposed(), H100)
    assert got.load_lines == N * N
    assert got.l2_misses == 2 * N * N * 4 // 32


def scaled(extent):
    """A loop over rows with a factor read anew in each, and a result that every row is added to."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((extent, 64), "float32"), f: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            for i in range(extent):
                with T.sblock("B"):
                    vi, vt = T.axis.remap("RS", [i, t])
                    B[vt] = B[vt] + A[vi, vt] * f[vt]

    return kernel


def test_what_does_not_change_is_accessed_once():
    got = kernel_accesses(scaled(10), ADRENO)
    assert (got.loads, got.stores) == (64 * (10 + 1 + 1), 64)


def test_a_group_of_one_thread_on_a_cpu():
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((64, 256), "float32"), B: T.Buffer((64, 256), "float32")):
        for i in T.parallel(64):
            for j in range(32):
                for v in T.vectorized(8):
                    with T.sblock("B"):
                        vi, vj = T.axis.spatial(64, i), T.axis.spatial(256, j * 8 + v)
                        B[vi, vj] = A[vi, vj]

    got = kernel_accesses(kernel, CPU)
    assert launches(kernel)[0].axes == {"parallel": 64}
    assert (got.loads, got.load_lines, got.l1_misses) == (64 * 256 // 4, 64 * 32, 2 * 64 * 256 * 4 // 64)


def test_indices_that_are_data():
    @T.prim_func(s_tir=True)
    def gather(table: T.Buffer((1000, 64), "float32"), ids: T.Buffer((32,), "int64"), B: T.Buffer((32, 64), "float32")):
        for g in T.thread_binding(32, thread="blockIdx.x"):
            for t in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("B"):
                    i, j = T.axis.remap("SS", [g, t])
                    B[i, j] = table[ids[i], j]

    got = kernel_accesses(gather, ADRENO)
    assert (got.loads, got.load_lines) == (2 * 32 * 64, 32 * (1 + 4))
    assert 32 * 4 < got.l2_misses - 32 * 4 - 4 <= 32 * 4 + 32 or got.l2_misses <= 2 * 32 * 4 + 4


def test_loops_that_depend_on_data_are_not_guessed():
    @T.prim_func(s_tir=True)
    def search(A: T.Buffer((64,), "int32"), B: T.Buffer((1,), "int32")):
        with T.sblock("root"):
            B[0] = 0
            while A[B[0]] < 0:
                B[0] = B[0] + 1

    with pytest.raises(Unmodelled, match="While"):
        kernel_accesses(search, CPU)


def test_a_loop_has_at_most_the_trips_of_any_thread():
    @T.prim_func(s_tir=True)
    def triangle(A: T.Buffer((8, 64), "float32"), B: T.Buffer((8, 64), "float32")):
        for g in T.thread_binding(8, thread="blockIdx.x"):
            for t in T.thread_binding(64, thread="threadIdx.x"):
                for k in range(T.min(g, 5)):
                    with T.sblock("B"):
                        j, m = T.axis.remap("SS", [t, k])
                        B[m, j] = A[m, j]

    got = kernel_accesses(triangle, ADRENO, ALL)
    assert got.loads == got.stores == 64 * (0 + 1 + 2 + 3 + 4 + 5 + 5 + 5)


def test_a_loop_whose_trips_are_data_is_not_guessed():
    @T.prim_func(s_tir=True)
    def some(count: T.Buffer((1,), "int64"), A: T.Buffer((8, 64), "float32"), B: T.Buffer((8, 64), "float32")):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            for k in range(T.min(count[0], T.int64(8))):
                with T.sblock("B"):
                    m, j = T.axis.remap("SS", [k, t])
                    B[m, j] = A[m, j]

    with pytest.raises(Unmodelled, match="the extent of loop k is not a constant"):
        kernel_accesses(some, ADRENO)
    # Attention over a cache has such a loop, and a length among its inputs: then all rows of the cache are counted.
    bounded = some.with_attr(KEY_AXIS, [1, 0, 2])
    assert kernel_accesses(bounded, ADRENO).loads == kernel_accesses(bounded, ADRENO).stores == 8 * 64


def test_sums():
    one = Accesses(loads=2.0, load_lines=1.0)
    assert one + one == one * 2 == Accesses(loads=4.0, load_lines=2.0)
    assert (one * 3).lines == 3 and tvm.__version__

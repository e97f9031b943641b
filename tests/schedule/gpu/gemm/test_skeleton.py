# SPDX-License-Identifier: Apache-2.0
"""Rules fill the skeleton in with staging and a micro-kernel; threads and fragments take each place of a tile once."""

from itertools import product

import pytest
import tvm
from tvm import te, topi

from smartmem_tvm.ir.index_map import evaluate
from smartmem_tvm.schedule.core.nest import fresh
from smartmem_tvm.schedule.gpu.gemm.mma import Mma, Wgmma
from smartmem_tvm.schedule.gpu.gemm.simt import Fragment, Simt, position
from smartmem_tvm.schedule.gpu.gemm.simt_slices import SimtSlices
from smartmem_tvm.schedule.gpu.gemm.skeleton import GpuGemm
from smartmem_tvm.schedule.gpu.gemm.staging import Gathered, Pipelined, Prefetched
from smartmem_tvm.schedule.gpu.launch import registers
from smartmem_tvm.schedule.gpu.matmul.matmul import GpuMatmul
from smartmem_tvm.schedule.gpu.matrix.matrix import GpuMatrix
from smartmem_tvm.schedule.gpu.matrix.matrix_tile import MatrixTile
from smartmem_tvm.schedule.gpu.window.window import WindowProduct

HOPPER = tvm.target.Target({"kind": "cuda", "arch": "sm_90a", "max_threads_per_block": 1024}, host="llvm")


def gemm(dtype):
    x, w = te.placeholder((64, 64), dtype, "x"), te.placeholder((64, 64), dtype, "w")
    k = te.reduce_axis((0, 64), "k")
    total = te.compute((64, 64), lambda i, j: te.sum(x[i, k].astype("float32") * w[k, j].astype("float32"), k))
    return te.create_prim_func([x, w, total])


def convolution():
    x, w = te.placeholder((1, 8, 10, 10), name="x"), te.placeholder((32, 8, 3, 3), name="w")
    return te.create_prim_func([x, w, topi.nn.conv2d_nchw(x, w, 1, 0, 1)])


@pytest.mark.parametrize(
    "rule, func, staging, micro",
    [
        (GpuMatmul(), gemm("float32"), Prefetched, Simt),
        (WindowProduct(), convolution(), Gathered, SimtSlices),
        (GpuMatrix(tile=MatrixTile(32, 32, 32, 16, 16, 3)), gemm("float16"), Pipelined, Mma),
        (GpuMatrix(tile=MatrixTile(64, 32, 32, 16, 32, 4, group=True)), gemm("float16"), Pipelined, Wgmma),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_each_rule_fills_the_skeleton_in(rule, func, staging, micro):
    plan = rule.planned(func, HOPPER)
    assert (type(plan), type(plan.staging), type(plan.micro)) == (GpuGemm, staging, micro)


@pytest.mark.parametrize(
    "down, across, columns", [(4, 8, 8), (8, 16, 8), (2, 12, 8), (4, 8, 4), (16, 1, 8), (4, 16, 16)]
)
def test_threads_have_each_place_of_a_slice_once(down, across, columns):
    number = fresh("number")
    row, column = position(number, down, across, columns)
    places = [(evaluate(row, {number: n}), evaluate(column, {number: n})) for n in range(down * across)]
    assert sorted(places) == list(product(range(down), range(across)))
    inner = columns if across % columns == 0 else 4  # the greatest common divisor
    assert places[: min(inner, across)] == [(0, n) for n in range(min(inner, across))]


@pytest.mark.parametrize("threads, run, dealt", [(8, 4, False), (8, 1, False), (4, 2, True), (3, 2, False)])
def test_fragments_of_all_threads_are_the_tile(threads, run, dealt):
    fragment = Fragment(None, registers(8, "float32", "fragment"), threads, run, dealt)
    thread, n_th = fresh("thread"), fresh("n_th")
    place = fragment.place(thread, n_th)
    mine = [[evaluate(place, {thread: t, n_th: n}) for n in range(fragment.count)] for t in range(threads)]
    assert sorted(at for each in mine for at in each) == list(range(threads * fragment.count))
    if not dealt:  # vectors of shared memory
        assert all(each[n : n + run] == list(range(each[n], each[n] + run)) for each in mine for n in range(0, 8, run))
    else:  # neighbouring threads have neighbours
        assert [each[0] for each in mine] == list(range(threads))

# SPDX-License-Identifier: Apache-2.0
"""Operands that are chosen between, of joined tensors and padding, in vectors: run on a CPU, beside numpy."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from cuda_on_cpu import run, source_of
from smartmem_tvm.schedule.gpu.matrix.matrix import GpuMatrix
from smartmem_tvm.schedule.gpu.matrix.matrix_tile import MatrixTile

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
TARGET = tvm.target.Target({**FACTS, "arch": "sm_80"}, host="llvm")
ROWS, COLUMNS = 40, 16


def product(parts, first=0, turned=False):
    """``out = relu(scale * joined(parts)) @ w``, rows below `first` without the parts; the last part by columns."""
    depth = sum(parts)
    xs = [
        te.placeholder((p, ROWS) if turned and n == len(parts) - 1 else (ROWS, p), "float16", f"x{n}")
        for n, p in enumerate(parts)
    ]
    scale, w = te.placeholder((depth,), "float16", "scale"), te.placeholder((depth, COLUMNS), "float16", "w")
    zero = tirx.const(0, "float16")

    def read(x, i, k):
        return x[k, i] if int(x.shape[0]) != ROWS else x[i, k]

    def joined(i, k):
        value, start = read(xs[0], i, k), parts[0]
        for x, size in zip(xs[1:], parts[1:], strict=True):
            value = tirx.if_then_else(k >= start, read(x, i, k - start), value)
            start += size
        value = tirx.max(scale[k] * value, zero)
        return scale[k] + tirx.if_then_else(i >= first, value, zero) if first else value

    k = te.reduce_axis((0, depth), "k")
    sums = te.compute((ROWS, COLUMNS), lambda i, j: te.sum((joined(i, k) * w[k, j]).astype("float32"), k), "sums")
    out = te.compute((ROWS, COLUMNS), lambda i, j: sums[i, j].astype("float16"), "out")
    return te.create_prim_func([*xs, scale, w, out]), xs


def check(parts, folder, first=0, turned=False):
    func, xs = product(parts, first, turned)
    schedule = GpuMatrix(tile=MatrixTile(32, 16, 16, 16, 16, 2)).apply(func, TARGET)
    scheduled = schedule.mod["main"].with_attr("global_symbol", "main")
    draw = np.random.default_rng(1)
    arrays = {x.op.name: draw.standard_normal([int(d) for d in x.shape]).astype("float16") for x in xs}
    depth = sum(parts)
    scale, w = (draw.standard_normal(s).astype("float16") for s in ((depth,), (depth, COLUMNS)))
    out = np.full((ROWS, COLUMNS), np.nan, "float16")
    run(scheduled, TARGET, {**arrays, "scale": scale, "w": w, "out": out}, folder)
    joined = np.concatenate([a if a.shape[0] == ROWS else a.T for a in arrays.values()], 1).astype("float64")
    left = np.maximum(scale * joined, 0)
    if first:
        left = scale + np.where(np.arange(ROWS)[:, None] >= first, left, 0)
    right = left @ w.astype("float64")
    np.testing.assert_allclose(out, right, rtol=3e-3, atol=3e-3 * np.abs(right).max())
    return source_of(scheduled, TARGET)[0]


def test_joined_tensors_are_read_in_vectors(tmp_path):
    source = check((16, 24, 8), tmp_path)
    assert "uint4 chosen_ptr" in source


@pytest.mark.device
@pytest.mark.parametrize("parts", [(12, 20), (8, 16, 24, 32, 40), (3, 5, 8), (17, 15), (32,)], ids=str)
@pytest.mark.parametrize("first", [0, 1])
def test_any_parts(parts, first, tmp_path):
    """Parts of four, of many vectors, and those that begin within one."""
    check(parts, tmp_path, first)


@pytest.mark.device
def test_a_part_that_lies_in_the_other_direction_is_read_one_by_one(tmp_path):
    source = check((16, 32, 16), tmp_path, turned=True)
    assert "chosen_ptr" in source

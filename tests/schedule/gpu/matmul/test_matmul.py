# SPDX-License-Identifier: Apache-2.0
"""Matmuls in tiles on a GPU: what they compute on an OpenCL device, and what their inner loops look like."""

import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.schedule.gpu.matmul.matmul import GpuMatmul
from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuTile
from smartmem_tvm.target import device_of, parse_target

TARGET = parse_target("opencl")
TILES = [
    GpuTile(32, 32, 8, 4, 4),
    GpuTile(64, 64, 16, 8, 8),
    GpuTile(64, 32, 16, 8, 4),
    GpuTile(16, 32, 32, 4, 2),
    GpuTile(16, 16, 16, 2, 2),
    GpuTile(32, 32, 16, 4, 4, splits=3),
    GpuTile(32, 32, 16, 4, 4, slices=2),
    GpuTile(24, 40, 32, 4, 4, slices=4, splits=2),
]


def check(inputs, output, reference, tile=None) -> str:
    """Schedule, run and compare with numpy; returns the OpenCL source."""
    device, random = device_of(TARGET), np.random.default_rng(0)
    func = te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main")
    with TARGET:
        mod = ScheduleKernels([GpuMatmul(tile=tile)])(tvm.IRModule({"main": func}))
    assert mod["main"].attrs["tirx.is_scheduled"]
    built = tvm.compile(mod, TARGET)
    arrays = [random.standard_normal([int(d) for d in t.shape]).astype(str(t.dtype)) for t in inputs]
    result = tvm.runtime.tensor(np.full([int(d) for d in output.shape], 7, str(output.dtype)), device)
    built["main"](*(tvm.runtime.tensor(a, device) for a in arrays), result)
    want = reference(*arrays)
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(want).max())))
    (kernels,) = built.mod.imports
    return kernels.inspect_source()


def tensors(*shapes):
    return [te.placeholder(shape, name="xwb"[number]) for number, shape in enumerate(shapes)]


def swap(matrix):
    return np.swapaxes(matrix, -1, -2)


def vectors(source: str, name: str) -> int:
    """Vector loads from a buffer."""
    return len(re.findall(rf"(?:vload4\(0, |float4\*\)\(){name}_ptr", source))


@pytest.mark.each_value
@pytest.mark.device
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.rows}x{t.columns}x{t.depth}s{t.splits}x{t.slices}")
@pytest.mark.parametrize("shape", [(64, 64, 64), (37, 41, 43), (49, 515, 64), (2, 3, 2), (197, 6, 5)], ids=str)
def test_a_matmul_of_any_shape_with_any_tile(shape, tile):
    rows, depth, columns = shape
    x, w, b = tensors((rows, depth), (depth, columns), (columns,))
    output = topi.nn.relu(topi.add(topi.matmul(x, w), b))
    check([x, w, b], output, lambda x, w, b: np.maximum(x @ w + b, 0), tile)


@pytest.mark.each_value
@pytest.mark.device
@pytest.mark.parametrize("shape", [(197, 64, 197), (49, 32, 49), (20, 197, 64), (7, 13, 11)], ids=str)
@pytest.mark.parametrize(("left", "right"), [(False, False), (False, True), (True, False), (True, True)])
def test_batches_of_either_orientation(shape, left, right):
    rows, depth, columns = shape
    x, w = tensors(
        (3, *((depth, rows) if left else (rows, depth))), (3, *((columns, depth) if right else (depth, columns)))
    )
    output = topi.nn.batch_matmul(x, w, transpose_a=left, transpose_b=right)
    check([x, w], output, lambda x, w: (swap(x) if left else x) @ (swap(w) if right else w))


@pytest.mark.pairwise
@pytest.mark.device
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("band", [1, 2, 3, 64])
@pytest.mark.parametrize("shape", [(3, 37, 40, 83), (2, 7, 33, 97), (2, 97, 33, 7), (1, 16, 16, 16)], ids=str)
def test_groups_in_bands(shape, band, splits):
    """Row tiles x column tiles: 3 x 6, 1 x 7, 7 x 1, 1 x 1; a band may not divide them, or be wider."""
    batch, rows, depth, columns = shape
    x, w = tensors((batch, rows, depth), (batch, depth, columns))
    tile = GpuTile(16, 16, 16, 2, 2, splits=splits, band=band)
    check([x, w], topi.nn.batch_matmul(x, w, transpose_b=False), lambda x, w: x @ w, tile)


def test_the_order_of_groups_is_in_the_source():
    x, w = tensors((64, 32), (32, 80))
    output = topi.matmul(x, w)
    sources = {check([x, w], output, lambda x, w: x @ w, GpuTile(16, 16, 16, 2, 2, band=band)) for band in (0, 2, 3, 5)}
    assert len(sources) == 3  # five columns of tiles are all of them


def test_eight_results_need_four_vectors_from_shared_memory():
    x, w = tensors((128, 32), (32, 128))
    source = check([x, w], topi.matmul(x, w), lambda x, w: x @ w, GpuTile(64, 64, 16, 8, 8, unroll=1))
    (step,) = re.findall(r"for \(int k = 0;.*?\n    }", source, re.S)
    assert step.count("shared_ptr") == 4 and len(re.findall(r"sums_ptr\[\d+\] = ", step)) == 64
    assert source.count("barrier(") == 2


def test_operands_are_loaded_as_vectors_where_they_lie_so():
    x, w = tensors((70, 32), (32, 68))
    source = check([x, w], topi.matmul(x, w), lambda x, w: x @ w, TILES[0])
    assert vectors(source, "x") and vectors(source, "w")
    x, w = tensors((70, 33), (33, 67))
    source = check([x, w], topi.matmul(x, w), lambda x, w: x @ w, TILES[0])
    assert not vectors(source, "x") and not vectors(source, "w")


def test_heads_read_out_of_one_projection():
    """Scores of an attention: queries and keys are parts of one tensor, their results a permuted one."""
    x, k = *tensors((1, 50, 96)), te.reduce_axis((0, 16), "k")
    output = te.compute((50, 2, 50), lambda i, h, j: te.sum(x[0, i, h * 16 + k] * x[0, j, 32 + h * 16 + k], k))

    def reference(x):
        q, k = (x[0, :, at : at + 32].reshape(50, 2, 16).transpose(1, 0, 2) for at in (0, 32))
        return (q @ swap(k)).transpose(1, 0, 2)

    assert vectors(check([x], output, reference), "x")


def test_a_roll_in_an_operand_is_loaded_as_vectors():
    x, w, k = *tensors((8, 8, 16), (16, 12)), te.reduce_axis((0, 16), "k")

    def rolled(i):
        return i + 3 - tirx.Select(i + 3 >= 8, tirx.const(8), tirx.const(0))

    product = te.compute((8, 8, 12), lambda i, j, c: te.sum(x[rolled(i), rolled(j), k] * w[k, c], k))
    output = topi.nn.relu(product)
    assert vectors(check([x, w], output, lambda x, w: np.maximum(np.roll(x, (-3, -3), (0, 1)) @ w, 0)), "x")


def test_a_padded_operand():
    x, w = tensors((10, 20), (24, 12))
    output = topi.matmul(topi.nn.pad(x, (1, 2), (1, 2)), w)
    check([x, w], output, lambda x, w: np.pad(x, ((1, 1), (2, 2))) @ w)


def test_an_operand_computed_from_nothing_and_another_in_columns():
    x, k = *tensors((20, 33)), te.reduce_axis((0, 20), "k")
    output = te.compute((33, 8), lambda i, j: te.sum(x[k, i] * tirx.Cast("float32", j + k), k))
    steps = np.add.outer(np.arange(20), np.arange(8)).astype("float32")
    check([x], output, lambda x: x.T @ steps)


def test_a_padded_convolution():
    x, w = tensors((1, 5, 9, 11), (12, 5, 3, 3))
    output = topi.nn.conv2d_nchw(x, w, 1, 1, 1)

    def reference(x, w):
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
        return np.einsum("nkyxpq,fkpq->nfyx", windows, w)

    check([x, w], output, reference)


def test_a_residual_and_a_permuted_result():
    x, w, b = tensors((40, 24), (24, 30), (30, 40))
    output = topi.add(topi.transpose(topi.matmul(x, w)), b)
    check([x, w, b], output, lambda x, w, b: (x @ w).T + b)


@pytest.mark.parametrize("splits", [1, 4])
def test_gelu(splits):
    x, w = tensors((30, 260), (260, 32))
    total = topi.matmul(x, w)
    output = topi.multiply(total, topi.sigmoid(topi.multiply(total, 1.702)))

    def reference(x, w):
        total = x @ w
        return total / (1 + np.exp(-1.702 * total))

    check([x, w], output, reference, GpuTile(32, 32, 16, 4, 4, splits))


def test_a_convolution_of_single_points():
    x, w = tensors((1, 20, 7, 9), (30, 20, 1, 1))
    output = topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 0, 1))
    check([x, w], output, lambda x, w: np.maximum(np.einsum("nkyx,fk->nfyx", x, w[:, :, 0, 0]), 0))


def refused(inputs, output, target=TARGET) -> bool:
    return GpuMatmul().apply(te.create_prim_func([*inputs, output]), target) is None


def test_what_is_no_matmul_is_refused():
    x, w = tensors((30, 40), (40,))
    k = te.reduce_axis((0, 40), "k")
    assert refused([x], topi.sum(x, axis=1))
    assert refused([x], topi.exp(x))
    assert refused([x, w], te.compute((30,), lambda i: te.sum(x[i, k] * w[k], k)))


def test_other_types_and_other_targets_are_refused():
    x, w = (te.placeholder((16, 16), "float64", name) for name in "xw")
    assert refused([x, w], topi.matmul(x, w))
    x, w = tensors((16, 16), (16, 16))
    assert refused([x, w], topi.matmul(x, w), tvm.target.Target("llvm"))

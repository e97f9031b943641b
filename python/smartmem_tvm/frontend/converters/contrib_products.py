# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's matrix products, and distances, inverses and Fourier transforms."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax, tirx

from smartmem_tvm.frontend.converters.contrib import activated, fused_mat_mul
from smartmem_tvm.frontend.converters.loops import loop, rows_kernel, store, when
from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of, shape_of


def gemm_fast_gelu(node: Node) -> relax.Expr:
    """com.microsoft.GemmFastGelu: a product, a bias, and the tanh approximation of Gelu."""
    product = node.emit(relax.op.matmul(node.inputs[0], node.inputs[1]))
    bias = node.input(2)
    return relax.op.nn.gelu_tanh(product if bias is None else node.emit(relax.op.add(product, bias)))


def fused_mat_mul_activation(node: Node) -> relax.Expr:
    """com.microsoft.FusedMatMulActivation: FusedMatMul and an activation."""
    numbers = [node.attrs[key] for key in ("activation_alpha", "activation_beta") if key in node.attrs]
    return activated(node, node.emit(fused_mat_mul(node)), tuple(numbers))


def c_dist(node: Node) -> relax.Expr:
    """com.microsoft.CDist: the distance between each row of one matrix and each row of another."""
    metric = node.text("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise ValueError(f"its metric is '{metric}', and known are euclidean and sqeuclidean")
    (rows, width), (columns, _) = (shape_of(each) for each in node.inputs[:2])
    a = node.emit(relax.op.reshape(node.inputs[0], (rows, 1, width)))
    b = node.emit(relax.op.reshape(node.inputs[1], (1, columns, width)))
    apart = node.emit(relax.op.subtract(a, b))
    square = node.emit(relax.op.sum(node.emit(relax.op.multiply(apart, apart)), 2))
    return relax.op.sqrt(square) if metric == "euclidean" else square


def inverse(node: Node) -> relax.Expr:
    """com.microsoft.Inverse of square matrices: Gauss-Jordan elimination with partial pivoting."""
    x, given = node.inputs[0], dtype_of(node.inputs[0])
    *batch, rows, columns = shape_of(x)
    if rows != columns:
        raise ValueError(f"its matrices have {rows} rows and {columns} columns, and only square ones have an inverse")
    working = given if given == "float64" else "float32"
    flat = node.emit(relax.op.reshape(astype(node, x, working), (prod(batch), rows, rows)))
    outputs = [((prod(batch), rows, rows), working), ((prod(batch), rows, 2 * rows), working)]

    def body(row, inputs, results) -> None:
        _eliminate(row[0], rows, inputs[0], *results)

    result, _ = rows_kernel(node, "inverse", [prod(batch)], [flat], outputs, body)
    return astype(node, node.emit(relax.op.reshape(result, (*batch, rows, rows))), given)


def _eliminate(at, size: int, matrix, result, work) -> None:
    """Gauss-Jordan elimination of ``[matrix | 1]``, in place in `work`."""

    def number(row, column):
        return work[(at, row, column)]

    with loop(size) as row, loop(size) as column:
        store(work, (at, row, column), matrix[(at, row, column)])
        one = tirx.Select(row == column, tirx.const(1, work.dtype), tirx.const(0, work.dtype))
        store(work, (at, row, column + size), one)
    with loop(size) as pivot:
        # The largest number of the column moves to the pivot's row by exchanges with each larger one below it. The
        # condition is evaluated before any number moves. `result` is the temporary of an exchange.
        with loop(size) as row, when(_larger(work, at, row, pivot)), loop(2 * size) as turned:
            store(result, (at, 0, 0), number(row, turned))
            store(work, (at, row, turned), number(pivot, turned))
            store(work, (at, pivot, turned), result[(at, 0, 0)])
        with loop(size) as row, when(row != pivot):
            store(result, (at, 0, 0), number(row, pivot) / number(pivot, pivot))
            with loop(2 * size) as column:
                store(work, (at, row, column), number(row, column) - result[(at, 0, 0)] * number(pivot, column))
    with loop(size) as row, loop(size) as column:
        store(result, (at, row, column), number(row, column + size) / number(row, row))


def _larger(work, at, row, pivot):
    """Whether a number below the pivot is larger."""
    return tirx.And(row > pivot, tirx.abs(work[(at, row, pivot)]) > tirx.abs(work[(at, pivot, pivot)]))


def _transform(node: Node, x: relax.Expr, inverse: int) -> relax.Expr:
    axis = constant(np.array(-2), "int64")
    return node.call("DFT", x, None, axis, axis=-2, onesided=1, inverse=inverse)


def rfft(node: Node) -> relax.Expr:
    """com.microsoft.Rfft: the last axis becomes a one-sided spectrum and an axis of real and imaginary part."""
    x = node.inputs[0]
    return _transform(node, node.emit(relax.op.reshape(x, (*shape_of(x), 1))), 0)


def irfft(node: Node) -> relax.Expr:
    """com.microsoft.Irfft: the real signal of a one-sided spectrum."""
    result = _transform(node, node.inputs[0], 1)
    return relax.op.reshape(result, shape_of(result)[:-1])


CONVERTERS = {
    "com.microsoft.CDist": c_dist,
    "com.microsoft.FusedMatMulActivation": fused_mat_mul_activation,
    "com.microsoft.GemmFastGelu": gemm_fast_gelu,
    "com.microsoft.Inverse": inverse,
    "com.microsoft.Irfft": irfft,
    "com.microsoft.Rfft": rfft,
    "com.microsoft.TransposeMatMul": fused_mat_mul,
}

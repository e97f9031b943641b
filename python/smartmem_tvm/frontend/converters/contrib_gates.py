# SPDX-License-Identifier: Apache-2.0
"""Element-wise gates, sums and activations that ONNX Runtime's optimizers merge (domain com.microsoft)."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of, shape_of, value_of


def bias_add(node: Node) -> relax.Expr:
    """com.microsoft.BiasAdd: a sum with a bias and a residual."""
    x, bias, skip = node.inputs[:3]
    return relax.op.add(node.emit(relax.op.add(x, bias)), skip)


def bias_split_gelu(node: Node) -> relax.Expr:
    """com.microsoft.BiasSplitGelu: the left half of a sum times the exact Gelu of its right half."""
    left, right = halves(node, node.emit(relax.op.add(node.inputs[0], node.inputs[1])))
    return relax.op.multiply(left, node.emit(relax.op.nn.gelu(right)))


def halves(node: Node, x: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """Return the two halves of the last axis."""
    if shape_of(x)[-1] % 2:
        raise ValueError(f"its last axis has {shape_of(x)[-1]} numbers, which are no two halves")
    parts = node.emit(relax.op.split(x, 2, -1))
    return node.emit(parts[0]), node.emit(parts[1])


def bias_softmax(node: Node) -> relax.Expr:
    """com.microsoft.BiasSoftmax: softmax of a sum over all axes from ``axis`` on."""
    total = node.emit(relax.op.add(node.inputs[0], node.inputs[1]))
    shape = shape_of(total)
    axis = node.attrs.get("axis", 1) % len(shape)
    flat = node.emit(relax.op.reshape(total, (*shape[:axis], prod(shape[axis:]))))
    return relax.op.reshape(node.emit(relax.op.nn.softmax(flat, -1)), shape)


def dropout(node: Node, first: int) -> relax.Expr:
    """Dropout at inference: return the sum of the first `first` inputs; random numbers are refused."""
    given = [node.input(at) for at in range(first)]
    total = given[0]
    for term in given[1:]:
        total = total if term is None else node.emit(relax.op.add(total, term))
    ratio, training = node.input(first), node.input(first + 1)
    drops = training is not None and (value_of(training) is None or value_of(training).any())
    if drops and not (value_of(ratio) is not None and not value_of(ratio).any()):
        raise ValueError("it may draw random numbers (training_mode); export the model for inference")
    if node.outputs == 1:
        return total
    if "Bitmask" in node.op:
        raise ValueError(
            "its mask is asked for, which means something in training only; export the model for inference"
        )
    return relax.Tuple([total, constant(np.ones(shape_of(total)), "bool")])


def bias_dropout(node: Node) -> relax.Expr:
    """com.microsoft.BiasDropout and BitmaskBiasDropout at inference: a sum with a bias and a residual."""
    return dropout(node, 3)


def bitmask_dropout(node: Node) -> relax.Expr:
    """com.microsoft.BitmaskDropout at inference."""
    return dropout(node, 1)


def scaled_silu(node: Node) -> relax.Expr:
    """com.microsoft.ScaledSiLU: ``z * sigmoid(z)`` of a scaled tensor, rounded to its type after each step."""
    x, scale = node.inputs[0], node.input(1)
    dtype = dtype_of(x)
    if scale is None:
        scale = constant(node.attrs.get("alpha", 1.0), "float32")
    scale = node.reshape(astype(node, scale, "float32"), ())
    wide = astype(node, node.emit(relax.op.multiply(astype(node, x, "float32"), scale)), dtype)
    gate = astype(node, node.emit(relax.op.sigmoid(astype(node, wide, "float32"))), dtype)
    return relax.op.multiply(wide, gate)


def gated_add(node: Node) -> relax.Expr:
    """com.microsoft.GatedAdd: add another tensor times a gate for each row."""
    x, y, gate = node.inputs[:3]
    return relax.op.add(x, node.emit(relax.op.multiply(y, gate)))


def swiglu(node: Node) -> relax.Expr:
    """com.microsoft.SwiGLU of two tensors, or of the halves of one."""
    gate, up = node.inputs[0], node.input(1)
    if up is None:
        gate, up = halves(node, gate)
    dtype, limit = dtype_of(gate), node.attrs.get("limit", 0.0)
    gate, up = (astype(node, each, "float32") for each in (gate, up))
    alpha, beta = node.attrs.get("activation_alpha", 1.0), node.attrs.get("activation_beta", 0.0)
    result = gated(node, gate, up, alpha, beta, limit if limit > 0 else None, bool(node.attrs.get("round_activation")))
    return astype(node, result, dtype)


def gated(
    node: Node, gate: relax.Expr, up: relax.Expr, alpha: float, beta: float, limit: float | None, rounded: bool = False
) -> relax.Expr:
    """Return ``gate * sigmoid(alpha * gate) * (up + beta)``, both clipped.

    Parameters
    ----------
    limit
        The upper bound of both; its negative is the lower bound of `up`. None does not clip.
    rounded
        Whether the activated gate is rounded to the type of the node's input.
    """
    dtype = dtype_of(gate)
    if limit is not None:
        high, low = constant(limit, dtype), constant(-limit, dtype)
        gate = node.emit(relax.op.minimum(gate, high))
        up = node.emit(relax.op.maximum(node.emit(relax.op.minimum(up, high)), low))
    turned = node.emit(relax.op.sigmoid(node.emit(relax.op.multiply(gate, constant(alpha, dtype)))))
    active = node.emit(relax.op.multiply(gate, turned))
    if rounded:
        active = astype(node, astype(node, active, dtype_of(node.inputs[0])), dtype)
    up = node.emit(relax.op.add(up, constant(beta, dtype))) if beta else up
    return node.emit(relax.op.multiply(active, up))


def is_all_finite(node: Node) -> relax.Expr:
    """com.microsoft.IsAllFinite: one boolean for all numbers of all its tensors."""
    only_nan, only_inf = node.attrs.get("isnan_only", 0), node.attrs.get("isinf_only", 0)
    if only_nan and only_inf:
        raise ValueError("its attributes isnan_only and isinf_only exclude each other; leave one of them out")
    wrong = {(0, 0): lambda x: relax.op.logical_not(relax.op.isfinite(x))}
    wrong |= {(1, 0): relax.op.isnan, (0, 1): relax.op.isinf}
    found = None
    for x in node.inputs:
        each = node.emit(
            wrong[int(only_nan), int(only_inf)](astype(node, x, "float32" if dtype_of(x) == "float16" else dtype_of(x)))
        )
        any_of = node.emit(relax.op.max(astype(node, each, "int32")))
        found = any_of if found is None else node.emit(relax.op.maximum(found, any_of))
    return relax.op.equal(found, constant(0, "int32"))


def _complex(node: Node, conjugate: bool) -> relax.Expr:
    parts = []
    for x in node.inputs[:2]:
        split = node.emit(relax.op.split(x, 2, -1))
        parts.append((node.emit(split[0]), node.emit(split[1])))
    (a, b), (c, d) = parts
    products = [node.emit(relax.op.multiply(*pair)) for pair in ((a, c), (b, d), (b, c), (a, d))]
    # (a + bi)(c + di), or (a + bi)(c - di)
    signs = (relax.op.add, relax.op.subtract) if conjugate else (relax.op.subtract, relax.op.add)
    real, imaginary = signs[0](products[0], products[1]), signs[1](products[2], products[3])
    return relax.op.concat([node.emit(real), node.emit(imaginary)], -1)


def complex_mul(node: Node) -> relax.Expr:
    """com.microsoft.ComplexMul: the last axis holds real and imaginary part."""
    return _complex(node, conjugate=False)


def complex_mul_conj(node: Node) -> relax.Expr:
    """com.microsoft.ComplexMulConj: multiply by the conjugate of the second operand."""
    return _complex(node, conjugate=True)


def sample_op(node: Node) -> relax.Expr:
    """com.microsoft.SampleOp: the identity."""
    return node.inputs[0]


CONVERTERS = {
    "com.microsoft.BiasAdd": bias_add,
    "com.microsoft.BiasDropout": bias_dropout,
    "com.microsoft.BiasSoftmax": bias_softmax,
    "com.microsoft.BiasSplitGelu": bias_split_gelu,
    "com.microsoft.BitmaskBiasDropout": bias_dropout,
    "com.microsoft.BitmaskDropout": bitmask_dropout,
    "com.microsoft.ComplexMul": complex_mul,
    "com.microsoft.ComplexMulConj": complex_mul_conj,
    "com.microsoft.GatedAdd": gated_add,
    "com.microsoft.IsAllFinite": is_all_finite,
    "com.microsoft.SampleOp": sample_op,
    "com.microsoft.ScaledSiLU": scaled_silu,
    "com.microsoft.SwiGLU": swiglu,
}

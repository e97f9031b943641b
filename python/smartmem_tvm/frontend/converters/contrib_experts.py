# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's mixtures of experts: the router selects a few experts for each token and sums their results.

If the tokens of a call select fewer experts than there are, the weights of those are gathered. Otherwise all experts
compute all tokens, and those that a token did not select have the weight 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax

from smartmem_tvm.frontend.converters.contrib_bits import unpacked
from smartmem_tvm.frontend.converters.contrib_gates import gated
from smartmem_tvm.frontend.converters.node import Node, constant, dtype_of, shape_of

_ACTIVATIONS = {
    "relu": relax.op.nn.relu,
    "gelu": relax.op.nn.gelu_tanh,
    "silu": relax.op.nn.silu,
    "identity": lambda x: x,
}


@dataclass(frozen=True)
class _Linear:
    """One layer of all experts: weights [experts, outputs, inputs], bias [experts, outputs] or None."""

    weights: relax.Expr
    bias: relax.Expr | None


def moe(node: Node) -> relax.Expr:
    """com.microsoft.MoE."""
    pairs = [_Linear(node.input(at), node.input(at + 1)) for at in (2, 4, 6)]
    return _mixture(node, *pairs)


def q_moe(node: Node) -> relax.Expr:
    """com.microsoft.QMoE with integer weights, which are constants and are dequantized at compile time."""
    if node.text("quant_type", "int") != "int":
        raise ValueError(f"its weights are {node.text('quant_type')}, and known are those of integers (int)")
    found = []
    for number, at in enumerate((2, 5, 8)):
        weights = None if node.input(at) is None else _dequantized(node, number, at)
        found.append(_Linear(weights, node.input(at + 2)))
    # Without router weights the router's shares are normalized to 1, as in ONNX Runtime's kernel.
    return _mixture(node.with_inputs(*node.inputs, normalize_routing_weights=_adds_up(node)), *found, node.input(14))


def _adds_up(node: Node) -> int:
    return 1 if node.input(14) is None else node.attrs.get("normalize_routing_weights", 0)


def _dequantized(node: Node, number: int, at: int) -> relax.Expr:
    packed, scales, zeros = (node.constant(each) for each in (at, at + 1, 11 + number))
    if packed is None or scales is None or (node.input(11 + number) is not None and zeros is None):
        raise ValueError("its weights, scales or zero points are known at run time only; make them constants")
    bits = node.attrs.get(f"fc{number + 1}_expert_weight_bits", node.attrs.get("expert_weight_bits", 4))
    experts, rows = packed.shape[:2]
    width = packed.shape[2] * 8 // bits
    codes = unpacked(packed.reshape(experts * rows, -1), bits, width).reshape(experts, rows, -1, 1)
    blocks = 1 if scales.ndim == 2 else scales.shape[2]
    scales = scales.reshape(experts, rows, blocks, 1).astype("float32")
    points = np.full(scales.shape, 2 ** (bits - 1), "float32")
    if zeros is not None and scales.shape[2] == 1 and zeros.ndim == 2:
        points = unpacked(zeros.reshape(experts, -1), bits, rows).reshape(scales.shape)
    elif zeros is not None:
        points = unpacked(zeros.reshape(experts * rows, -1), bits, blocks).reshape(scales.shape)
    codes = codes.reshape(experts, rows, blocks, width // blocks).astype("float32")
    values = ((codes - points.astype("float32")) * scales).reshape(experts, rows, width)
    return constant(values, dtype_of(node.inputs[0]))


def _mixture(
    node: Node, first: _Linear, second: _Linear, gate: _Linear, shares: relax.Expr | None = None
) -> relax.Expr:
    """Return the sum of each token's experts, weighted by the router's shares."""
    x, router = node.inputs[:2]
    width, (tokens, experts) = shape_of(x)[-1], shape_of(router)
    flat = node.emit(relax.op.reshape(x, (tokens, width)))
    chosen, scale = _routes(node, router, shares)
    count = shape_of(chosen)[1]
    if tokens * count < experts:
        found = _of_chosen(node, flat, chosen, [first, second, gate])
        scale = node.emit(relax.op.reshape(scale, (tokens, count, 1)))
        result = node.emit(relax.op.sum(node.emit(relax.op.multiply(found, scale)), 1))
    else:
        found = _layers(node, node.emit(relax.op.reshape(flat, (1, tokens, width))), first, second, gate)
        result = node.emit(relax.op.sum(node.emit(relax.op.multiply(found, _of_all(node, chosen, scale, experts))), 0))
    return relax.op.reshape(result, shape_of(x))


def _routes(node: Node, router: relax.Expr, shares: relax.Expr | None) -> tuple[relax.Expr, relax.Expr]:
    """Return the experts of each token and their shares, both [tokens, k]."""
    # Softmax keeps the order, so the largest logits have the largest shares.
    count = node.attrs.get("k", 1)
    top = node.emit(relax.op.topk(router, count, -1, "both", True, "int64"))
    logits, chosen = node.emit(top[0]), node.emit(top[1])
    if shares is not None:
        scale = node.emit(relax.op.gather_elements(shares, chosen, 1))
        if not node.attrs.get("normalize_routing_weights", 0):
            return chosen, scale
        return chosen, node.emit(relax.op.divide(scale, node.emit(relax.op.sum(scale, -1, keepdims=True))))
    if node.attrs.get("normalize_routing_weights", 0):
        return chosen, node.emit(relax.op.nn.softmax(logits, -1))
    scale = node.emit(relax.op.nn.softmax(router, -1))
    return chosen, node.emit(relax.op.gather_elements(scale, chosen, 1))


def _of_all(node: Node, chosen: relax.Expr, scale: relax.Expr, experts: int) -> relax.Expr:
    """Return the share of each expert, [experts, tokens, 1]: 0 for a token that did not select it."""
    tokens, count = shape_of(chosen)
    numbers = constant(np.arange(experts).reshape(experts, 1, 1), "int64")
    mine = node.emit(relax.op.equal(node.emit(relax.op.reshape(chosen, (1, tokens, count))), numbers))
    own = node.emit(relax.op.reshape(scale, (1, tokens, count)))
    kept = node.emit(relax.op.where(mine, own, constant(0, dtype_of(scale))))
    return node.emit(relax.op.sum(kept, 2, keepdims=True))


def _of_chosen(node: Node, flat: relax.Expr, chosen: relax.Expr, layers: list[_Linear]) -> relax.Expr:
    """Return [tokens, k, width], computed with the gathered weights of the selected experts."""
    (tokens, width), count = shape_of(flat), shape_of(chosen)[1]
    each = node.emit(relax.op.reshape(chosen, (tokens * count,)))
    taken = [
        _Linear(*(None if part is None else node.emit(relax.op.take(part, each, 0, mode="clip")) for part in parts))
        for parts in ((layer.weights, layer.bias) for layer in layers)
    ]
    rows = node.emit(relax.op.reshape(flat, (tokens, 1, 1, width)))
    rows = node.emit(relax.op.broadcast_to(rows, (tokens, count, 1, width)))
    found = _layers(node, node.emit(relax.op.reshape(rows, (tokens * count, 1, width))), *taken)
    return node.emit(relax.op.reshape(found, (tokens, count, shape_of(found)[2])))


def _layers(node: Node, x: relax.Expr, first: _Linear, second: _Linear, gate: _Linear) -> relax.Expr:
    """Return [experts, tokens, width]: both layers of each expert with the activation between them."""
    name, inner = node.text("activation_type", "relu"), _linear(node, x, first)
    if name == "swiglu":
        inner = _swiglu(node, x, inner, gate)
    elif name in _ACTIVATIONS:
        inner = node.emit(_ACTIVATIONS[name](inner))
        if gate.weights is not None:
            inner = node.emit(relax.op.multiply(inner, _linear(node, x, gate)))
    else:
        raise ValueError(f"its activation is '{name}', and known are swiglu, {', '.join(_ACTIVATIONS)}")
    return _linear(node, inner, second)


def _linear(node: Node, x: relax.Expr, layer: _Linear) -> relax.Expr:
    product = node.emit(relax.op.matmul(x, node.emit(relax.op.permute_dims(layer.weights, [0, 2, 1]))))
    if layer.bias is None:
        return product
    experts, rows = shape_of(layer.bias)
    return node.emit(relax.op.add(product, node.emit(relax.op.reshape(layer.bias, (experts, 1, rows)))))


def _swiglu(node: Node, x: relax.Expr, inner: relax.Expr, gate: _Linear) -> relax.Expr:
    """Apply SwiGLU to a gate and another layer; one layer may hold both, interleaved or one after the other."""
    kind, (*batch, width) = node.attrs.get("swiglu_fusion", 0), shape_of(inner)
    if kind == 0:
        if gate.weights is None:
            raise ValueError("its activation swiglu has no second layer (fc3_experts_weights, swiglu_fusion=0)")
        pair = inner, _linear(node, x, gate)
    else:
        shape, axis = ((*batch, width // 2, 2), -1) if kind == 1 else ((*batch, 2, width // 2), -2)
        parts = node.emit(relax.op.split(node.emit(relax.op.reshape(inner, shape)), 2, axis))
        pair = [node.emit(relax.op.reshape(node.emit(parts[at]), (*batch, prod(shape[-2:]) // 2))) for at in range(2)]
    alpha, beta = node.attrs.get("activation_alpha", 1.0), node.attrs.get("activation_beta", 0.0)
    limit = node.attrs.get("swiglu_limit")
    return gated(node, *pair, alpha, beta, None if limit is None or not np.isfinite(limit) else limit)


CONVERTERS = {"com.microsoft.MoE": moe, "com.microsoft.QMoE": q_moe}

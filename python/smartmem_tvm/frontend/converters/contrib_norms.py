# SPDX-License-Identifier: Apache-2.0
"""RMS normalizations of parts of the last axis, in float32 (domain com.microsoft)."""

from __future__ import annotations

from tvm import relax

from smartmem_tvm.frontend.converters.node import Node, astype, constant, dtype_of, shape_of


def branchwise_rms_norm(node: Node) -> relax.Expr:
    """com.microsoft.BranchwiseRMSNorm: normalize each branch, which is an axis or a part of the last one."""
    x, scale = node.inputs[0], node.input(1)
    shape, branches = shape_of(x), node.attrs.get("num_branches", 0)
    parts = (*shape[:-1], branches, shape[-1] // branches) if branches else tuple(shape)
    result = _divided(node, x, parts)
    if scale is not None:
        scale = astype(node, scale, "float32")
        own = shape_of(scale)
        scale = scale if len(own) != 1 or own[0] == parts[-1] else node.reshape(scale, parts[-2:])
        result = node.emit(relax.op.multiply(result, scale))
    return astype(node, node.emit(relax.op.reshape(result, shape)), dtype_of(x))


def gated_rms_norm(node: Node) -> relax.Expr:
    """com.microsoft.GatedRMSNorm: multiply the norm by an activated gate."""
    x, scale, gate = node.inputs[:3]
    shape, size = shape_of(x), shape_of(scale)[0]
    if shape[-1] % size:
        raise ValueError(f"its last axis of {shape[-1]} is no multiple of the {size} numbers of its scale")
    result = _divided(node, x, (*shape[:-1], shape[-1] // size, size))
    result = node.emit(relax.op.multiply(result, astype(node, scale, "float32")))
    result = node.emit(relax.op.reshape(result, shape))
    name, gate = node.text("activation", "silu"), astype(node, gate, "float32")
    if name not in ("silu", "swish", "sigmoid"):
        raise ValueError(f"its activation is '{name}', and known are silu, swish and sigmoid")
    turned = node.emit(relax.op.sigmoid(gate))
    gate = turned if name == "sigmoid" else node.emit(relax.op.multiply(gate, turned))
    return astype(node, node.emit(relax.op.multiply(result, gate)), dtype_of(x))


def _divided(node: Node, x: relax.Expr, parts: tuple[int, ...]) -> relax.Expr:
    """Reshape to `parts` and divide by the root mean square of the last axis, in float32."""
    wide = node.emit(relax.op.reshape(astype(node, x, "float32"), parts))
    mean = node.emit(relax.op.mean(node.emit(relax.op.multiply(wide, wide)), -1, keepdims=True))
    epsilon = constant(node.attrs.get("epsilon", 1e-5), "float32")
    return node.emit(relax.op.multiply(wide, node.emit(relax.op.rsqrt(node.emit(relax.op.add(mean, epsilon))))))


CONVERTERS = {
    "com.microsoft.BranchwiseRMSNorm": branchwise_rms_norm,
    "com.microsoft.GatedRMSNorm": gated_rms_norm,
}

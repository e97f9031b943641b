# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's operators in NHWC layout, and its group normalization."""

from __future__ import annotations

from tvm import relax

from smartmem_tvm.frontend.converters.contrib import fused_conv
from smartmem_tvm.frontend.converters.integer_products import qlinear_conv
from smartmem_tvm.frontend.converters.node import Node, astype, dtype_of, shape_of


def channels_first(node: Node, x: relax.Expr | None) -> relax.Expr | None:
    """Return [batch, sizes ..., channels] as [batch, channels, sizes ...]."""
    if x is None:
        return None
    rank = len(shape_of(x))
    return node.emit(relax.op.permute_dims(x, [0, rank - 1, *range(1, rank - 1)]))


def channels_last(node: Node, x: relax.Expr) -> relax.Expr:
    """Return [batch, channels, sizes ...] as [batch, sizes ..., channels]."""
    return node.emit(relax.op.permute_dims(x, [0, *range(2, len(shape_of(x))), 1]))


def nhwc_conv(node: Node) -> relax.Expr:
    """com.microsoft.NhwcConv and NhwcFusedConv: weights are laid out as in Conv, the fourth input as the result."""
    x, residual = channels_first(node, node.inputs[0]), channels_first(node, node.input(3))
    inputs = [x, node.inputs[1], node.input(2), residual]
    return channels_last(node, node.emit(fused_conv(node.with_inputs(*inputs))))


def nhwc_max_pool(node: Node) -> relax.Expr:
    """com.microsoft.NhwcMaxPool of bytes."""
    kept = {key: value for key, value in node.attrs.items() if not key.startswith("tvm_custom")}
    return channels_last(node, node.call("MaxPool", channels_first(node, node.inputs[0]), **kept))


def qlinear_conv_either(node: Node) -> relax.Expr:
    """com.microsoft.QLinearConv: ONNX's, with ``channels_last`` for the input and the result."""
    if not node.attrs.get("channels_last", 0):
        return qlinear_conv(node)
    moved = node.with_inputs(channels_first(node, node.inputs[0]), *node.inputs[1:])
    return channels_last(node, node.emit(qlinear_conv(moved)))


def group_norm(node: Node) -> relax.Expr:
    """com.microsoft.GroupNorm, optionally followed by SiLU."""
    return _normalized(node, node.inputs[0])


def skip_group_norm(node: Node) -> relax.Expr:
    """com.microsoft.SkipGroupNorm: GroupNorm of a sum with a residual and a bias; the second output is the sum."""
    x, skip, bias = node.inputs[0], node.inputs[3], node.input(4)
    total = node.emit(relax.op.add(x, _for_channels(node, skip, shape_of(x))))
    if bias is not None:
        total = node.emit(relax.op.add(total, _for_channels(node, bias, shape_of(x))))
    result = _normalized(node, total)
    return result if node.outputs == 1 else relax.Tuple([result, total])


def _axis(node: Node, rank: int) -> int:
    return rank - 1 if node.attrs.get("channels_last", 1) else 1


def _for_channels(node: Node, x: relax.Expr, shape: list[int]) -> relax.Expr:
    """Reshape one number for each channel, or batch and channel, so that it broadcasts; keep a whole tensor."""
    own, axis = shape_of(x), _axis(node, len(shape))
    if own == shape:
        return x
    batch = own[0] if len(own) > 1 else 1
    if own not in ([shape[axis]], [shape[0], shape[axis]], [shape[0], *[1] * (len(shape) - 2), shape[axis]]):
        raise ValueError(f"it adds numbers of shape {own} to a tensor of shape {shape}")
    return node.reshape(x, [batch if at == 0 else shape[axis] if at == axis else 1 for at in range(len(shape))])


def _normalized(node: Node, x: relax.Expr) -> relax.Expr:
    gamma, beta = node.inputs[1], node.inputs[2]
    rank, groups, given = len(shape_of(x)), node.attrs["groups"], dtype_of(x)
    axis = _axis(node, rank)
    if shape_of(x)[axis] % groups:
        raise ValueError(f"it has {shape_of(x)[axis]} channels, which are not {groups} groups of equal size")
    wide, gamma, beta = (astype(node, each, "float32") for each in (x, gamma, beta))
    axes = [at for at in range(1, rank) if at != axis]
    epsilon = node.attrs.get("epsilon", 1e-5)
    result = node.emit(relax.op.nn.group_norm(wide, gamma, beta, groups, axis, axes, epsilon))
    if node.attrs.get("activation", 0):
        result = node.emit(relax.op.nn.silu(result))
    return astype(node, result, given)


CONVERTERS = {
    "com.microsoft.GroupNorm": group_norm,
    "com.microsoft.NhwcConv": nhwc_conv,
    "com.microsoft.NhwcFusedConv": nhwc_conv,
    "com.microsoft.NhwcMaxPool": nhwc_max_pool,
    "com.microsoft.QLinearConv": qlinear_conv_either,
    "com.microsoft.SkipGroupNorm": skip_group_norm,
}

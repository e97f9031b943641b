# SPDX-License-Identifier: Apache-2.0
"""Normalizations."""

from tvm import relax

from smartmem_tvm.frontend.converters.node import Node


def layer_normalization(node: Node) -> relax.Expr | None:
    """LayerNormalization in double precision, or whose mean and inverse deviation are asked for: in pieces.

    TVM's operator knows neither: its code generator refuses float64, and its converter gives constants for the
    second and third result.
    """
    x, scale, bias = (*node.inputs, None)[:3]
    dtype = str(x.ty.dtype.dtype)
    if node.outputs == 1 and dtype != "float64":
        return None
    stash = "float32" if node.attrs.get("stash_type", 1) == 1 else dtype
    working = "float64" if dtype == "float64" else stash
    axes = list(range(node.attrs.get("axis", -1) % x.ty.ndim, x.ty.ndim))
    wide = node.bb.normalize(relax.op.astype(x, working))
    mean = node.bb.emit(relax.op.mean(wide, axes, keepdims=True))
    centred = node.bb.emit(relax.op.subtract(wide, mean))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    inverse = node.bb.emit(
        relax.op.rsqrt(relax.op.add(variance, relax.const(node.attrs.get("epsilon", 1e-5), working)))
    )
    result = relax.op.multiply(relax.op.astype(relax.op.multiply(centred, inverse), dtype), scale)
    result = result if bias is None else relax.op.add(result, bias)
    statistics = [relax.op.astype(each, stash) for each in (mean, inverse)]
    return relax.Tuple([node.bb.emit(each) for each in (result, *statistics)][: node.outputs])


CONVERTERS = {
    "LayerNormalization": layer_normalization,
}

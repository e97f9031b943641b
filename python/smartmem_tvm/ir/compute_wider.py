# SPDX-License-Identifier: Apache-2.0
"""Compute an operator on 16-bit floats in float32: cast its operands, and cast its results back."""

from __future__ import annotations

from tvm import ir, relax

WIDE = "float32"


def computed_wider(builder: relax.BlockBuilder, call: relax.Call, halves: tuple[str, ...]) -> relax.Expr:
    """Return `call` computed in float32; results of the types `halves` are cast back to their own types."""

    def widened(arg: relax.Expr) -> relax.Expr:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([widened(field) for field in arg.fields])
        return builder.emit(relax.op.astype(arg, WIDE)) if is_half(arg.ty, halves) else arg

    wide = builder.emit(ir.Call(call.op, [widened(arg) for arg in call.args], call.attrs))
    return _narrowed(builder, wide, call.ty, halves)


def _narrowed(builder: relax.BlockBuilder, value: relax.Expr, ty, halves: tuple[str, ...]) -> relax.Expr:
    if isinstance(ty, relax.TupleType):
        fields = [builder.emit(relax.TupleGetItem(value, at)) for at in range(len(ty.fields))]
        parts = [_narrowed(builder, *each, halves) for each in zip(fields, ty.fields, strict=True)]
        return relax.Tuple([builder.emit(part) for part in parts])
    return relax.op.astype(value, str(ty.dtype.dtype)) if is_half(ty, halves) else value


def is_half(ty, halves: tuple[str, ...]) -> bool:
    """Whether a tensor has one of the types `halves`."""
    return isinstance(ty, relax.TensorType) and ty.dtype is not None and str(ty.dtype.dtype) in halves

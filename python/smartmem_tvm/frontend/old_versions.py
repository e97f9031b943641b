# SPDX-License-Identifier: Apache-2.0
"""The versions of ONNX at which a form of an operator ended; `converters.old_forms` converts each to the next."""

from __future__ import annotations

_BROADCAST = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")

ENDED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_BROADCAST, (7,)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "Squeeze", "Unsqueeze", "ReduceSum", "Split"), (13,)),
    **dict.fromkeys(("LpPool", "GlobalLpPool"), (2,)),
    **dict.fromkeys(("Cast", "Selu", "Tile"), (6,)),
    **dict.fromkeys(("Clip", "Pad"), (11,)),
    **dict.fromkeys(("PRelu", "Upsample"), (7,)),
    "BatchNormalization": (9,),
    "Concat": (4,),
    "Reshape": (5,),
    "Slice": (10,),
    "TopK": (10, 11),
}
"""Operator -> the versions from which its form or its meaning differs from before."""


def is_old(op: str, opset: int) -> bool:
    """Whether a later version has another form of an operator."""
    return any(opset < before for before in ENDED.get(op, ()))

# SPDX-License-Identifier: Apache-2.0
"""The versions of ONNX at which a form of an operator ended; `converters.old_forms` brings them into the next one."""

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
"""Operator -> the versions from which on it is written in another way, or says another thing, than before."""


def is_old(op: str, opset: int) -> bool:
    """Whether an operator has another form since a later version."""
    return any(opset < before for before in ENDED.get(op, ()))

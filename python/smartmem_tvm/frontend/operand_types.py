# SPDX-License-Identifier: Apache-2.0
"""The kinds of numbers that an operator takes by ONNX's own schema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import onnx

_KINDS = {"bool": "truth values", "int": "integers", "uint": "integers", "float": "floats", "bfloat": "floats"}
_KINDS |= {"double": "floats"}


def kind_of(dtype: str) -> str | None:
    """Return the kind of numbers of a type from its name, with or without a size; None for strings and the like."""
    return _KINDS.get(dtype.rstrip("0123456789").partition("8e")[0].partition("4e")[0])


def misfit(op: str, opset: int, dtypes: Sequence[str | None]) -> str | None:
    """Return why an operator takes no operands of these types; None if it does or if ONNX has no operator of that name.

    TVM's converters do not check: BitwiseNot of floats fails in its code generator. Widths are not checked here, as
    operators of this package take more of them than ONNX does.

    Parameters
    ----------
    dtypes : sequence of str or None
        The type of each operand; None for one that is omitted or not a tensor.
    """
    operands = _operands(op, opset)
    first: dict[str, str] = {}
    for number, dtype in enumerate(dtypes if operands else ()):
        kind = kind_of(dtype or "")
        name, allowed, together = operands[min(number, len(operands) - 1)]
        if kind is None or not allowed:
            continue
        if kind not in allowed:
            return f"its input {number} has {kind}, and {op} takes {' or '.join(sorted(allowed))}"
        if together and first.setdefault(name, kind) != kind:
            return f"its inputs have {first[name]} and {kind}, and {op} takes numbers of one type"
    return None


@cache
def _operands(op: str, opset: int) -> list[tuple[str, frozenset[str], bool]]:
    """Return for each input: its type's name, the kinds of numbers it may have, whether inputs of that name agree."""
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return []
    types = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    found = []
    for each in schema.inputs:
        names = types.get(each.type_str, [each.type_str])
        tensors = [name[7:-1] for name in names if name.startswith("tensor(")]
        # Sequences and optionals are not checked.
        kinds = {kind_of(name) for name in tensors} - {None} if len(tensors) == len(names) else set()
        found.append((each.type_str, frozenset(kinds), each.is_homogeneous and each.type_str in types))
    return found

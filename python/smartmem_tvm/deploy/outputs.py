# SPDX-License-Identifier: Apache-2.0
"""The outputs of a function of a compiled model: their names, and whether each has its own memory."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import ir, relax


@dataclass(frozen=True)
class Output:
    """An output of a function.

    Attributes
    ----------
    name : str
    own : bool
        Whether each inference writes it into memory that no input, constant or other output shares.
    """

    name: str
    own: bool


def outputs(mod: tvm.IRModule, function: str, kept: bool = False) -> list[Output]:
    """Return the outputs of a function, in their order.

    Parameters
    ----------
    mod : tvm.IRModule
        Module after the graph passes.
    kept : bool
        Whether all memory belongs to the virtual machine, which overwrites it in the next inference.
    """
    func = mod[function]
    own = [not copied and not kept for copied in not_of_their_own(func)]
    known = [str(name) for name in (func.attrs or {}).get("output_names", ())]
    names = known if len(known) == len(own) else [f"output_{number}" for number in range(len(own))]
    return [Output(*each) for each in zip(names, own, strict=True)]


def not_of_their_own(function: relax.Function) -> list[bool]:
    """Return, for each result, whether it shares memory with an input, a constant or another result.

    The caller then gets a copy. A result shares memory if the passes left nothing to compute for it.
    """
    values = {b.var: b.value for block in function.body.blocks for b in block.bindings}
    result = _followed(function.body.body, values)
    seen: set = set()
    copied = []
    for field in result.fields if isinstance(result, relax.Tuple) else [result]:
        root = _root(field, values)
        copied.append(root is None or root in seen)
        seen.add(root)
    return copied


def _followed(expr: relax.Expr, values: dict) -> relax.Expr:
    """Return the value of a variable, through chains of variables."""
    while isinstance(expr, relax.Var) and isinstance(values.get(expr), relax.Var | relax.Tuple):
        expr = values[expr]
    return expr


def _root(expr: relax.Expr, values: dict) -> tuple | None:
    """Return the kernel that wrote a value, and the number of its result; None for a value that no kernel wrote."""
    index = 0
    while True:
        value = values.get(expr) if isinstance(expr, relax.Var) else expr
        if isinstance(value, relax.TupleGetItem):
            index, expr = value.index, value.tuple_value
        elif isinstance(value, relax.Call) and isinstance(value.op, ir.Op) and value.op.name == "relax.call_tir":
            return expr, index
        elif isinstance(value, relax.Var):
            expr = value
        else:
            return None

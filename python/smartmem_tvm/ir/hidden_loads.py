# SPDX-License-Identifier: Apache-2.0
"""An expression of numbers alone, without the arithmetic of the indices that they are loaded at."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from .._tvm import mapped


def hide_loads(expr: ir.Expr) -> tuple[ir.Expr, dict[tirx.Var, ir.TensorLoad]]:
    """The expression with a variable in the place of each load, one for equal ones; variable -> load."""
    names: dict[int, tirx.Var] = {}
    hidden: dict[tirx.Var, ir.TensorLoad] = {}

    def hide(load: ir.TensorLoad) -> tirx.Var:
        var = names.setdefault(tvm_ffi.structural_hash(load), tirx.Var("loaded", load.ty))
        hidden[var] = load
        return var

    # Before what is in it: a load in an index goes with the index.
    return mapped(expr, (ir.TensorLoad, hide), order="pre"), hidden

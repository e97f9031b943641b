# SPDX-License-Identifier: Apache-2.0
"""Hide the loads of an expression behind variables, so that index arithmetic does not show."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from .._tvm import mapped


def hide_loads(expr: ir.Expr) -> tuple[ir.Expr, dict[tirx.Var, ir.TensorLoad]]:
    """Return the expression with loads replaced by variables (one for equal loads), and variable -> load."""
    names: dict[int, tirx.Var] = {}
    hidden: dict[tirx.Var, ir.TensorLoad] = {}

    def hide(load: ir.TensorLoad) -> tirx.Var:
        var = names.setdefault(tvm_ffi.structural_hash(load), tirx.Var("loaded", load.ty))
        hidden[var] = load
        return var

    # Pre-order: a load in an index disappears with the load around it.
    return mapped(expr, (ir.TensorLoad, hide), order="pre"), hidden

# SPDX-License-Identifier: Apache-2.0
"""Which vectorized loops TVM's code generators do not make vectors of."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from .index_map import is_if_then_else, variables


def has_no_vector(call: ir.Call, lane: tirx.Var) -> bool:
    """Whether TVM computes this number by number: a branch that depends on the lane, or a function like erf."""
    if is_if_then_else(call):
        return lane in variables(call.args[0])
    return isinstance(call.op, ir.Op) and not call.op.get_attr("TVectorizable")


def is_scalarized(loop: tirx.For) -> bool:
    """Whether TVM makes a loop over single numbers of a vectorized one, with loads and stores of single numbers.

    Parameters
    ----------
    loop : tvm.tirx.For
        Vectorized, its body without blocks.
    """
    lane, calls, branches = loop.loop_var, [], []
    tvm_ffi.structural_walk(loop.body, [(ir.Call, calls.append), (tirx.IfThenElse, branches.append)])
    if any(lane in variables(branch.condition) for branch in branches):
        return True
    return any(lane in variables(call) and has_no_vector(call, lane) for call in calls)

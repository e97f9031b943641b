# SPDX-License-Identifier: Apache-2.0
"""Which vectorized loops TVM's code generators do not make vectors of."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.s_tir import SBlockRealize

from .index_map import is_if_then_else, variables
from .walk import collect, contains, loads, stores


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
    lane = loop.loop_var
    if contains(loop.body, tirx.IfThenElse, lambda branch: lane in variables(branch.condition)):
        return True
    return contains(loop.body, ir.Call, lambda call: lane in variables(call) and has_no_vector(call, lane))


def lanes_of(loop: tirx.For) -> set:
    """The variables that tell the lanes of a vectorized loop apart."""
    found = {loop.loop_var}
    for realize in collect(loop, SBlockRealize):
        bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        found |= {it.var for it, at in bound if found & set(variables(at))}
    return found


def accesses_to_booleans(root) -> list:
    """Loads and stores of booleans: in a vector TVM takes them for wider numbers than they are in memory."""
    read = [load for load in loads(root) if str(load.source.dtype) == "bool"]
    return read + [store for store in stores(root) if str(store.buffer.dtype) == "bool"]

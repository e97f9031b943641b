# SPDX-License-Identifier: Apache-2.0
"""Operators along an axis: cumulative sums and products, and reversed sequences."""

from __future__ import annotations

from tvm import relax, te, tirx

from smartmem_tvm.frontend.converters.node import Node, shape_of

_RUNNING = {"CumSum": relax.op.cumsum, "CumProd": relax.op.cumprod}


def running(node: Node) -> relax.Expr:
    """CumSum and CumProd along any axis, inclusive or exclusive, from either end."""
    x, axis = node.inputs[0], node.constant(1)
    if axis is None:
        raise ValueError("its axis is known only at run time; make it an initializer")
    axis, rank = int(axis.reshape(-1)[0]), len(shape_of(x))
    if not -rank <= axis < rank:
        raise ValueError(f"its axis {axis} is none of a tensor of rank {rank}")
    reverse = bool(node.attrs.get("reverse", 0))
    x = node.emit(relax.op.flip(x, axis % rank)) if reverse else x
    exclusive = bool(node.attrs.get("exclusive", 0))
    result = node.emit(_RUNNING[node.op.rpartition(".")[2]](x, axis % rank, exclusive=exclusive))
    return relax.op.flip(result, axis % rank) if reverse else result


def reverse_sequence(node: Node) -> relax.Expr:
    """ReverseSequence: reverse the first elements of each sequence, as many as its length states."""
    along, batch = node.attrs.get("time_axis", 0), node.attrs.get("batch_axis", 1)
    steps = shape_of(node.inputs[0])[along]

    def reverse(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*at):
            length = tirx.min(tirx.Cast("int64", lengths[at[batch]]), tirx.IntImm("int64", steps))
            source = list(at)
            # Arithmetic instead of Select, whose branches TVM's simplifier gives different types in an index.
            inside = tirx.Cast("int64", at[along] < length)
            source[along] = at[along] + inside * (length - 1 - at[along] - at[along])
            return x(*source)

        return te.compute(x.shape, element, "reverse")

    return node.bb.emit_te(reverse, *node.inputs, primfunc_name_hint="reverse_sequence")


CONVERTERS = {
    "CumProd": running,
    "CumSum": running,
    "ReverseSequence": reverse_sequence,
    "smartmem.CumProd": running,  # of `torch_scans`
}

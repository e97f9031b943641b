# SPDX-License-Identifier: Apache-2.0
"""FoldNormAffine: scale and shift of a layer normalization move into the linear layers after it."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import ir, relax, topi

from ....ir.block import Bindings, edit_blocks, folded, operator, shape_of, weight
from .push_affine import Affine, push


@tvm.transform.module_pass(opt_level=0, name="smartmem.FoldNormAffine")
class FoldNormAffine:
    """Leave scale and shift of a layer normalization to the matmuls and convolutions that read it.

    Before::

        y = layer_norm(x, gamma, beta)
        z = add(matmul(reshape(y), w), b)

    After::

        y = layer_norm(x, 1, 0)
        z = add(matmul(reshape(y), gamma * w), b + beta @ w)      # both known at compile time

    This is DNNFusion's distributive law. The normalization becomes a PrimFunc without the two operands, which is a
    fifth to a third faster. Refused if `gamma` or `beta` is no constant, if a reader of the result (through operators
    that move data) has no constant weights, has padding or is a result of the function, and for any axis but the last.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        builder = relax.BlockBuilder(mod.clone())
        new = edit_blocks(mod, lambda block: fold_norm_affine(block, lambda call: _without_affine(call, builder)))
        for gvar, function in builder.get().functions.items():
            if gvar not in new.functions:
                new.update_func(gvar, function)
        return new


def fold_norm_affine(block: Bindings, without_affine: Callable[[ir.Call], relax.Expr]) -> list[dict]:
    """Fold scales and shifts in place; `without_affine` makes the bare operator. Return one decision for each."""
    decisions = []
    for var in block.order:
        affine = _affine(block.values[var])
        edits = None if affine is None else push(block, var, affine)
        if edits:
            block.edit({**edits, var: without_affine(block.values[var])})
            decisions.append(folded("FoldNormAffine", var, edits, flops=2))
    return decisions


def _affine(value) -> Affine | None:
    """Return scale and shift of a layer normalization of the last axis."""
    if operator(value) != "nn.layer_norm" or shape_of(value) is None:
        return None
    ndim = len(shape_of(value))
    gamma, beta = (weight(arg) for arg in value.args[1:3])
    if gamma is None or beta is None or [int(axis) % ndim for axis in value.attrs.axes] != [ndim - 1]:
        return None
    return Affine(*(each.reshape((1,) * (ndim - 1) + (-1,)) for each in (gamma, beta)))


def _without_affine(call: ir.Call, builder: relax.BlockBuilder) -> relax.Expr:
    def normalize(data):
        axis = len(data.shape) - 1
        same, nothing = (topi.full(data.shape[-1:], data.dtype, number) for number in (1.0, 0.0))
        return topi.nn.layer_norm(data, same, nothing, [axis], call.attrs.epsilon)

    return builder.call_te(normalize, call.args[0], primfunc_name_hint="layer_norm")

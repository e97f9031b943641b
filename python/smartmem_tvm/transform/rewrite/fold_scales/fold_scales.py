# SPDX-License-Identifier: Apache-2.0
"""FoldScales: multiplications by constants move into weights."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, relax

from ....ir.block import Bindings, edit_blocks, folded, operator, shape_of, weight
from ....tables.operator_cost import FLOPS
from .constant_factors import aligned
from .pull_scale import pull
from .push_affine import Affine, push


@tvm.transform.module_pass(opt_level=0, name="smartmem.FoldScales")
class FoldScales:
    """Multiply the weights of a linear layer at compile time instead of its result, or its operand, at run time.

    Before::

        q = add(matmul(x, wq), bq)
        s = matmul(permute_dims(reshape(q)), k)
        p = multiply(s, 0.125)

    After::

        q = add(matmul(x, wq * 0.125), bq * 0.125)
        p = matmul(permute_dims(reshape(q)), k)

    This is DNNFusion's associative law. A constant factor, one number or one for each channel, moves back through
    matmuls, convolutions (grouped ones too), additions of constants and operators that only move data, slices among
    them, until it meets constant weights. Failing that, it moves forward to the weights of all readers of the product.
    So batch normalization is folded into the convolution before it.

    Refused are factors that broadcast the tensor or differ along other axes than the channels, and tensors on the way
    that have other readers.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        return edit_blocks(mod, fold_scales)


def fold_scales(block: Bindings) -> list[dict]:
    """Fold factors in place; return one decision for each multiplication that is removed."""
    decisions = []
    for var in block.order:
        found = _factor(block.values[var])
        if found is None:
            continue
        operand, scale = found
        name = operator(block.values[var])
        edits = pull(block, operand, scale, var) or push(block, var, Affine(scale))
        if edits:
            block.edit({**edits, var: operand})
            decisions.append(folded("FoldScales", var, edits, flops=FLOPS[name]))
    return decisions


def _factor(value) -> tuple[relax.Var, np.ndarray] | None:
    """Return the tensor and the scale of a multiplication or division by a constant."""
    name = operator(value)
    if name not in ("multiply", "divide"):
        return None
    left, right = value.args
    if name == "multiply" and isinstance(left, ir.Constant):
        left, right = right, left
    factor = weight(right)
    if factor is None or not isinstance(left, ir.Var) or shape_of(left) is None:
        return None
    with np.errstate(divide="ignore"):
        scale = aligned(factor if name == "multiply" else 1 / factor, shape_of(left))
    return None if scale is None or not np.isfinite(scale).all() else (left, scale)

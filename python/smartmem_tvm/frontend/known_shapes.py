# SPDX-License-Identifier: Apache-2.0
"""Shapes that TVM's converters read when the model runs, as numbers: all of them are known.

    s = shape_of(x)                                   # x: (4, 24, 64)
    n = take(shape_to_tensor(s), -1)
    y = gather_elements(x, where(i < 0, i + n, i))    becomes    y = gather_elements(x, where(i < 0, i + 64, i))

The converters of GatherElements, GatherND and the like count negative indices from the end in this way.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from smartmem_tvm.ir.index_map import variables
from smartmem_tvm.ir.kernel import substitute

_SHAPE_OF, _TO_TENSOR, _TAKE, _SLICE, _CAST = (
    ir.Op.get(f"relax.{name}") for name in ("shape_of", "shape_to_tensor", "take", "strided_slice", "astype")
)


def with_known_shapes(func: relax.Function) -> relax.Function:
    """Return a function in which shapes that are read as tensors, and parts of them, are constants."""
    known: dict[relax.Var, tuple | np.ndarray] = {}
    constants: dict[relax.Var, relax.Expr] = {}
    blocks = []
    for block in func.body.blocks:
        bindings = []
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            found = _known(value, known) if isinstance(value, ir.Call) else None
            if found is not None:
                known[binding.var] = found
                if isinstance(found, np.ndarray):
                    constants[binding.var] = relax.const(found, str(found.dtype))
            elif constants and isinstance(binding, relax.VarBinding):
                binding = relax.VarBinding(binding.var, substitute(value, constants))
            bindings.append(binding)
        blocks.append((block, bindings))
    if not known:
        return func
    computed = [each.value for _, bindings in blocks for each in bindings if each.var not in known]
    read = {var for value in (*computed, func.body.body) for var in variables(value)}
    return relax.Function(
        func.params,
        relax.SeqExpr([_without(*each, known, constants, read) for each in blocks], func.body.body),
        func.ret_ty,
        func.is_pure,
        func.attrs,
    )


def _without(block, bindings: list, known: dict, constants: dict, read: set):
    """Return a block in which a known tensor is a constant, and is missing if nothing reads it."""
    kind = relax.DataflowBlock if isinstance(block, relax.DataflowBlock) else relax.BindingBlock
    kept = [each for each in bindings if each.var not in known or each.var in read]
    return kind([relax.VarBinding(e.var, constants[e.var]) if e.var in constants else e for e in kept])


def _known(call: ir.Call, known: dict) -> tuple | np.ndarray | None:
    """Return a shape, or numbers of one, that a call computes; None if it computes anything else."""
    first = call.args[0] if call.args else None
    if call.op == _SHAPE_OF:
        sizes = getattr(getattr(first, "ty", None), "shape", None)
        return tuple(map(int, sizes.values)) if isinstance(sizes, relax.ShapeExpr) and _are_numbers(sizes) else None
    if call.op == _TO_TENSOR:
        sizes = known.get(first)
        return np.array(sizes, "int64") if isinstance(sizes, tuple) else None
    value = known.get(first)
    if not isinstance(value, np.ndarray):
        return None
    if call.op == _CAST:
        return value.astype(str(call.ty.dtype.dtype))
    if call.op == _TAKE and value.ndim == 1 and isinstance(call.args[1], ir.GenericConst):
        return np.asarray(value.take(call.args[1].value.numpy(), mode="wrap"))
    if call.op == _SLICE and value.ndim == 1:
        bounds = [[getattr(each, "value", None) for each in getattr(arg, "fields", ())] for arg in call.args[2:]]
        if all(len(each) == 1 and isinstance(each[0], int) for each in bounds):
            return value[slice(*(each[0] for each in bounds))]
    return None


def _are_numbers(sizes: relax.ShapeExpr) -> bool:
    return all(isinstance(getattr(each, "value", None), int) for each in sizes.values)

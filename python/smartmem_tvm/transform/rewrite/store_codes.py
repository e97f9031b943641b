# SPDX-License-Identifier: Apache-2.0
"""StoreCodes: weights of products that are dequantised integers stay integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import ir, relax

from ...ir.block import Bindings, add_functions, as_constant, edit_blocks, operator, shape_of
from ...ir.codes import IN_WORD, LEAST, NAME, dequantized

_LARGEST = 255
"""Of a difference of two bytes, by definition."""
_INTEGERS = ("int8", "uint8", "int16")


@tvm.transform.module_pass(opt_level=0, name="smartmem.StoreCodes")
class StoreCodes:
    """Keep the integers of a dequantised weight, and their scales, if products read it.

    Before, with ``q`` of bytes and a scale for each 32 of them along the depth::

        w = multiply(astype(q, float32), repeat(s, 32, axis=0));   y = matmul(x, w)

    After::

        w = call_tir(dequantize_weight, (q, s));                   y = matmul(x, w)

    `ReadCodes` then puts `dequantize_weight` into the products, so that neither memory nor the file holds floats.

    Refuses (leaves to the folding of constants) weights of less than 4096 numbers, with more than two dimensions, or
    with a scale for fewer than eight numbers along the depth, and weights that something other than a product in
    float32 reads.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        builder = relax.BlockBuilder(mod)
        changed = edit_blocks(mod, lambda block: _store(block, builder), leaves_unread=False)
        return add_functions(changed, builder)


@dataclass(frozen=True, eq=False)
class _Weight:
    """The integers of a weight, and their scales in a shape that broadcasts against them."""

    numbers: np.ndarray
    scale: np.ndarray


def _store(block: Bindings, builder: relax.BlockBuilder) -> list[dict]:
    decisions = []
    for var in block.order:
        weight = _dequantised(block, var)
        if weight is None:
            continue
        axis = _axis_of_depth(block, var)
        group = None if axis is None else _group(weight, axis)
        decision = {"pass": "StoreCodes", "operator": var.name}
        if group is None:
            reason = "something else than products reads it" if axis is None else "its scales have no groups"
            decisions.append({**decision, "action": "expanded", "reason": reason})
            continue
        scale = np.broadcast_to(weight.scale, weight.numbers.shape)
        scale = np.ascontiguousarray(scale[::group] if axis == 0 else scale[:, ::group], "float32")
        kind = "int8" if _fits(weight.numbers, "int8") else "int16"
        operands = as_constant(weight.numbers.astype(kind)), as_constant(scale)
        block.edit({var: builder.call_te(dequantized(axis, group), *operands, primfunc_name_hint=NAME)})
        decisions.append({**decision, "action": "kept as integers", "group": group})
    return decisions


def _dequantised(block: Bindings, var) -> _Weight | None:
    """Return the integers and scales of a product of both, if it is a large matrix of float32; else None."""
    value, shape = block.values[var], shape_of(var)
    if operator(value) != "multiply" or shape is None or len(shape) != 2 or np.prod(shape) < LEAST:
        return None
    for numbers, scale in (value.args, [*value.args][::-1]):
        found, factor = _integers(block, numbers), _scales(block, scale)
        if found is not None and factor is not None and found.shape == shape:
            return _Weight(found, factor)
    return None


def _integers(block: Bindings, expr) -> np.ndarray | None:
    """Return a constant of integers that was cast to float32, or is about to be."""
    cast = block.values.get(expr) if isinstance(expr, ir.Var) else expr
    if operator(cast) == "astype":
        known = _constant(cast.args[0])
        fits = known is not None and str(known.dtype) in _INTEGERS and str(cast.ty.dtype.dtype) == "float32"
        return known if fits else None
    known = _constant(expr)
    if known is None or known.dtype != np.float32 or known.size < LEAST or not _fits(known, "int16"):
        return None
    return known if np.array_equal(known, np.rint(known)) else None


def _scales(block: Bindings, expr) -> np.ndarray | None:
    """Return scales that are a constant, or one whose numbers are repeated, the last of them fewer times."""
    known = _constant(expr)
    if known is not None:
        return known if known.dtype == np.float32 and np.all(np.isfinite(known)) else None
    value = block.values.get(expr) if isinstance(expr, ir.Var) else expr
    if operator(value) == "strided_slice":
        inner, shape = _scales(block, value.args[0]), shape_of(value)
        begins = [int(each) for each in value.args[2].fields]
        return inner[tuple(map(slice, shape))] if inner is not None and not any(begins) else None
    if operator(value) != "repeat" or value.attrs.axis is None:
        return None
    inner = _scales(block, value.args[0])
    return None if inner is None else np.repeat(inner, int(value.attrs.repeats), int(value.attrs.axis))


def _constant(expr) -> np.ndarray | None:
    tensor = isinstance(expr, ir.Constant) and isinstance(expr.ty, relax.TensorType)
    return expr.value.numpy() if tensor else None


def _fits(numbers: np.ndarray, dtype: str) -> bool:
    """Whether integers fit into a type, of which int16 holds differences of two bytes."""
    low, high = (-_LARGEST, _LARGEST) if dtype == "int16" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(numbers.min() >= low and numbers.max() <= high)  # false for NaN


def _axis_of_depth(block: Bindings, var) -> int | None:
    """Return the dimension along which all readers add up products, None if they are not all products."""
    if not isinstance(var, relax.DataflowVar):
        return None
    found = set()
    for reader in block.readers(var):
        value, name = block.values[reader], operator(block.values[reader])
        if name == "permute_dims":
            axis = _axis_of_depth(block, reader)
            found.add(None if axis is None else 1 - axis)
        elif name == "matmul" and str(reader.ty.dtype.dtype) == "float32":
            found |= {0 if n else 1 for n, arg in enumerate(value.args) if arg.same_as(var)}
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _group(weight: _Weight, axis: int) -> int | None:
    """Return how many numbers along the depth have the same scale; None if they have no groups, or small ones."""
    depth, scale = weight.numbers.shape[axis], weight.scale
    scale = scale.reshape((1,) * (2 - scale.ndim) + scale.shape) if scale.ndim < 2 else scale
    along = scale if axis == 0 else scale.T
    if len(along) == 1:
        return depth
    changes = np.flatnonzero(np.any(along[1:] != along[:-1], axis=1)) + 1
    if not len(changes):
        return depth
    group = int(np.gcd.reduce(changes))
    return group if group >= IN_WORD and group % IN_WORD == 0 else None

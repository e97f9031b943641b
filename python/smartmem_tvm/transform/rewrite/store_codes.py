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

    Products may share it with gathers of its rows, and so may a table of the same numbers of which rows are gathered.
    `ReadCodes` then puts `dequantize_weight` into its readers, so that neither memory nor the file holds floats.

    Refuses (leaves to the folding of constants) weights of less than 4096 numbers, with more than two dimensions, or
    with a scale for fewer than eight numbers along the depth, and weights that something reads besides products in
    float32 and, where there is one, gathers of rows.
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

    def operands(self, axis: int, group: int) -> tuple[relax.Constant, relax.Constant]:
        """Return the constants of the integers and of the scales of groups along a dimension."""
        scale = np.broadcast_to(self.scale, self.numbers.shape)
        scale = np.ascontiguousarray(scale[::group] if axis == 0 else scale[:, ::group], "float32")
        kind = "int8" if _fits(self.numbers, "int8") else "int16"
        return as_constant(self.numbers.astype(kind)), as_constant(scale)


@dataclass(frozen=True, eq=False)
class _Stored:
    """A weight in codes: its constants, and the dimension along which its groups lie."""

    axis: int
    group: int
    operands: tuple[relax.Constant, relax.Constant]

    def axis_in(self, weight: _Weight) -> int | None:
        """Return the dimension of the groups in a weight of the same numbers, perhaps transposed; None for others."""
        shape = tuple(map(int, self.operands[0].value.shape))
        for axis, turned in ((self.axis, False), (1 - self.axis, True)):
            same = weight.numbers.shape == (shape[::-1] if turned else shape)
            if not same or _group(weight, axis) != self.group:
                continue
            pairs = zip(self.operands, weight.operands(axis, self.group), strict=True)
            values = ((one.value.numpy(), other.value.numpy()) for one, other in pairs)
            if all(np.array_equal(one.T if turned else one, other) for one, other in values):
                return axis
        return None


def _store(block: Bindings, builder: relax.BlockBuilder) -> list[dict]:
    decisions, kept = [], []
    read = {var: _read_along(block, var) for var in block.order if _is_matrix(block, var)}
    # Products first: rows are gathered of their weights only. `PackCodes` brings both into one form.
    for var in sorted(read, key=lambda each: _only_gathers(read[each])):
        weight = _dequantised(block, var)
        if weight is None:
            continue
        decision = {"pass": "StoreCodes", "operator": var.name}
        stored, reason = _stored(weight, read[var], kept)
        if stored is None:
            decisions.append({**decision, "action": "expanded", "reason": reason})
            continue
        kept += [] if _only_gathers(read[var]) else [stored]
        function = dequantized(stored.axis, stored.group)
        block.edit({var: builder.call_te(function, *stored.operands, primfunc_name_hint=NAME)})
        decisions.append({**decision, "action": "kept as integers", "group": stored.group})
    return decisions


def _only_gathers(read: tuple[set[int], set[int]] | None) -> bool:
    return read is not None and not read[0]


def _stored(weight: _Weight, read: tuple[set[int], set[int]] | None, kept: list[_Stored]) -> tuple[_Stored | None, str]:
    """Return how a weight is kept, or None and why it is not.

    Parameters
    ----------
    read : (set of int, set of int) or None
        As `_read_along` returns it.
    kept : list of _Stored
        The weights of products.
    """
    if read is None:
        return None, "something else than products reads it"
    along, gathered = read
    if not along:
        along = {axis for each in kept if (axis := each.axis_in(weight)) is not None}
    if not along:
        return None, "rows of it are gathered, and no product reads it"
    if len(along) > 1 or along & gathered:
        return None, "its readers do not agree on the depth"
    axis = min(along)
    group = _group(weight, axis)
    if group is None:
        return None, "its scales have no groups"
    return _Stored(axis, group, weight.operands(axis, group)), ""


def _is_matrix(block: Bindings, var) -> bool:
    """Whether a variable is a large matrix that is a product."""
    shape = shape_of(var) if operator(block.values[var]) == "multiply" else None
    return shape is not None and len(shape) == 2 and np.prod(shape) >= LEAST


def _dequantised(block: Bindings, var) -> _Weight | None:
    """Return the integers and scales of a matrix that is a product of both; else None."""
    args = [*block.values[var].args]
    for numbers, scale in (args, args[::-1]):
        found, factor = _integers(block, numbers), _scales(block, scale)
        if found is not None and factor is not None and found.shape == shape_of(var):
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


def _read_along(block: Bindings, var) -> tuple[set[int], set[int]] | None:
    """Return the dimensions along which products add up, and those along which rows are gathered.

    None if something else reads the weight.
    """
    if not isinstance(var, relax.DataflowVar):
        return None
    along, gathered = set(), set()
    for reader in block.readers(var):
        value, name = block.values[reader], operator(block.values[reader])
        if name == "permute_dims":
            inner = _read_along(block, reader)
            if inner is None:
                return None
            along, gathered = (old | {1 - axis for axis in new} for old, new in zip((along, gathered), inner))
        elif name == "matmul" and str(reader.ty.dtype.dtype) == "float32":
            along |= {0 if n else 1 for n, arg in enumerate(value.args) if arg.same_as(var)}
        elif name == "take" and value.args[0].same_as(var) and value.attrs.axis is not None:
            gathered.add(int(value.attrs.axis) % 2)
        else:
            return None
    return along, gathered


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

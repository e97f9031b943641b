# SPDX-License-Identifier: Apache-2.0
"""PairProducts: multiply small integers in pairs, and bytes in quads, on CPUs that have an instruction for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass

from ...ir.exchange_constants import Exchange, constant_operands, constants_of, exchange
from ...ir.graph import private_calls
from ...ir.index_map import is_if_then_else
from ...ir.kernel import Kernel, Opaque, Stage, parse, shape_of, substitute
from ...ir.packings import PAIRS, QUADS, SIGNED, Packing, pack_quads
from ...ir.pairs import BYTES, INTEGER, ends_of, pack_pairs, widened
from ...ir.walk import loads
from ..core.decisions import given_rule
from ..core.expressions import uses
from ..core.nest import index_type
from ..core.reduction import combiner_of
from ..core.rule import is_open, target_of
from ..core.words import load_of
from .gemm.micro_kernels import packings_of
from .params import CpuParams
from .small_integers import copies_before, least_and_largest
from .split_quads import split_quads


@module_pass(opt_level=0, name="PairProducts")
class PairProducts:
    """Add up products of small integers two or four at a time: quantized matmuls and convolutions.

    Before, with operands that have 16 bits, as the difference of two bytes::

        C[i, j] += int32(a[i, k]) * w[k, j]

    After, with ``w`` of half as many rows::

        C[i, j] += dot(pair(a[i, 2 * k], a[i, 2 * k + 1]), w[k, j])

    `ir.pairs` defines a pair. The rule for matmuls emits `dot` of vectors as one instruction, which multiplies twice as
    many numbers as a multiplication of floats, and does not overflow. A constant in pairs takes half of its bytes, and
    padded copies hold pairs, too. Where one operand is an unsigned byte and the other a signed one, and the processor
    has VNNI, four of each are a quad (`ir.packings`), and one instruction multiplies four times as many numbers.

    Refuses (leaves as they are) operands that may have more bits, sums whose number of products is no multiple of two,
    sums whose operands are padded copies that are not read along a whole dimension, and kernels of several products
    (attention), whose rule multiplies floats: `FloatProducts` is asked about each of their sums.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        constants, calls, found = constant_operands(mod), private_calls(mod), {}
        for gvar, func in mod.functions_items():
            if not (isinstance(func, tirx.PrimFunc) and is_open(func) and given_rule(func) is None):
                continue
            params = CpuParams.of(target_of(func, gvar.name_hint))
            packings = packings_of(params)
            if not packings:
                continue
            try:
                kernel = parse(func)
            except Opaque:
                split = None if QUADS in packings else split_quads(func, constants.get(gvar, ()))
                found |= {} if split is None else {gvar: split}
                continue
            values = {n: lambda n=n, gvar=gvar: constants_of(calls[gvar], n) for n in constants.get(gvar, ())}
            types = {str(it.var.ty.dtype) for stage in kernel.stages for it in stage.iters}
            with index_type(next(iter(types), "int64")):
                changed = packed(kernel, values, packings) if len(types) == 1 else None
            if changed is not None:
                found[gvar] = changed
        return exchange(mod, found)


def packed(
    kernel: Kernel, constants: dict[int, Callable[[], list[np.ndarray]]], packings: Sequence[Packing]
) -> Exchange | None:
    """Return the kernel with its first sum over packed integers, None if that is no sum of products of small ones.

    Parameters
    ----------
    constants : dict
        Position of a constant among the kernel's inputs -> function that returns its values in all calls.
    packings : sequence of Packing
        The first one that both operands fit into is taken.
    """
    at = next((n for n, stage in enumerate(kernel.stages) if stage.reduction), None)
    parts = None if at is None else combiner_of(kernel.stages[at])
    if parts is None or not isinstance(parts[1], tirx.Mul) or not isinstance(kernel.stages[at].body.value, tirx.Add):
        return None
    stage, term = kernel.stages[at], parts[1]
    if str(term.ty.dtype) != INTEGER or any(map(_multiplies, kernel.stages[at + 1 :])):
        return None
    operands = _Operands(kernel, at, constants)
    for packing in packings:
        if not packing.take(term.a, term.b, operands.known):
            continue
        for var in reversed(stage.reduction):
            if stage.extents[var] % packing.numbers:
                continue
            sides = [operands.side(operand, var, packing) for operand in (term.a, term.b)]
            if all(side is not None for side in sides):
                return _changed(kernel, at, var, sides, packing)
    return None


def _multiplies(stage: Stage) -> bool:
    """Whether a stage adds up products of integers."""
    parts = combiner_of(stage) if stage.reduction else None
    return parts is not None and isinstance(parts[1], tirx.Mul) and str(parts[1].ty.dtype) == INTEGER


@dataclass(frozen=True, eq=False)
class _PackedOperand:
    """A packed operand.

    Attributes
    ----------
    value : expression
        The packed numbers, in the iterators of the sum, one of which has an extent of fewer steps.
    old, new : buffer or None
        A buffer that is stored packed, before and after.
    position : int or None
        Position among the inputs, if the buffer is a constant.
    axis : int
        The dimension of the buffer along which neighbours are packed.
    """

    value: object
    old: object = None
    new: object = None
    position: int | None = None
    axis: int = 0


class _Operands:
    """The operands of a kernel's sum: what is known of their numbers, and their packed forms.

    Parameters
    ----------
    at : int
        The stage of the sum.
    constants : dict
        As for `packed`.
    """

    def __init__(self, kernel: Kernel, at: int, constants: dict):
        self.kernel, self.at, self.constants = kernel, at, constants
        self.made = copies_before(kernel, at)
        self.positions = {kernel.inputs[n]: n for n in constants}

    def known(self, load) -> tuple[int, int] | None:
        """Return the least and the largest value of a padded copy or a constant."""
        if load.source in self.made:
            return ends_of(self.made[load.source].body.value, self.known)
        position = self.positions.get(load.source)
        return None if position is None else least_and_largest(self.constants[position]())

    def side(self, operand, var, packing: Packing) -> _PackedOperand | None:
        """Return an operand packed along an iterator; a constant or a padded copy is stored so if possible."""
        if not uses(operand, [var]):
            return None
        load = load_of(operand)
        if load is not None and (load.source in self.made or load.source in self.positions):
            position, (least, most) = self.positions.get(load.source), self.known(load)
            in_bytes = position is not None and packing is PAIRS and SIGNED[0] <= least and most <= SIGNED[1]
            dtype, extent = BYTES if in_bytes else INTEGER, self.kernel.stages[self.at].extents[var]
            stored = _stored(self.kernel, load, var, extent, dtype, packing.numbers)
            if stored is not None:
                return replace(stored, position=position)
        if any(each.source in self.made for each in loads(operand)):
            return None  # pairs would have to be made from the copy number by number
        return _PackedOperand(packing.pack([substitute(operand, {var: place}) for place in _places(var, packing)]))


def _places(var, packing: Packing) -> list:
    """Return the places of the numbers that are packed at place `var`."""
    count, *numbers = (tirx.const(n, var.ty.dtype) for n in (packing.numbers, *range(packing.numbers)))
    return [var * count + number for number in numbers]


def _stored(kernel: Kernel, load, var, extent: int, dtype: str, numbers: int) -> _PackedOperand | None:
    """Return a packed buffer, if only this load reads it and its dimension along the iterator is read whole."""
    readers = [each for stage in kernel.stages for each in stage.loads if each.source.same_as(load.source)]
    along = [n for n, place in enumerate(load.indices) if uses(place, [var])]
    shape = shape_of(load.source)
    if len(readers) != 1 or len(along) != 1 or not load.indices[along[0]].same_as(var) or shape[along[0]] != extent:
        return None
    sizes = [size // numbers if n == along[0] else size for n, size in enumerate(shape)]
    new = tirx.decl_buffer([tirx.const(size, var.ty.dtype) for size in sizes], dtype, load.source.name, layout=None)
    return _PackedOperand(widened(new[tuple(load.indices)]), load.source, new, axis=along[0])


def _changed(kernel: Kernel, at: int, var, sides: list[_PackedOperand], packing: Packing) -> Exchange:
    stage = kernel.stages[at]
    store, fewer = stage.body, {var: stage.extents[var] // packing.numbers}
    total = store.buffer[tuple(store.indices)] + packing.dot(*(side.value for side in sides))
    stages = list(kernel.stages)
    stages[at] = replace(stage, body=tirx.BufferStore(store.buffer, total, store.indices)).with_extents(fewer)
    inputs, forms = list(kernel.inputs), {}
    for side in sides:
        if side.position is not None:
            inputs[side.position] = side.new
            forms[side.position] = partial(_packed_array, packing, side.axis, str(side.new.dtype))
        elif side.new is not None:
            n = next(n for n, each in enumerate(stages) if each.body.buffer.same_as(side.old))
            stages[n] = _packed_copy(stages[n], side, packing)
    return Exchange(Kernel(tuple(inputs), kernel.outputs, tuple(stages)), forms)


def _packed_array(packing: Packing, axis: int, dtype: str, array: np.ndarray) -> np.ndarray:
    return pack_pairs(array, axis, dtype) if packing is PAIRS else pack_quads(array, axis)


def _packed_copy(stage: Stage, side: _PackedOperand, packing: Packing) -> Stage:
    """Return the stage that writes a padded copy, with packed numbers as its values."""
    value, place = stage.body.value, stage.body.indices[side.axis]
    it = next(each for each in stage.iters if each.var.same_as(place))
    value = value if str(value.ty.dtype) == INTEGER else value.astype(INTEGER)
    whole = _packed_value(packing, [substitute(value, {it.var: place}) for place in _places(it.var, packing)])
    body = tirx.BufferStore(side.new, whole, stage.body.indices)
    return replace(stage, body=body).with_extents({it.var: stage.extents[it.var] // packing.numbers})


def _packed_value(packing: Packing, numbers: list):
    """Return packed numbers; those that the same condition chooses are packed on both of its sides (`words`)."""
    inner = [each.value if isinstance(each, tirx.Cast) else each for each in numbers]
    if not all(isinstance(each, ir.Call) and is_if_then_else(each) for each in inner):
        return packing.pack(numbers)
    condition = inner[0].args[0]
    if not all(tvm_ffi.structural_equal(each.args[0], condition) for each in inner):
        return packing.pack(numbers)
    sides = (packing.pack([each.args[at].astype(INTEGER) for each in inner]) for at in (1, 2))
    return tirx.if_then_else(condition, *sides)

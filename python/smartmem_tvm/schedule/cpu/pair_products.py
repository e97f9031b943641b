# SPDX-License-Identifier: Apache-2.0
"""PairProducts: multiply 16-bit integers in pairs, on CPUs that have an instruction for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext, module_pass

from ...ir.exchange_constants import Exchange, constant_operands, constants_of, exchange
from ...ir.graph import private_calls
from ...ir.kernel import Kernel, Opaque, Stage, parse, shape_of, substitute
from ...ir.pairs import BYTES, INTEGER, dot, has_16_bits, pack_pairs, pair, widened
from ...ir.walk import loads
from ..core.decisions import given_rule
from ..core.expressions import uses
from ..core.nest import index_type
from ..core.reduction import combiner_of
from ..core.rule import is_open, target_of
from .params import CpuParams

_TWO = 2  # products in a lane: by definition of pmaddwd and of VNNI, whose operands are pairs


@module_pass(opt_level=0, name="PairProducts")
class PairProducts:
    """Add up products of small integers in pairs: quantized matmuls and convolutions.

    Before, with operands that have 16 bits, as the difference of two bytes::

        C[i, j] += int32(a[i, k]) * w[k, j]

    After, with ``w`` of half as many rows::

        C[i, j] += dot(pair(a[i, 2 * k], a[i, 2 * k + 1]), w[k, j])

    `ir.pairs` defines a pair. The rule for matmuls emits `dot` of vectors as one instruction, which multiplies twice as
    many numbers as a multiplication of floats, and does not overflow. A constant in pairs takes half of its bytes, and
    padded copies hold pairs, too.

    Refuses (leaves as they are) operands that may have more bits, sums of an odd number of products, and sums whose
    operands are padded copies that are not read along a whole dimension.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """Run the pass."""
        constants, calls, found = constant_operands(mod), private_calls(mod), {}
        for gvar, func in mod.functions_items():
            if not (isinstance(func, tirx.PrimFunc) and is_open(func) and given_rule(func) is None):
                continue
            if not CpuParams.of(target_of(func, gvar.name_hint)).pairs:
                continue
            try:
                kernel = parse(func)
            except Opaque:
                continue
            values = {n: lambda n=n, gvar=gvar: constants_of(calls[gvar], n) for n in constants.get(gvar, ())}
            types = {str(it.var.ty.dtype) for stage in kernel.stages for it in stage.iters}
            with index_type(next(iter(types), "int64")):
                changed = paired(kernel, values) if len(types) == 1 else None
            if changed is not None:
                found[gvar] = changed
        return exchange(mod, found)


def paired(kernel: Kernel, constants: dict[int, Callable[[], list[np.ndarray]]]) -> Exchange | None:
    """Return the kernel with its first sum over pairs, None if that is no sum of products of 16-bit integers.

    Parameters
    ----------
    constants : dict
        Position of a constant among the kernel's inputs -> function that returns its values in all calls.
    """
    at = next((n for n, stage in enumerate(kernel.stages) if stage.reduction), None)
    parts = None if at is None else combiner_of(kernel.stages[at])
    if parts is None or not isinstance(parts[1], tirx.Mul) or not isinstance(kernel.stages[at].body.value, tirx.Add):
        return None
    stage, term = kernel.stages[at], parts[1]
    if str(term.ty.dtype) != INTEGER:
        return None
    for var in reversed(stage.reduction):
        if stage.extents[var] % _TWO:
            continue
        sides = [_side(kernel, at, operand, var, constants) for operand in (term.a, term.b)]
        if all(side is not None for side in sides):
            return _changed(kernel, at, var, sides)
    return None


@dataclass(frozen=True, eq=False)
class _Side:
    """An operand in pairs.

    Attributes
    ----------
    value : expression
        The pair, in the iterators of the sum, one of which has half its extent.
    old, new : buffer or None
        A buffer that is stored in pairs, and the buffer of the pairs.
    position : int or None
        Position among the inputs, if the buffer is a constant.
    axis : int
        The dimension of the buffer that has half its size.
    """

    value: object
    old: object = None
    new: object = None
    position: int | None = None
    axis: int = 0


def _side(kernel: Kernel, at: int, operand, var, constants: dict) -> _Side | None:
    """Return an operand in pairs along an iterator; a constant or a padded copy is stored in pairs if possible."""
    if not uses(operand, [var]):
        return None
    made = {stage.body.buffer: stage for stage in kernel.stages[:at] if stage.is_pointwise}
    positions = {kernel.inputs[n]: n for n in constants}

    def known(load) -> tuple[int, int] | None:
        if load.source in made:
            return (-(1 << 15), (1 << 15) - 1) if has_16_bits(made[load.source].body.value, known) else None
        if load.source in positions:
            arrays = constants[positions[load.source]]()
            return (
                min(int(each.min(initial=0)) for each in arrays),
                max(int(each.max(initial=0)) for each in arrays),
            )
        return None

    if not has_16_bits(operand, known):
        return None
    load = _load_of(operand)
    if load is not None and (load.source in made or load.source in positions):
        position, ends = positions.get(load.source), known(load)
        in_bytes = position is not None and ends[0] >= -128 and ends[1] <= 127
        dtype = BYTES if in_bytes else INTEGER
        stored = _stored(kernel, load, var, kernel.stages[at].extents[var], dtype)
        if stored is not None:
            return replace(stored, position=position)
    if any(each.source in made for each in loads(operand)):
        return None  # pairs would have to be made from the copy number by number
    two, one = (tirx.const(number, var.ty.dtype) for number in (_TWO, 1))
    return _Side(pair(*(substitute(operand, {var: place}) for place in (var * two, var * two + one))))


def _load_of(operand):
    """Return the load in an operand that is a load or a cast of one; else None."""
    inner = operand.value if isinstance(operand, tirx.Cast) else operand
    return inner if isinstance(inner, ir.TensorLoad) else None


def _stored(kernel: Kernel, load, var, extent: int, dtype: str) -> _Side | None:
    """Return a buffer in pairs, if only this load reads it and its dimension along the iterator is read whole."""
    readers = [each for stage in kernel.stages for each in stage.loads if each.source.same_as(load.source)]
    along = [n for n, place in enumerate(load.indices) if uses(place, [var])]
    shape = shape_of(load.source)
    if len(readers) != 1 or len(along) != 1 or not load.indices[along[0]].same_as(var) or shape[along[0]] != extent:
        return None
    sizes = [size // _TWO if n == along[0] else size for n, size in enumerate(shape)]
    new = tirx.decl_buffer([tirx.const(size, var.ty.dtype) for size in sizes], dtype, load.source.name, layout=None)
    return _Side(widened(new[tuple(load.indices)]), load.source, new, axis=along[0])


def _changed(kernel: Kernel, at: int, var, sides: list[_Side]) -> Exchange:
    stage = kernel.stages[at]
    store, half = stage.body, {var: stage.extents[var] // _TWO}
    total = store.buffer[tuple(store.indices)] + dot(*(side.value for side in sides))
    stages = list(kernel.stages)
    stages[at] = replace(stage, body=tirx.BufferStore(store.buffer, total, store.indices)).with_extents(half)
    inputs, forms = list(kernel.inputs), {}
    for side in sides:
        if side.position is not None:
            inputs[side.position] = side.new
            forms[side.position] = lambda array, side=side: pack_pairs(array, side.axis, str(side.new.dtype))
        elif side.new is not None:
            n = next(n for n, each in enumerate(stages) if each.body.buffer.same_as(side.old))
            stages[n] = _copy_of_pairs(stages[n], side)
    return Exchange(Kernel(tuple(inputs), kernel.outputs, tuple(stages)), forms)


def _copy_of_pairs(stage: Stage, side: _Side) -> Stage:
    """Return the stage that writes a padded copy, with pairs as its values."""
    it = stage.iters[side.axis]
    two, one = (tirx.const(number, it.var.ty.dtype) for number in (_TWO, 1))
    value = stage.body.value
    value = value if str(value.ty.dtype) == INTEGER else value.astype(INTEGER)
    both = pair(*(substitute(value, {it.var: place}) for place in (it.var * two, it.var * two + one)))
    body = tirx.BufferStore(side.new, both, stage.body.indices)
    return replace(stage, body=body).with_extents({it.var: stage.extents[it.var] // _TWO})

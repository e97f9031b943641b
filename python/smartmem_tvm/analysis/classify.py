# SPDX-License-Identifier: Apache-2.0
"""Classify a kernel from its loop program: data movement or computation, quadrant, mapping type, reduction dimensions.

The papers classify operators by hand (SmartMem Table 3, DNNFusion Table 2) and leave the automation as future work.
Here the functional form determines the class, so that unknown operators are classified too. `tables` holds the papers'
rows, with which the tests compare.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tvm import ir, tirx

from ..ir.compose import reads_once
from ..ir.index_map import division_count, flat_index, function_name, is_injective, variables, visits_once
from ..ir.kernel import Kernel, Stage, shape_of
from ..ir.movement import Movement, Piece, movement
from ..ir.strength_reduction import Simplifier
from ..ir.walk import collect, collect_outside, loads
from ..tables.mapping_type import MappingType
from ..tables.quadrant import Quadrant

_RANK = {kind: rank for rank, kind in enumerate(MappingType)}
_TRANSCENDENTAL_COST = 20
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max, tirx.Select, tirx.Cast)
_OF_BITS = (tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.BitwiseNot, tirx.LShift, tirx.RShift)
_CHEAP_CALLS = ("if_then_else", "fabs", "reinterpret", "isnan")


def reduces(kernel: Kernel) -> bool:
    """Whether any stage aggregates along a reduction axis."""
    return any(stage.reduction for stage in kernel.stages)


@lru_cache(maxsize=1024)  # the quadrant of a movement is needed once for each of its readers
def quadrant(kernel: Kernel) -> Quadrant:
    """Return SmartMem's operator type.

    Fixed output: the kernel is a data movement. A rearrangement of the whole tensor (a bijection: reshape, transpose,
    depth to space, roll) depends on the input layout; a selection or repetition of parts (slice, gather, pad, expand)
    does not. Variable output: performance depends on the input layout if data is aggregated along a reduction axis.
    """
    moved = movement(kernel)
    if moved is None:
        return Quadrant.ILD_VARIABLE if reduces(kernel) else Quadrant.ILI_VARIABLE
    return Quadrant.ILD_FIXED if _is_bijection(moved) else Quadrant.ILI_FIXED


def _is_bijection(moved: Movement) -> bool:
    if len(moved.pieces) != 1 or moved.pieces[0].source is None:
        return False
    piece, extents = moved.pieces[0], moved.stage.extents
    shape = shape_of(piece.source)
    elements, points = math.prod(shape), math.prod(extents.values())
    return elements == points and visits_once(piece.indices, extents, shape)


def mapping_type(kernel: Kernel, constants: tuple = ()) -> MappingType:
    """Return DNNFusion's mapping type: the most complex one over all data operands and all maps that read them.

    Parameters
    ----------
    constants : tuple of buffers
        Inputs bound to compile-time constants. They belong to the operator and are no data operands: a bias or a scale
        does not make an addition One-to-Many. Nor does an operand of one number, as a scale or the length of a call.
    """
    if reduces(kernel) or len(kernel.stages) > 1 or not kernel.last.is_pointwise:
        return MappingType.MANY_TO_MANY
    stage, moved = kernel.last, movement(kernel)
    if moved is not None:
        copied = [p for p in moved.pieces if p.source is not None and not any(p.source.same_as(c) for c in constants)]
        kinds = [_piece_type(stage, piece) for piece in copied]
        return max(kinds, key=_RANK.__getitem__, default=MappingType.ONE_TO_ONE)
    kinds = []
    inner = _loads_in_indices(stage)
    for buffer in kernel.inputs:
        if any(buffer.same_as(c) for c in constants) or _only_indexes(stage, buffer, inner) or _is_number(buffer):
            continue
        if math.prod(shape_of(buffer)) == 1 and _only_chooses(stage, buffer):
            continue  # the length of a model's positions
        distinct = stage.maps(buffer)
        one_to_one = all(is_injective(m, stage.extents) for m in distinct)
        kinds.append(MappingType.ONE_TO_ONE if one_to_one else MappingType.ONE_TO_MANY)
        if len(distinct) > 1 and not one_to_one and not reads_once(stage, buffer):
            kinds.append(MappingType.MANY_TO_MANY)  # interpolation: elements shared between neighbours
    return max(kinds, key=_RANK.__getitem__, default=MappingType.ONE_TO_ONE)


def _is_number(buffer) -> bool:
    return math.prod(shape_of(buffer)) == 1


def _loads_in_indices(stage: Stage) -> list:
    """Return the loads in the indices of other loads, as in a run-time gather."""
    return [load for outer in loads(stage.body) for load in loads(outer)[:-1]]


def _only_indexes(stage: Stage, buffer, inner: list) -> bool:
    """Whether all loads of a buffer are in the indices of other loads; `inner` are all such loads of the stage."""
    mine = [load for load in stage.loads if load.source.same_as(buffer)]
    return bool(mine) and sum(load.source.same_as(buffer) for load in inner) >= len(mine)


def _only_chooses(stage: Stage, buffer) -> bool:
    """Whether all loads of a buffer are in the conditions of selects."""
    chosen = [load for each in collect(stage.body, tirx.Select) for load in loads(each.condition)]
    mine = [load for load in stage.loads if load.source.same_as(buffer)]
    return bool(mine) and sum(load.source.same_as(buffer) for load in chosen) >= len(mine)


def _piece_type(stage: Stage, piece: Piece) -> MappingType:
    shape = shape_of(piece.source)
    if not is_injective(piece.indices, stage.extents, piece.condition):
        return MappingType.ONE_TO_MANY
    if math.prod(shape) != math.prod(stage.extents.values()):
        return MappingType.ONE_TO_ONE
    out_shape = [stage.extents[v] for v in stage.spatial]
    difference = flat_index(piece.indices, shape) - flat_index(stage.spatial, out_shape)
    in_place = Simplifier(stage.extents).index(difference)
    if not (isinstance(in_place, tirx.IntImm) and int(in_place) == 0):
        return MappingType.SHUFFLE
    return MappingType.ONE_TO_ONE if list(shape) == out_shape else MappingType.REORGANIZE


def reduction_dims(kernel: Kernel) -> dict[str, tuple[int, ...]]:
    """Return, for each input, the dimensions along which its elements are aggregated (SmartMem 3.2.2).

    Returns
    -------
    dict
        Input buffer name -> sorted dimensions whose index contains a reduction iterator, directly or through the
        intermediate results of the kernel (for example the padding of a convolution).
    """
    aggregated: dict = {buffer: set() for buffer in (*kernel.inputs, *kernel.outputs, *kernel.intermediates)}
    for stage in reversed(kernel.stages):
        through = {dim for out in stage.outputs for dim in aggregated[out]}
        along = {*stage.reduction, *(v for dim, v in enumerate(stage.spatial) if dim in through)}
        for load in stage.loads:
            for dim, index in enumerate(load.indices):
                if along & set(variables(index)):
                    aggregated[load.source].add(dim)
    return {buffer.name: tuple(sorted(aggregated[buffer])) for buffer in kernel.inputs}


def cost(expr) -> int:
    """Return a rough number of arithmetic operations of a value: a transcendental function counts as 20, an index as 0.

    A load inside an index counts as one operation.
    """
    operations = collect_outside(expr, (*_ARITHMETIC, *_OF_BITS), skip=ir.TensorLoad)
    outermost = collect_outside(expr, ir.TensorLoad, skip=ir.TensorLoad)
    return len(operations) + len(loads(expr)) - len(outermost) + _TRANSCENDENTAL_COST * transcendental_calls(expr)


@lru_cache(maxsize=4096)  # fusion needs it for a node with each of its neighbours
def stage_cost(stage: Stage) -> int:
    """Return the `cost` of one point of a stage."""
    return cost(stage.body)


@lru_cache(maxsize=4096)
def stage_calls(stage: Stage) -> int:
    """Return the `transcendental_calls` of one point of a stage."""
    return transcendental_calls(stage.body)


@lru_cache(maxsize=4096)
def stage_divisions(stage: Stage) -> int:
    """Return the `division_count` of one point of a stage."""
    return division_count(stage.body)


def transcendental_calls(expr) -> int:
    """Count the calls of exp, erf, tanh and similar functions in a value."""
    calls = collect_outside(expr, ir.Call, skip=ir.TensorLoad)
    return sum(function_name(call) not in _CHEAP_CALLS for call in calls)

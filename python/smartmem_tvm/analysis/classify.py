# SPDX-License-Identifier: Apache-2.0
"""Classify a kernel from its loop program: data movement or computation, quadrant, mapping type, reduction dimensions.

The papers classify operators by hand (SmartMem Table 3, DNNFusion Table 2) and leave the automation as future work.
Here the facts are read off the functional form, so that an operator nobody has named yet is classified as well;
`tables` holds the papers' rows as the oracle the tests compare with.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

import tvm_ffi
from tvm import ir, tirx

from ..tables.mapping_type import MappingType
from ..tables.quadrant import Quadrant
from .index_map import flat_index, is_if_then_else, is_injective, variables, visits_once
from .kernel import Kernel, Stage, shape_of
from .strength_reduction import Simplifier

_RANK = {kind: rank for rank, kind in enumerate(MappingType)}
_TRANSCENDENTAL_COST = 20
# Evaluating a value again costs less than storing and loading it up to about this many operations (see `cost`).
CHEAP = 8
# A chain of reshapes whose factors do not line up grows with every step; past this many divisions it is cheaper to
# store the tensor once than to work out where each element comes from (Swin, with its rolled windows, has 6).
MOST_DIVISIONS = 8
# Several maps into one tensor count as one reading of it if together they repeat hardly any element.
MOST_REPEATED = 9 / 8
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max, tirx.Select, tirx.Cast)
_CHEAP_CALLS = ("if_then_else", "fabs", "reinterpret", "isnan")


@dataclass(frozen=True)
class Piece:
    """One branch of a data movement: where `condition` holds, the output element is ``source[indices]``.

    `source` is None for a constant (padding). `condition` is None where there is only one branch.
    """

    condition: object | None
    source: object | None
    indices: tuple


@dataclass(frozen=True)
class Movement:
    """A pure data movement: its iterators, their extents, and the pieces of its index map (output -> input)."""

    stage: Stage
    pieces: tuple[Piece, ...]

    @cached_property
    def index_map(self) -> tirx.IndexMap | None:
        """The map from output index to input index, None if there are several pieces."""
        if len(self.pieces) != 1 or self.pieces[0].source is None:
            return None
        return tirx.IndexMap(list(self.stage.spatial), list(self.pieces[0].indices), None)

    def __str__(self) -> str:
        indices = ", ".join(readable(v) for v in self.stage.spatial)
        return f"[{indices}] -> {readable(self.stage.body.value)}"


def readable(expr) -> str:
    """An index expression without dtype prefixes and ``v_`` names."""
    text = re.sub(r"T\.int(?:32|64)\((-?\d+)\)", r"\1", str(expr))
    return re.sub(r"\bT\.|\bv_", "", text)


def movement(kernel: Kernel) -> Movement | None:
    """The data movement a kernel performs, or None if it computes.

    A kernel moves data if it is one pointwise stage whose value is a load, a constant, or a select between such
    values: every output element is a copy of one input element.
    """
    stage = kernel.last
    if len(kernel.stages) != 1 or not stage.is_pointwise:
        return None
    pieces = _pieces(stage.body.value, None)
    if pieces is None or all(p.source is None for p in pieces):
        return None
    return Movement(stage, tuple(pieces))


def _pieces(value, condition) -> list[Piece] | None:
    if isinstance(value, ir.TensorLoad):
        return [Piece(condition, value.source, tuple(value.indices))]
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return [Piece(condition, None, ())]
    if is_if_then_else(value):
        test, yes, no = value.args
    elif isinstance(value, tirx.Select):
        test, yes, no = value.condition, value.true_value, value.false_value
    else:
        return None
    if _loads_data(test):
        return None  # where(mask, a, b) computes
    first, second = _pieces(yes, _both(condition, test)), _pieces(no, _both(condition, tirx.Not(test)))
    return first + second if first is not None and second is not None else None


def _both(a, b):
    return b if a is None else tirx.And(a, b)


def _loads_data(expr) -> bool:
    found: list = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append))
    return bool(found)


def reduces(kernel: Kernel) -> bool:
    """Whether any stage aggregates along a reduction axis."""
    return any(stage.reduction for stage in kernel.stages)


@lru_cache(maxsize=1024)  # a movement is asked once for each of its readers
def quadrant(kernel: Kernel) -> Quadrant:
    """SmartMem's operator type.

    Fixed output: the kernel is a data movement. Of these, rearranging the whole tensor (a bijection: reshape,
    transpose, depth to space, roll) depends on the input layout; selecting or repeating parts (slice, gather, pad,
    expand) does not. Variable output: performance depends on the input layout where data is aggregated along a
    reduction axis.
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
    """DNNFusion's mapping type; of several data operands, and ways to read one, the most complex decides.

    Parameters
    ----------
    constants : tuple of buffers
        Inputs bound to compile-time constants: part of the operator, not data operands (a bias or a scale does not
        make an addition One-to-Many).
    """
    if reduces(kernel) or len(kernel.stages) > 1 or not kernel.last.is_pointwise:
        return MappingType.MANY_TO_MANY
    stage, moved = kernel.last, movement(kernel)
    if moved is not None:
        kinds = [_piece_type(stage, p) for p in moved.pieces if p.source is not None and _is_data(p, constants)]
        return max(kinds, key=_RANK.__getitem__, default=MappingType.ONE_TO_ONE)
    kinds = []
    for buffer in kernel.inputs:
        if any(buffer.same_as(c) for c in constants) or _only_indexes(stage, buffer):
            continue
        distinct = stage.maps(buffer)
        one_to_one = all(is_injective(m, stage.extents) for m in distinct)
        kinds.append(MappingType.ONE_TO_ONE if one_to_one else MappingType.ONE_TO_MANY)
        if len(distinct) > 1 and not one_to_one and not reads_once(stage, buffer):
            kinds.append(MappingType.MANY_TO_MANY)  # interpolation: elements shared between neighbours
    return max(kinds, key=_RANK.__getitem__, default=MappingType.ONE_TO_ONE)


def reads_once(stage: Stage, buffer) -> bool:
    """Whether following each map through which `stage` reads `buffer` computes hardly more than the buffer's elements.

    One map must visit no element twice. Several maps, each over the iterators it uses, must together visit hardly
    more elements than there are: the halves of a gated linear unit, or a sum and what is divided by it.
    """
    maps, shape = stage.maps(buffer), shape_of(buffer)
    spatial = {v: stage.extents[v] for v in stage.spatial}
    if len(maps) == 1:
        return visits_once(maps[0], spatial, shape)
    total = 0
    for indices in maps:
        used = {v: spatial[v] for index in indices for v in variables(index) if v in spatial}
        if not visits_once(indices, used, shape):
            return False
        total += math.prod(used.values())
    return total <= MOST_REPEATED * math.prod(shape)


def _is_data(piece: Piece, constants: tuple) -> bool:
    return not any(piece.source.same_as(c) for c in constants)


def _only_indexes(stage: Stage, buffer) -> bool:
    """Whether a buffer only feeds other loads' indices (the indices of a run-time gather)."""
    inner: list = []

    def collect(load):
        for index in load.indices:
            tvm_ffi.structural_walk(index, (ir.TensorLoad, inner.append))

    tvm_ffi.structural_walk(stage.body, (ir.TensorLoad, collect))
    mine = [load for load in stage.loads if load.source.same_as(buffer)]
    return bool(mine) and len([load for load in inner if load.source.same_as(buffer)]) >= len(mine)


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
    """For each input the dimensions along which its elements are aggregated (SmartMem 3.2.2).

    Returns
    -------
    dict
        Input buffer name -> sorted dimensions whose index contains a reduction iterator, directly or through the
        intermediate results of the kernel (the padding of a convolution, say).
    """
    aggregated: dict = {buffer: set() for buffer in (*kernel.inputs, *kernel.outputs, *kernel.intermediates)}
    for stage in reversed(kernel.stages):
        through = {dim for out in stage.outputs for dim in aggregated[out]}
        variables = (*stage.reduction, *(v for dim, v in enumerate(stage.spatial) if dim in through))
        for load in stage.loads:
            for dim, index in enumerate(load.indices):
                if any(_uses(index, var) for var in variables):
                    aggregated[load.source].add(dim)
    return {buffer.name: tuple(sorted(aggregated[buffer])) for buffer in kernel.inputs}


def _uses(expr, var) -> bool:
    found: list = []
    tvm_ffi.structural_walk(expr, (ir.Var, lambda v: found.append(v) if v.same_as(var) else None))
    return bool(found)


def cost(expr) -> int:
    """Rough number of arithmetic operations of a value; a transcendental function counts as 20, an index nothing."""
    found: list = []
    skip = (ir.TensorLoad, lambda _: tvm_ffi.WalkResult.SKIP)
    tvm_ffi.structural_walk(expr, (skip, (_ARITHMETIC, found.append)), order="pre")
    return len(found) + _TRANSCENDENTAL_COST * transcendental_calls(expr)


def transcendental_calls(expr) -> int:
    """How often a value calls exp, erf, tanh and the like."""
    found: list = []
    skip = (ir.TensorLoad, lambda _: tvm_ffi.WalkResult.SKIP)
    tvm_ffi.structural_walk(expr, (skip, (ir.Call, found.append)), order="pre")
    return sum(getattr(call.op, "name", "").rpartition(".")[2] not in _CHEAP_CALLS for call in found)

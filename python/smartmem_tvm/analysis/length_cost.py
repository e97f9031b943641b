# SPDX-License-Identifier: Apache-2.0
"""The predicted time of a length at a capacity, in steps of sums: which lengths need no kernels of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import tvm
from tvm import relax

from ..ir.kernel import Kernel, Opaque, shape_of
from ..ir.mask_positions import Extent
from .item_cost import COPIED, MORE, WEIGHT, launch
from .items import Mixed, Share, operator_of
from .position_windows import CONVOLUTIONS
from .position_work import LengthWork, OperatorWork, extent_of, operands

# Rows in steps of which loops over rows end behind the length: those of `schedule/cpu/gemm/axis.py`, by definition.
_STRIP = 2
# The same where the positions of several items follow one another: a register tile that reaches into the next item is
# computed whole. Chosen: tiles have 6 to 14 rows.
_STRIP_OF_ITEMS = 8
# Of its own time that a length may take at a capacity at most. Chosen: what `MORE` allows for all lengths together may
# not come from one of them.
_MOST = 1.1
# Steps of sums that a step of a maximum, or of a sum of what one operand says, takes: exponentials, mostly. Assumed: an
# exponential takes a cycle, in which AVX2 ends 16 steps and AVX-512 32.
_OF_ROW = 24
# Capacity up to which attention is one kernel. By the working set of `tables.fusion_policy`, for heads of 64 numbers:
# 512 KiB are 1,024 keys and values.
_ENDING = 1024
_PASSING = ("reshape", "squeeze", "expand_dims", "astype")  # operators between a softmax and its product


@dataclass(frozen=True)
class Sized:
    """A number of elements, or of steps, that grows with the length: `fixed` times elements of each extent."""

    fixed: int
    along: tuple[Extent, ...] = ()

    def of(self, length: int) -> int:
        """Return the number for a length."""
        return self.fixed * prod(extent.of(length) for extent in self.along)


@dataclass(frozen=True)
class LengthSum:
    """A loop that adds up.

    Attributes
    ----------
    written, added : Sized
        Results, and terms of each.
    weights : int
        Numbers of the tensors without positions that it reads.
    ends : bool
        Whether it is a part of attention, whose sums over the positions end at the length (`analysis.ending_keys`).
    """

    written: Sized
    added: Sized
    weights: int = 0
    ends: bool = False


@dataclass(frozen=True)
class LengthCost:
    """The predicted times of a model's lengths.

    Attributes
    ----------
    sums : list of LengthSum
    inputs, outputs : int
        Numbers of a position, which are copied to a capacity and from it.
    copies : int
        Kernels that copy them: one for each tensor.
    target : tvm.target.Target, optional
        The CPU, by default one core.
    several : bool
        Whether the positions of several items follow one another.
    """

    sums: list[LengthSum]
    inputs: int = 0
    outputs: int = 0
    copies: int = 0
    target: tvm.target.Target | None = None
    several: bool = False

    def alone(self, length: int) -> int:
        """Return the time of a function of its own, in steps of sums."""
        return self._launches + sum(self._sum(each, length, length) for each in self.sums)

    def at(self, length: int, capacity: int) -> int:
        """Return the time at a capacity, which may be that length."""
        strip = _STRIP_OF_ITEMS if self.several else _STRIP
        rows = min(-(-length // strip) * strip, capacity)
        found = sum(self._sum(each, rows, capacity) for each in self.sums)
        if length < capacity:
            found += COPIED * (capacity * self.inputs + length * self.outputs) + launch(self.target) * self.copies
        return self._launches + found

    def served(self, lengths: Sequence[int]) -> dict[int, int]:
        """Return the lengths that a larger one computes, so that all together take nearly the same time.

        Parameters
        ----------
        lengths : sequence of int
            Those that a model is called with.

        Returns
        -------
        dict
            Length -> the capacity that computes it, one of `lengths` that is no key.
        """
        found: dict[int, int] = {}
        capacity, whole, together, apart = None, False, 0, 0
        for length in sorted(lengths, reverse=True):
            alone = self.alone(length)
            apart += alone
            shared = self.at(length, capacity) if whole else 0
            if whole and shared <= _MOST * alone and together + shared <= MORE * apart:
                found[length] = capacity
                together += shared
            else:
                capacity, whole = length, self.at(length, length) <= MORE * alone
                together += alone
        return found

    @property
    def _launches(self) -> int:
        return launch(self.target) * len(self.sums)

    @staticmethod
    def _sum(each: LengthSum, rows: int, capacity: int) -> int:
        added = rows if each.ends and capacity <= _ENDING else capacity
        return max(each.written.of(rows) * each.added.of(added), WEIGHT * each.weights)


def length_cost(
    func: relax.Function, work: LengthWork, lengths: tuple[int, int], target: tvm.target.Target | None = None
) -> LengthCost:
    """Return the predicted times of the lengths of a model whose first positions do not depend on its length.

    Parameters
    ----------
    func : relax.Function
        The model at the larger one of the two lengths.
    work, lengths
        As of `length_sums`.

    Raises
    ------
    Mixed
        As `length_sums`.
    """
    results = func.ret_ty.fields if isinstance(func.ret_ty, relax.TupleType) else [func.ret_ty]
    inputs, outputs = ([param.ty for param in func.params], work.inputs), (results, work.outputs)
    copies, longest = sum(map(bool, (*work.inputs, *work.outputs))), lengths[1]
    ends = _in_attention(func)
    return LengthCost(
        *(
            length_sums(work, lengths, ends),
            _numbers(*inputs) // longest,
            _numbers(*outputs) // longest,
            copies,
            target,
        ),
        several=any(_has_items(*each) for each in (inputs, outputs)),
    )


def _numbers(types: Sequence[relax.TensorType], places: Sequence[Sequence[Share]]) -> int:
    """Return the numbers of those tensors that have positions."""
    return sum(prod(map(int, ty.shape)) for ty, shares in zip(types, places, strict=True) if shares)


def _has_items(types: Sequence[relax.TensorType], places: Sequence[Sequence[Share]]) -> bool:
    """Whether positions of several items follow one another in a tensor."""
    return any(
        prod([*map(int, ty.shape)][: shares[0].axis]) > 1 for ty, shares in zip(types, places, strict=True) if shares
    )


def _in_attention(func: relax.Function) -> list[bool]:
    """Return which operators are a softmax, or a product with the result of one."""
    softmax, found = set(), []
    for binding in func.body.blocks[0].bindings:
        name, read = operator_of(binding.value), set(operands(binding.value)) & softmax
        if name == "nn.softmax" or (read and name in _PASSING):
            softmax.add(binding.var)
        found.append(name == "nn.softmax" or (bool(read) and name == "matmul"))
    return found


def length_sums(work: LengthWork, lengths: tuple[int, int], ends: Sequence[bool] | None = None) -> list[LengthSum]:
    """Return what adds up in a model whose first positions do not depend on its length.

    Parameters
    ----------
    work : LengthWork
        What `positions.length_work` found at two lengths.
    lengths : tuple of int
        These lengths.
    ends : sequence of bool, optional
        `LengthSum.ends` of each operator.

    Raises
    ------
    Mixed
        If an operator's loops cannot be read, or differ in more than their extents.
    """
    found, numbers = [], work.numbers

    def sized(pairs: Iterable[tuple[int, int]]) -> Sized:
        return _sized(pairs, lengths, numbers)

    for number, operator in enumerate(work.operators):
        try:
            if operator.name in CONVOLUTIONS:
                found.append(_convolution(operator, sized))
                continue
            for small, large in operator.loops():
                sums = _sums_of(small, large, sized)
                found += [replace(each, ends=ends is not None and ends[number]) for each in sums]
        except Opaque as reason:
            raise Mixed(str(reason)) from None
    return found


def _sized(pairs: Iterable[tuple[int, int]], lengths: tuple[int, int], numbers: Sequence[Extent]) -> Sized:
    """Return the product of some sizes, of which each is given at both lengths."""
    fixed, along = 1, []
    for a, b in pairs:
        extent = None if a == b else extent_of(a, b, lengths, numbers)
        if a != b and extent is None:
            raise Mixed("has other loops for another length")
        fixed *= b if extent is None else 1
        along += [extent] if extent is not None else []
    return Sized(fixed, tuple(along))


def _convolution(operator: OperatorWork, sized: Callable) -> LengthSum:
    """Return the sums of a convolution of a picture with a weight; its needs say whether it reads behind the length."""
    shapes = operator.shapes()
    weight, result = (sized([*zip(*pair)]) for pair in shapes[1:])
    terms = Sized(prod(shapes[1][1][1:]))
    return LengthSum(result, terms, weight.fixed)


def _sums_of(small: Kernel, large: Kernel, sized: Callable) -> list[LengthSum]:
    if len(small.stages) != len(large.stages):
        raise Mixed("has other loops for another length")
    pairs = {other: (one, other) for one, other in zip(small.inputs, large.inputs, strict=True)}
    shapes = {buffer: [*zip(*map(shape_of, pair))] for buffer, pair in pairs.items()}
    found = []
    for before, stage in zip(small.stages, large.stages):
        if not stage.reduction:
            continue
        extents = [(int(one.dom.extent), int(other.dom.extent)) for one, other in zip(before.iters, stage.iters)]
        kinds = [any(other.var.same_as(var) for var in stage.reduction) for other in stage.iters]
        written, added = (sized([pair for pair, kind in zip(extents, kinds) if kind is want]) for want in (False, True))
        read = {load.source for load in stage.loads} - {stage.body.buffer}
        if len(read) == 1:
            written = Sized(written.fixed * _OF_ROW, written.along)
        operands = {buffer: sized(shapes[buffer]) for buffer in read if buffer in shapes}
        weights = sum(each.fixed for each in operands.values() if not each.along)
        found.append(LengthSum(written, added, weights))
    return found

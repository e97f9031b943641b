# SPDX-License-Identifier: Apache-2.0
"""MergeBranches: convolutions of one tensor that are added up become one convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

import numpy as np
import tvm
from tvm import ir, relax

from ...analysis.windows import convolution, window_axes
from ...ir.block import Bindings, constant, edit_blocks, operator, shape_of, weight


@tvm.transform.module_pass(opt_level=0, name="smartmem.MergeBranches")
class MergeBranches:
    """Add up the weights of convolutions of one tensor, at compile time, instead of their results.

    Before::

        y = conv2d(x, v, padding=1) + b         # v: (F, C, 3, 3)
        z = conv2d(x, w) + c                    # w: (F, C, 1, 1)
        s = y + z + x * a                       # a: a number for each channel

    After::

        s = conv2d(x, v + padded(w) + padded(diagonal(a)), padding=1) + (b + c)

    This is DNNFusion's distributive law. Networks that are trained with several branches (RepVGG, MobileOne, RepViT,
    FastViT) have such sums. Results are rounded differently.

    Refused are convolutions whose strides, dilations, groups or types differ, whose weights are not constant, whose
    result has another reader, or whose layout is not channels-first. Refused is also a merged window with more places
    than the separate windows have together.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        return edit_blocks(mod, merge_branches, leaves_unread=True)


@dataclass(frozen=True, eq=False)
class Branch:
    """A convolution, or a factor for each channel written as one.

    Attributes
    ----------
    terms : tuple of Var
        The summands that it computes.
    kernel : ndarray
        Weights (F, C / groups, ...), in float64.
    first : tuple of int
        Position of the window's first place for result 0, on each axis; below 0 it is in the padding.
    cost : int
        Number of window places of all terms.
    """

    terms: tuple
    kernel: np.ndarray
    first: tuple[int, ...]
    cost: int

    @property
    def window(self) -> tuple[int, ...]:
        """Return the window's places on each axis."""
        return self.kernel.shape[2:]

    def joined(self, other: Branch, dilation: Sequence[int]) -> Branch | None:
        """Return both as one; None if their places do not align, or the window would have more places than both."""
        first = tuple(map(min, self.first, other.first))
        shifts = [
            [(own - least) // step for own, least, step in zip(each.first, first, dilation, strict=True)]
            for each in (self, other)
        ]
        meet = all((a - b) % step == 0 for a, b, step in zip(self.first, other.first, dilation, strict=True))
        ends = [[at + n for at, n in zip(*pair, strict=True)] for pair in zip(shifts, (self.window, other.window))]
        window, cost = tuple(map(max, *ends)), self.cost + other.cost
        if not meet or prod(window) > cost:
            return None
        total = np.zeros((*self.kernel.shape[:2], *window))
        for each, shift in zip((self, other), shifts, strict=True):
            total[(..., *(slice(at, at + n) for at, n in zip(shift, each.window, strict=True)))] += each.kernel
        return Branch((*self.terms, *other.terms), total, first, cost)


def merge_branches(block: Bindings) -> list[dict]:
    """Merge convolutions in place; return one decision for each sum."""
    decisions = []
    for var in block.order:
        if operator(block.values[var]) == "add" and shape_of(var) is not None and not _is_inner(block, var):
            terms = _terms(block, var)
            merged = _merged(block, terms)
            if merged:
                taken = [term for branch, _ in merged for term in branch.terms]
                rest = [term for term in terms if not any(term.same_as(each) for each in taken)]
                block.edit({var: reduce(relax.op.add, (*(call for _, call in merged), *_with_one_bias(rest, var)))})
                decisions.append(_decision(var, [branch for branch, _ in merged]))
    return decisions


def _decision(var, branches: Sequence[Branch]) -> dict:
    results, count = prod(shape_of(var)), sum(len(branch.terms) for branch in branches)
    saved = sum(2 * (b.cost - prod(b.window)) * b.kernel.shape[1] + len(b.terms) - 1 for b in branches) * results
    reason = f"{count} branches are linear: a convolution with the sum of their weights adds them up"
    said = {"into": [var.name], "flops_saved": saved, "reason": reason}
    return {"pass": "MergeBranches", "operator": var.name, "action": "merged", **said}


def _is_inner(block: Bindings, var) -> bool:
    """Whether a sum is part of a larger one."""
    if not block.is_read_once(var):
        return False
    (reader,) = block.readers(var)
    return operator(block.values[reader]) == "add" and shape_of(reader) == shape_of(var)


def _terms(block: Bindings, var) -> list:
    """Return the summands of a sum: variables and constants."""
    found: list = []
    for term in block.values[var].args:
        inner = operator(block.values.get(term)) == "add" and shape_of(term) == shape_of(var)
        found += _terms(block, term) if inner and block.is_read_once(term) else [term]
    return found


def _merged(block: Bindings, terms: Sequence) -> list[tuple[Branch, ir.Call]]:
    """Return the convolutions that replace two terms or more."""
    groups: dict = {}
    for term in terms:
        if _is_convolution(block, term):
            groups.setdefault(_facts(block.values[term]), []).append(term)
    found = []
    for members in groups.values():
        call = block.values[members[0]]
        branches = [_branch(block, term) for term in members]
        branches += [each for term in terms if (each := _factor(block, term, call)) is not None]
        whole, *others = sorted(branches, key=lambda branch: -prod(branch.window))
        for other in others:
            whole = whole.joined(other, [axis.dilation for axis in window_axes(call)]) or whole
        if len(whole.terms) > 1:
            found.append((whole, _with_kernel(call, whole)))
    return found


def _is_convolution(block: Bindings, term) -> bool:
    call = block.values.get(term)
    axes = window_axes(call) if block.is_read_once(term) else None
    if axes is None or any(min(axis.before, axis.after) < 0 for axis in axes):
        return False
    return weight(call.args[1]) is not None


def _facts(call: ir.Call) -> tuple:
    """Return the attributes and types in which two convolutions must agree."""
    steps = ((axis.stride, axis.dilation) for axis in window_axes(call))
    types = (str(each.ty.dtype.dtype) for each in (call, call.args[1]))
    return (call.args[0], int(call.attrs.groups), *steps, *types)


def _branch(block: Bindings, term) -> Branch:
    call = block.values[term]
    kernel = weight(call.args[1]).astype("float64")
    return Branch((term,), kernel, tuple(-axis.before for axis in window_axes(call)), prod(kernel.shape[2:]))


def _factor(block: Bindings, term, call: ir.Call) -> Branch | None:
    """Return a scaled operand of a convolution, one factor for each channel, as a branch of the result's size."""
    value, data = block.values.get(term), call.args[0]
    shape = shape_of(data)
    if operator(value) != "multiply" or not block.is_read_once(term) or shape != shape_of(call):
        return None
    if any(axis.stride != 1 for axis in window_axes(call)) or not any(arg.same_as(data) for arg in value.args):
        return None
    factor = next((weight(arg) for arg in value.args if weight(arg) is not None), None)
    if factor is None or not _per_channel(factor, len(shape)):
        return None
    kernel = np.zeros((shape[1], shape[1] // int(call.attrs.groups), *[1] * (len(shape) - 2)))
    channels = np.arange(shape[1])
    kernel[channels, channels % kernel.shape[1]] += factor.reshape(-1, *kernel.shape[2:])
    return Branch((term,), kernel, (0,) * (len(shape) - 2), 0)


def _per_channel(array: np.ndarray, ndim: int) -> bool:
    """Whether a constant differs along the second of `ndim` axes only."""
    shape = (1,) * (ndim - array.ndim) + array.shape
    return len(shape) == ndim and prod(shape) == shape[1]


def _with_kernel(call: ir.Call, branch: Branch) -> ir.Call:
    """Return the convolution with another kernel, and the padding that keeps its places."""
    padding = []
    for axis, first, window in zip(window_axes(call), branch.first, branch.window, strict=True):
        seen = replace(axis, before=-first).pixels(range(axis.results), range(window))
        padding.append((-first, max(0, seen.stop - axis.size)))
    return convolution(call, call.args[0], constant(branch.kernel, weight(call.args[1])), padding)


def _with_one_bias(terms: Sequence, var) -> list:
    """Return the terms with their constants for each channel added up to one."""
    ndim = len(shape_of(var))
    biases = [term for term in terms if weight(term) is not None and _per_channel(weight(term), ndim)]
    if len(biases) < 2:
        return list(terms)
    values = [weight(term).astype("float64").reshape(-1) for term in biases]
    total = sum(values).reshape(1, -1, *[1] * (ndim - 2))
    return [*(term for term in terms if not any(term.same_as(b) for b in biases)), constant(total, weight(biases[0]))]

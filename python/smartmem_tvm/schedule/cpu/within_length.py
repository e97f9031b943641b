# SPDX-License-Identifier: Apache-2.0
"""Attention over a cache on a CPU: code for several numbers of keys, of which a call takes the first that is enough.

    if end - first <= 256: begin = first, or less; scores, softmax, products of keys begin to begin + 256
    else if end - first <= 512: ...
    else: those of the whole cache

The first key that is seen and the end are data (`transform.fuse.bound_keys`). Loops are static within each branch, so
that the rules for products and rows make all of them as they make any other. Then their loads are moved by `begin`: it
is a multiple of 16 where `first` may be rounded down to one without reading more keys, as vectors along the keys are
then aligned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tvm import tirx
from tvm.target import Target

from ...analysis.key_axis import key_axis
from ...analysis.key_span import ROUND, key_operands, lengths, moved, part_of
from ...ir.kernel import KEY_AXIS, Kernel, Opaque, Stage, emit, parse, shape_of
from ...target import is_cpu
from ..core.decisions import attempt, declined, noted
from ..core.nest import block, fresh, index, index_type
from ..core.rule import FinishedSchedule, Rule, finished
from ..core.sequence import SequenceRule


class WithinLength(Rule):
    """The rule for attention over a cache, from the first key that is seen to the last one.

    Parameters
    ----------
    whole : sequence of Rule
        Asked for the stages of a kernel that was one before its length was known.
    apart : SequenceRule
        Asked where scores, softmax and products were kernels of their own.
    """

    def __init__(self, whole: Sequence[Rule], apart: SequenceRule):
        self.whole, self.apart = list(whole), apart

    def runs_on(self, target: Target) -> bool:
        """Whether the target is a CPU."""
        return is_cpu(target)

    def apply(self, func: tirx.PrimFunc, target: Target) -> FinishedSchedule | None:
        """Schedule `func`, or return None if its keys have no length, or no rule takes its stages."""
        if not self.runs_on(target) or KEY_AXIS not in (func.attrs or {}):
            return declined("it is no attention over a cache")
        place, dim, taken = map(int, func.attrs[KEY_AXIS])
        try:
            kernel = parse(func)
            keys = key_axis(kernel, func.params[place], dim)
        except Opaque as reason:
            return declined(str(reason))
        rules = [self.apart] if taken else [*self.whole, self.apart]
        plain = func.without_attr(KEY_AXIS)
        done = []
        for length in lengths(shape_of(func.params[place])[dim]):
            part = emit(part_of(kernel, keys, length), dict(plain.attrs))
            found = next((each for rule in rules if (each := attempt(partial(rule.apply, part, target)))), None)
            if found is None:
                return declined("no rule takes its stages")
            done.append((length, found.mod["main"].body.block))
        nest = _of_lengths(kernel, keys, [(length, root.body) for length, root in done])
        buffers = [each for _, root in done for each in root.alloc_buffers]
        return FinishedSchedule.of(finished(plain, kernel, nest, buffers))


def _of_lengths(kernel: Kernel, keys: Mapping[Stage, tirx.Var], parts: list[tuple[int, tirx.Stmt]]) -> tirx.Stmt:
    """Return the choice between the loop nests for several lengths, the last one the capacity."""
    dtype, (capacity, nest) = str(next(iter(keys.values())).ty.dtype), parts[-1]
    with index_type(dtype):
        end, behind = (kernel.inputs[-1][index(side)].astype(dtype) for side in range(2))
        first = index(capacity) - behind
        try:
            operands = key_operands(kernel, keys)
            parts = [(length, _from(first, end, length, capacity, part, operands)) for length, part in parts[:-1]]
            count = end - first
        except Opaque as reason:
            noted("within_length", first_row=f"keys are read from the first row on: {reason}")
            parts, count = parts[:-1], end
        for length, part in reversed(parts):
            nest = tirx.IfThenElse(count <= index(length), part, nest)
    return nest


def _from(first, end, length: int, capacity: int, nest: tirx.Stmt, operands: Mapping) -> tirx.Stmt:
    """Return a loop nest for `length` keys that reads those from `first` to `end`, and not behind the capacity."""
    begin = fresh("begin")
    even = tirx.floordiv(first, index(ROUND)) * index(ROUND)
    value = tirx.min(tirx.max(even, end - index(length)), index(capacity - length))
    return block(tirx.Bind(begin, value), moved(nest, operands, begin))

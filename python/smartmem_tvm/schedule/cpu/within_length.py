# SPDX-License-Identifier: Apache-2.0
"""Attention over a cache on a CPU: code for several numbers of keys, of which a call takes the first that is enough.

    if length <= 256: scores, softmax, products of 256 keys
    else if length <= 512: ...
    else: those of the whole cache

The length is data (`transform.fuse.bound_keys`). Loops are static within each branch, so that the rules for products
and rows make all of them as they make any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tvm import tirx
from tvm.target import Target

from ...analysis.key_axis import key_axis, lengths, up_to
from ...ir.kernel import KEY_AXIS, Opaque, emit, parse, shape_of
from ...target import is_cpu
from ..core.decisions import attempt, declined
from ..core.nest import index
from ..core.rule import FinishedSchedule, Rule, finished
from ..core.sequence import SequenceRule


class WithinLength(Rule):
    """The rule for attention over a cache, up to the last key that is seen.

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
            part = emit(up_to(kernel, keys, length), dict(plain.attrs))
            found = next((each for rule in rules if (each := attempt(partial(rule.apply, part, target)))), None)
            if found is None:
                return declined("no rule takes its stages")
            done.append((length, found.mod["main"].body.block))
        nest = done[-1][1].body
        for length, root in reversed(done[:-1]):
            nest = tirx.IfThenElse(kernel.inputs[-1][index(0)] <= index(length), root.body, nest)
        buffers = [each for _, root in done for each in root.alloc_buffers]
        return FinishedSchedule.of(finished(plain, kernel, nest, buffers))

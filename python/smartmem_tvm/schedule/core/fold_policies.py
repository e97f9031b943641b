# SPDX-License-Identifier: Apache-2.0
"""Which element-wise stages rules want folded into their readers, so that they see reductions and what surrounds them.

    t[i] = x[i] + b[i]; y[i] = erf(t[i] * 0.7) * t[i]   ->   y[i] = erf((x[i] + b[i]) * 0.7) * (x[i] + b[i])

Each is a policy for `ir.compose.fold`. None lets a statement grow out of proportion; they differ in the work that may
be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import tvm_ffi
from tvm import tirx

from ...ir.compose import fold, nests_too_deep
from ...ir.kernel import Kernel, Stage
from ...ir.recent import Recent
from .expressions import has_costly_call, has_select, size

_folded = Recent(64)
LARGEST = 4000  # nodes of a folded statement; LLVM and TVM are linear in it


def folded(kernel: Kernel, policy: Callable[[Stage, list[Stage]], bool]) -> Kernel:
    """The kernel with its stages folded into their readers as a policy wants it, once for all rules."""
    return _folded.get(kernel, lambda: fold(kernel, policy), policy)


def in_proportion(stage: Stage, readers: list[Stage]) -> bool:
    """Whatever does not grow out of proportion.

    For windows on a GPU: it has more arithmetic than memory, and a padded copy would be a kernel of its own.
    """
    return all(
        size(stage.body.value) * len(_reads(stage, r)) + size(r.body) <= LARGEST and not nests_too_deep(stage, r)
        for r in readers
    )


def costly_once(stage: Stage, readers: list[Stage]) -> bool:
    """What is cheap, or needed at one place of one reader.

    For GPUs: arithmetic is cheaper than a trip through memory, and a condition costs a thread next to nothing.
    """
    if not all(_has_one_store(r) for r in readers) or not in_proportion(stage, readers):
        return False
    return not has_costly_call(stage.body.value) or _at_once(stage, readers)


def costly_once_and_plain_sums(stage: Stage, readers: list[Stage]) -> bool:
    """As `costly_once`, but what reductions read is cheap and without conditions.

    For CPUs: a padded copy stays before the window that slides over it, a transcendental before the sum of its values.
    """
    if any(r.reduction for r in readers) and (has_select(stage.body.value) or has_costly_call(stage.body.value)):
        return False
    return costly_once(stage, readers)


def _at_once(stage: Stage, readers: list[Stage]) -> bool:
    """Whether folding repeats nothing: the only reader reads at one place, and not again and again."""
    if len(readers) > 1:
        return False
    first, *others = (tuple(load.indices) for load in _reads(stage, readers[0]))
    same_place = all(tvm_ffi.structural_equal(each, first) for each in others)
    return same_place and prod(readers[0].extents.values()) <= prod(stage.extents.values())


def _has_one_store(stage: Stage) -> bool:
    """Whether a stage is a plain statement, whose loads can be replaced."""
    return len(stage.outputs) == 1 and isinstance(stage.body, tirx.BufferStore)


def _reads(stage: Stage, reader: Stage) -> list:
    """Loads of `reader` of what `stage` computes."""
    return [load for load in reader.loads if load.source.same_as(stage.outputs[0])]

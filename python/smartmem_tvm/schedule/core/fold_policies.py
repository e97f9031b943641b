# SPDX-License-Identifier: Apache-2.0
"""Policies of folding element-wise stages into their readers, so that a rule sees a reduction with its surroundings.

    t[i] = x[i] + b[i]; y[i] = erf(t[i] * 0.7) * t[i]   ->   y[i] = erf((x[i] + b[i]) * 0.7) * (x[i] + b[i])

Each is a policy for `ir.compose.fold`. All bound the size of a statement; they differ in the work that they let a
kernel repeat.
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
LARGEST = 4000  # nodes of a folded statement. Chosen: the time that LLVM and TVM take is linear in them


def folded(kernel: Kernel, policy: Callable[[Stage, list[Stage]], bool]) -> Kernel:
    """Return the kernel with its stages folded into their readers by a policy; rules share the result."""
    return _folded.get(kernel, lambda: fold(kernel, policy), policy)


def in_proportion(stage: Stage, readers: list[Stage]) -> bool:
    """Whether folding keeps each statement within `LARGEST` nodes.

    For windows on a GPU: arithmetic is cheaper there than memory, and a padded copy would be a kernel of its own.
    """
    return all(
        size(stage.body.value) * len(_reads(stage, r)) + size(r.body) <= LARGEST and not nests_too_deep(stage, r)
        for r in readers
    )


def costly_once(stage: Stage, readers: list[Stage]) -> bool:
    """Whether a stage is cheap to compute again, or is read by one reader at one place only.

    For GPUs: arithmetic is cheaper than a trip through memory, and a condition costs a thread next to nothing.
    """
    if not all(_has_one_store(r) for r in readers) or not in_proportion(stage, readers):
        return False
    return not has_costly_call(stage.body.value) or _at_once(stage, readers)


def costly_once_and_plain_sums(stage: Stage, readers: list[Stage]) -> bool:
    """Whether `costly_once` holds, and a stage that a reduction reads is cheap and without conditions.

    For CPUs: a padded copy stays in front of its window, and a transcendental function in front of a sum of its values.
    """
    if any(r.reduction for r in readers) and (has_select(stage.body.value) or has_costly_call(stage.body.value)):
        return False
    return costly_once(stage, readers)


def _at_once(stage: Stage, readers: list[Stage]) -> bool:
    """Whether folding repeats no work: the only reader reads each element once, at one place."""
    if len(readers) > 1:
        return False
    first, *others = (tuple(load.indices) for load in _reads(stage, readers[0]))
    same_place = all(tvm_ffi.structural_equal(each, first) for each in others)
    return same_place and prod(readers[0].extents.values()) <= prod(stage.extents.values())


def _has_one_store(stage: Stage) -> bool:
    """Whether a stage is a plain statement, whose loads can be replaced."""
    return len(stage.outputs) == 1 and isinstance(stage.body, tirx.BufferStore)


def _reads(stage: Stage, reader: Stage) -> list:
    """Return the loads of `reader` from the result of `stage`."""
    return [load for load in reader.loads if load.source.same_as(stage.outputs[0])]

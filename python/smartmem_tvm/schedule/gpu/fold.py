# SPDX-License-Identifier: Apache-2.0
"""Fold element-wise stages into their readers, for a GPU: arithmetic there is cheaper than a trip through memory.

Unlike on a CPU a padded copy is folded into the window that slides over it: a condition costs a thread next to nothing.
"""

from __future__ import annotations

from ...ir.kernel import Kernel, Stage
from ..core.expressions import has_costly_call
from ..core.inline import at_once, fits, fold_where, has_one_store


def fold(kernel: Kernel) -> Kernel:
    """Fold every element-wise stage whose value is cheap, or needed at one place of one reader."""
    return fold_where(kernel, _may_fold)


def _may_fold(stage: Stage, reader: Stage, readers: int) -> bool:
    if not (has_one_store(reader) and fits(stage, reader)):
        return False
    return not has_costly_call(stage.body.value) or at_once(stage, reader, readers)

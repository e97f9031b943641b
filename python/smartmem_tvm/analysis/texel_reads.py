# SPDX-License-Identifier: Apache-2.0
"""The share of each texel that a kernel uses of the texels that it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..ir.image_access import ImageAccess, image_accesses
from ..ir.index_map import variables
from ..ir.walk import loads
from ..planner.texture_form import TEXEL

# Reasons why a kernel uses fewer than four numbers of a texel: the quantity that selects the number.
CONSTANT, THREAD, LOOP, MEMORY = "constant", "thread", "loop", "memory"
PARTIAL = {
    CONSTANT: "always the same of them",  # a slice, a stride, the tail of a row, a reader that goes across the texels
    THREAD: "one per thread",  # a window that slides along the texels, a reader that goes across them
    LOOP: "one in each pass of a loop",  # of another texel each time: a reader that goes across the texels
    MEMORY: "one that is looked up",  # a gather
}


@dataclass(frozen=True)
class TexelReads:
    """Reads of texels in the code of a kernel, each counted once.

    Attributes
    ----------
    whole : int
        Reads whose four numbers are all used.
    partial : dict
        Reason (of `PARTIAL`) -> number of reads that use fewer.
    """

    whole: int = 0
    partial: dict[str, int] = field(default_factory=dict)


def summed(reads: Iterable[TexelReads]) -> TexelReads:
    """Return the sum of the reads of several kernels."""
    whole, partial = 0, Counter()
    for each in reads:
        whole += each.whole
        partial.update(each.partial)
    return TexelReads(whole, dict(sorted(partial.items())))


def texel_reads(mod: tvm.IRModule) -> dict[str, TexelReads]:
    """Return the texel reads of each kernel of a module that is ready for OpenCL's code generator."""
    return {gvar.name_hint: _counted(func) for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}


def _counted(kernel: tirx.PrimFunc) -> TexelReads:
    reads = [access for access in image_accesses(kernel) if access.reads]
    reasons = Counter(_why_partial(uses) for uses in _variables(reads))
    return TexelReads(reasons.pop(None, 0), dict(sorted(reasons.items())))


def _variables(reads: Sequence[ImageAccess]) -> list[list[ImageAccess]]:
    """Return the uses of each vector that the code generator reads a texel into.

    The code generator reuses a vector of floats as long as the newest block at its read is open. It reads integers
    anew at each use.
    """
    known: dict[tuple, list[ImageAccess]] = {}
    found = []
    for read in reads:
        key = (read.image, *map(tvm_ffi.structural_hash, read.place))
        if read.kind != "float" or key not in known or known[key][0].newest not in read.blocks:
            known[key] = []
            found.append(known[key])
        known[key].append(read)
    return found


def _why_partial(uses: Sequence[ImageAccess]) -> str | None:
    """Return the reason (of `PARTIAL`) why a texel is not used whole, None if it is."""
    lanes = [use.numbers for use in uses]
    if any(lane is None for lane in lanes) or {int(lane) for lane in lanes if isinstance(lane, tirx.IntImm)} >= set(
        range(TEXEL)
    ):
        return None
    again = {block.loop.loop_var for block in uses[0].blocks if block.loop is not None}
    return min((_depends_on(lane, again) for lane in lanes), key=(MEMORY, LOOP, THREAD, CONSTANT).index)


def _depends_on(lane: ir.Expr, again: set) -> str:
    if loads(lane):
        return MEMORY
    names = set(variables(lane))
    return LOOP if names & again else THREAD if names else CONSTANT

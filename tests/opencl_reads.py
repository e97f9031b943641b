# SPDX-License-Identifier: Apache-2.0
"""Find the lanes that a kernel uses of each texel it reads, from its source; `analysis.texel_reads` needs no source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from opencl_parser import KernelSource, Loop, Use, within_brackets, within_parentheses
from smartmem_tvm.analysis.texel_reads import CONSTANT, LOOP, MEMORY, THREAD, TexelReads
from smartmem_tvm.planner.texture_form import TEXEL

LANES = frozenset(map(str, range(TEXEL)))
_HELD = re.compile(r"(\w+)4\s+(\w+)\s*=\s*(?:as_\w+4\s*)?\(*\s*$")
_SWIZZLE = re.compile(r"\)*\s*\.\s*(?:s([0-3]+)|([xyzw]+))\b")
_CHOSEN = re.compile(r"[\s)]*;\s*(?:int|long)\s+lane\w*\s*=\s*([^;]*);")
_PICKED = re.compile(r"\(\(\w+\s*\*\)&$")
_LETTERS = str.maketrans("xyzw", "0123")


@dataclass(frozen=True)
class Lane:
    """A lane of a texel, and the place in the body that uses it."""

    text: str
    place: int


@dataclass(frozen=True)
class Read:
    """One read of a texel.

    Attributes
    ----------
    lanes : tuple of Lane or None
        The lanes in use; None if the texel is used as a whole.
    """

    use: Use
    lanes: tuple[Lane, ...] | None


def count_reads(kernel: KernelSource, reads: Iterable[Read]) -> TexelReads:
    """Count the reads of a kernel that use the whole texel, and the reasons of the others."""
    reasons = Counter(why_partial(kernel, read) for read in reads)
    return TexelReads(reasons.pop(None, 0), dict(sorted(reasons.items())))


def texel_reads(kernel: KernelSource) -> Iterator[Read]:
    """Yield every read of a texel in a kernel."""
    for use in kernel.uses:
        if use.reads:
            yield Read(use, _lanes(kernel, use))


def why_partial(kernel: KernelSource, read: Read) -> str | None:
    """Return the reason of `PARTIAL` why a read uses some lanes only, None if it uses all."""
    if read.lanes is None or {lane.text for lane in read.lanes} >= LANES:
        return None
    again = {name for loop in kernel.loops_around(read.use.start) for name in loop.variables}
    found = set()
    for lane in read.lanes:
        names = set(re.findall(r"[A-Za-z_]\w*", lane.text))
        if any(_walks(loop, lane) for loop in kernel.loops_around(lane.place) if not loop.variables & again):
            return None
        if "[" in lane.text:
            found.add(MEMORY)
        else:
            found.add(LOOP if names & again else THREAD if names else CONSTANT)
    return next(reason for reason in (MEMORY, LOOP, THREAD, CONSTANT) if reason in found)


def _walks(loop: Loop, lane: Lane) -> bool:
    """Whether a loop after the read of a texel runs over all of its lanes."""
    return loop.extent == len(LANES) and lane.text in loop.variables


def _lanes(kernel: KernelSource, use: Use) -> tuple[Lane, ...] | None:
    body = kernel.body
    held = _HELD.search(body, max(0, use.start - 160), use.start)
    if held is not None and (chosen := _CHOSEN.match(body, use.end)):
        return (Lane(_stripped(chosen[1]), use.start),)
    if held is None:
        return _used_here(body, use.start, use.end)
    found: list[Lane] = []
    name = re.compile(rf"\b{held[2]}\b")
    for match in name.finditer(body, use.end, kernel.block_end(use.end)):
        lanes = _used_here(body, match.start(), match.end())
        if lanes is None:
            return None
        found += lanes
    return tuple(found)


def _used_here(body: str, start: int, end: int) -> tuple[Lane, ...] | None:
    """Return the lanes of the texel ``body[start:end]`` that the same expression uses."""
    before = body[max(0, start - 32) : start]
    if _PICKED.search(before) and body.startswith(")[", end):
        return (Lane(_stripped(within_brackets(body, end + 2)), start),)
    chosen = _CHOSEN.match(body, end)
    if chosen and _HELD.search(before):
        return (Lane(_stripped(chosen[1]), start),)
    swizzle = _SWIZZLE.match(body, end)
    if swizzle is None:
        return None
    letters = swizzle[1] or swizzle[2].translate(_LETTERS)
    return tuple(Lane(letter, start) for letter in letters)


def _stripped(text: str) -> str:
    """Return an expression without the parentheses and conversions around it."""
    while True:
        inner = re.fullmatch(r"\s*(?:convert_\w+|\(\s*\w+\s*\))?\s*\((.*)\)\s*", text, re.DOTALL)
        if inner is None or within_parentheses(inner[1] + ")", 0) != inner[1]:
            return text.strip()
        text = inner[1]

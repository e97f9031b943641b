# SPDX-License-Identifier: Apache-2.0
"""Numbers of four bytes that a thread holds at once, and instructions of its inner loop, as Mesa's compiler has them.

Both are functions of the tile. They were fitted to kernels that ir3 compiled for Adreno 740 and 660 (2026-11-28), and
`python benchmarks/adreno_registers.py` holds them to the compiler. Registers come in steps (`waves.allotted`), so that
what counts is the step that a tile falls on: a register tile of 8 x 8 in float32 holds 148 numbers, which is 37
registers, and gets 48; one of 8 x 4 holds 98 and gets 32.

Halves take half a register each, as Adreno's registers have since the 6xx.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...target import Limits
from .machine import VECTOR
from .waves import most_registers

# Steps of a fragment that are in registers at once of 16 unrolled terms: fitted, as loads of later terms begin before a
# term is added. With 32 terms tiles of 8 x 4 in float32 spilled on a 660.
_FRAGMENTS, _UNROLLED = 3, 16
_STAGED = 0.75  # share of prefetched elements that are in registers beside all the others: fitted
# Numbers that hold addresses, counters and places of a GEMM's thread, in float32 and in halves: fitted.
ADDRESSES_GEMM, _ADDRESSES_HALVES = 12, 11
# Numbers for each result of a sliding window and beside them, in float32 up to a most, and in halves: fitted. Loaded
# values are shared by results. A thread with several channels of a group holds the last instead.
_SLIDING, _SLIDING_REST, _SLIDING_MOST, _SLIDING_GROUPS = 4.5, 8, 60, 88
# The same numbers of a kernel in halves: fitted (2026-11-28).
_SLIDING_HALVES, _SLIDING_REST_HALVES, _SLIDING_GROUPS_HALVES = 1.25, 18, 64
_WINDOW_FRAGMENTS, _WINDOW_REST, _WINDOW_LEAST = 2, 8, 44  # as for a GEMM, of products over windows: fitted
_CHAIN = 90  # numbers of a thread of a chain of rows: fitted, its local memory limits waves in any case
# Numbers of a thread that works on rows: for its place, and for each element of a vector of each row where the threads
# of a row are no power of two, as their places are quotients then: fitted.
_ROWS, _ROWS_EVEN = 12, 16
# Instructions of a trip beside products and loads of fragments, and for each vector that a thread copies: fitted.
_TRIP, _COPIED = 45, 8
# Instructions of a thread outside of the loop, for its place and for each result that it finishes and stores: fitted.
_START, _FINISHED = 150, 7
# Instructions that add a sum of halves to one of float32 (widen, add, clear): read off Mesa's code, 2026-11-28.
_WIDENED = 3


@dataclass(frozen=True)
class Held:
    """The numbers of four bytes that a thread of a product holds.

    Attributes
    ----------
    rows, columns : int
        Its register tile.
    staged : int
        Elements on their way to shared memory; 0 if all terms are one tile, as nothing is prefetched then.
    halves : bool
        Whether operands and short sums are float16; sums of short sums are float32 in any case.
    terms : int
        Terms that are unrolled.
    """

    rows: int
    columns: int
    staged: int
    halves: bool = False
    terms: int = _UNROLLED

    @property
    def _each(self) -> float:
        return 0.5 if self.halves else 1.0

    @property
    def _sums(self) -> float:
        """Numbers of the sums, and of the short sums beside them."""
        short = 0.5 if self.halves and self.staged else 0.0
        return self.rows * self.columns * (1 + short)

    @property
    def gemm(self) -> int:
        """Numbers that a thread of a GEMM holds at once."""
        steps = _FRAGMENTS * max(1, self.terms / _UNROLLED) if self.staged or not self.halves else 1
        operands = steps * (self.rows + self.columns) + _STAGED * self.staged
        return round(self._sums + self._each * operands) + (_ADDRESSES_HALVES if self.halves else ADDRESSES_GEMM)

    @property
    def window(self) -> int:
        """The same of a product over windows."""
        operands = _WINDOW_FRAGMENTS * (self.rows + self.columns)
        return max(round(self._sums + self._each * operands) + _WINDOW_REST, _WINDOW_LEAST)


def sliding(results: int, rows: int, halves: bool) -> int:
    """Return the numbers that a thread holds at once whose window slides over `results` results of `rows` channels."""
    if rows > 1:
        return _SLIDING_GROUPS_HALVES if halves else _SLIDING_GROUPS
    if halves:
        return round(results * _SLIDING_HALVES) + _SLIDING_REST_HALVES
    return min(round(results * _SLIDING) + _SLIDING_REST, _SLIDING_MOST)


def of_rows(rows: int, vector: int, threads: int) -> int:
    """Return the numbers that a thread holds at once that works on `rows` rows, `vector` elements of each at a time.

    Parameters
    ----------
    threads : int
        Threads of a row.
    """
    even = vector > 1 and threads & (threads - 1) == 0
    return _ROWS_EVEN if even else _ROWS + rows * vector


def room_of_rows(limits: Limits, threads: int) -> int | None:
    """Return the numbers that a thread of a block of rows has registers for beside its place and its sums.

    None for devices that are no phones: their compilers were not seen to begin more loads than registers hold.
    """
    core = limits.device.core if limits.phone else None
    return None if core is None else most_registers(core, threads) * core.unit - _ROWS_EVEN


def of_chain() -> int:
    """Return the same of a chain of rows."""
    return _CHAIN


def gemm_trip(rows: int, columns: int, terms: int, copied: int, halves: bool) -> int:
    """Return the instructions of a trip of a GEMM's inner loop.

    Parameters
    ----------
    rows, columns : int
        Register tile of a thread.
    terms : int
        Terms that a trip adds.
    copied : int
        Vectors that the thread copies to shared memory in a trip.
    """
    loads = -(-rows // VECTOR) + -(-columns // VECTOR)
    widened = _WIDENED * rows * columns if halves else 0
    return terms * (rows * columns + loads) + widened + _TRIP + _COPIED * copied


def gemm_ends(rows: int, columns: int) -> int:
    """Return the instructions of a thread of a GEMM before and behind its loop."""
    return _START + _FINISHED * rows * columns

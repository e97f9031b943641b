# SPDX-License-Identifier: Apache-2.0
"""What a tile takes of a GPU and how many work-groups run at once: one model, for rules and the tuner's search space.

A rule has candidates, thresholds and an estimate of time of its own. What a work-group may have (`target.Limits`), what
a tile takes of it, and how many work-groups share a processor is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Protocol

from tvm import DataType, s_tir, tirx
from tvm.s_tir.schedule import ScheduleError

from ...ir.walk import collect
from ...target import Limits

WARP = 32  # threads that issue one instruction together
VECTOR = 4  # floats that one instruction moves
FLOAT_BYTES = 4
SECTOR = 32  # bytes that memory delivers at least: of a buffer, or of one of the two rows of an image in a line
ADDRESSES = 16  # registers of a thread that hold no values: addresses, counters
HELD_REGISTERS = 3  # for an element on its way to shared memory: itself, and what of its address stays the same


class Tile(Protocol):
    """What a work-group does, as far as the limits of a target go."""

    @property
    def threads(self) -> int:
        """Threads of a work-group."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a work-group."""

    @property
    def values(self) -> int:
        """Registers of a thread that hold values."""


def fits(tile: Tile, limits: Limits) -> bool:
    """Whether a work-group may have what a tile takes."""
    within = tile.threads <= limits.work_group and tile.shared_bytes <= limits.shared_bytes
    return within and tile.values + ADDRESSES <= limits.registers


def register_tile(rows: int, columns: int, staged: int) -> int:
    """Registers of a thread that hold values: sums, operands of a step, and what is on its way of the next tile."""
    return rows * columns + rows + columns + staged


@dataclass(frozen=True)
class WorkGroupTile:
    """The part of a product that a work-group computes; both operands pass through shared memory.

    A subclass has `slices`: parts into which the terms are divided, each with threads of its own for all results.

    Attributes
    ----------
    rows, columns : int
        Results of a work-group.
    depth : int
        Terms in shared memory at a time.
    thread_rows, thread_columns : int
        Results that each thread keeps in registers.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int

    @property
    def threads_down(self) -> int:
        """Threads along the rows."""
        return self.rows // self.thread_rows

    @property
    def threads_across(self) -> int:
        """Threads along the columns."""
        return self.columns // self.thread_columns

    @property
    def slice_threads(self) -> int:
        """Threads of a slice, which hold one sum for each result of the work-group."""
        return self.threads_down * self.threads_across

    @property
    def threads(self) -> int:
        """Threads of a work-group."""
        return self.slice_threads * self.slices

    @property
    def terms(self) -> int:
        """Terms of all slices that are in shared memory at a time."""
        return self.depth

    @property
    def shared_sums(self) -> int:
        """Slices whose sums pass through shared memory to be added."""
        return self.slices - 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a work-group: operands, with the padding of a transposed tile, and sums of slices."""
        operands = self.terms * (self.rows + self.columns + 2 * VECTOR)
        return FLOAT_BYTES * (operands + self.shared_sums * self.rows * self.columns)

    @property
    def values(self) -> int:
        """Registers of a thread that hold values: sums, operands of a step, the next tile on its way."""
        staged = -(-self.terms * (self.rows + self.columns) // self.threads)
        return register_tile(self.thread_rows, self.thread_columns, staged)


@dataclass(frozen=True)
class Processor:
    """A unit that runs work-groups independently of others; the numbers are those of a large one.

    Attributes
    ----------
    lanes : int
        Multiplications with addition that it starts in each cycle.
    bytes_per_cycle : float
        From the last cache, while all processors read.
    threads, groups, shared_bytes, registers : int
        What it holds at a time.
    """

    lanes: int = 128
    bytes_per_cycle: float = 40.0
    threads: int = 2048
    groups: int = 32
    shared_bytes: int = 220 * 1024
    registers: int = 65536

    def resident(self, threads: int, shared_bytes: int = 0, registers: int = 0) -> int:
        """Work-groups that it holds at a time (occupancy).

        Parameters
        ----------
        threads, shared_bytes : int
            Of a work-group.
        registers : int
            Of a thread.
        """
        taken = ((threads, self.threads), (shared_bytes, self.shared_bytes), (registers * threads, self.registers))
        return min([self.groups, *(held // each for each, held in taken if each)])


# -- what a schedule takes -------------------------------------------------------------------------------------------


def require_limits(func: tirx.PrimFunc, limits: Limits) -> None:
    """Refuse a schedule whose work-groups are larger than the target's, or take more shared memory.

    Parameters
    ----------
    func : tirx.PrimFunc
        Scheduled, with every buffer allocated where it is used and no larger than what is used of it.

    Raises
    ------
    ScheduleError
        If one of its launches is over a limit.
    """
    for nest in _launches(func.body):
        threads, shared_bytes = _taken(nest)
        if threads > limits.work_group:
            raise ScheduleError(f"a work-group of {threads} threads, and the target has {limits.work_group} at most.")
        if shared_bytes > limits.shared_bytes:
            raise ScheduleError(
                f"a work-group takes {shared_bytes} bytes of shared memory, and the target has {limits.shared_bytes}."
            )


def _launches(stmt: tirx.Stmt) -> Iterator[tirx.For]:
    """The outermost loops that are bound to threads: each becomes a kernel."""
    if isinstance(stmt, tirx.For) and stmt.thread_binding is not None:
        yield stmt
    elif isinstance(stmt, tirx.For):
        yield from _launches(stmt.body)
    elif isinstance(stmt, s_tir.SBlockRealize):
        yield from _launches(stmt.block.body)
    elif isinstance(stmt, tirx.SeqStmt):
        for each in stmt:
            yield from _launches(each)
    elif isinstance(stmt, tirx.IfThenElse):
        for each in filter(None, (stmt.then_case, stmt.else_case)):
            yield from _launches(each)


def _taken(nest: tirx.For) -> tuple[int, int]:
    """(threads, bytes of shared memory) of a work-group."""
    extents: dict[str, int] = {}
    for loop in collect(nest, tirx.For):
        tag = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""
        if tag.startswith("threadIdx"):  # how many work-groups there are may be known at run time only
            extents[tag] = max(int(loop.extent), extents.get(tag, 1))
    allocated = [buffer for each in collect(nest, s_tir.SBlock) for buffer in each.alloc_buffers]
    # A rule that asks for a size at launch time, beyond what every group may have, knows the device's limit itself.
    shared = [buffer for buffer in allocated if buffer.scope() == "shared"]
    threads = prod(extents.values())
    sizes = (prod(map(int, buffer.shape)) * DataType(str(buffer.dtype)).itemsize for buffer in shared)
    return threads, sum(sizes)

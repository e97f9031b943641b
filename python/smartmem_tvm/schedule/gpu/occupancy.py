# SPDX-License-Identifier: Apache-2.0
"""Resources of a tile and occupancy of a GPU: one model for all rules and for the tuner's search space.

Each rule has its own candidates and thresholds. All of them share the limits of a thread block (`target.Limits`), the
resources that a tile takes, the number of thread blocks resident on a processor (a streaming multiprocessor, or a
compute unit of OpenCL), and the model of time (`cost`).
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
from .machine import ADDRESSES, FLOAT_BYTES, VECTOR


class BlockResources(Protocol):
    """The resources that a thread block takes."""

    @property
    def threads(self) -> int:
        """Threads of a thread block."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a thread block, in bytes."""

    @property
    def values(self) -> int:
        """Registers of a thread that hold values."""


def fits(tile: BlockResources, limits: Limits) -> bool:
    """Whether a tile is within the limits of a thread block."""
    within = tile.threads <= limits.work_group and tile.shared_bytes <= limits.shared_bytes
    return within and tile.values + ADDRESSES <= limits.registers


def register_tile(rows: int, columns: int, staged: int) -> int:
    """Return the registers of a thread that hold values: accumulators, operands of a step, prefetched elements."""
    return rows * columns + rows + columns + staged


@dataclass(frozen=True)
class BlockTile:
    """The part of a product that a thread block computes; both operands pass through shared memory.

    A subclass has `slices`: parts of the reduction, each with threads of its own for all results of the thread block.

    Attributes
    ----------
    rows, columns : int
        Results of a thread block.
    depth : int
        Terms in shared memory at a time.
    thread_rows, thread_columns : int
        Register tile: results that each thread keeps in registers.
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
        """Threads of a slice, which hold one sum for each result of the thread block."""
        return self.threads_down * self.threads_across

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return self.slice_threads * self.slices

    @property
    def terms(self) -> int:
        """Terms in shared memory at a time, of all slices."""
        return self.depth

    @property
    def shared_sums(self) -> int:
        """Slices whose sums pass through shared memory before they are added up."""
        return self.slices - 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a thread block in bytes: operands, the padding of a transposed tile, sums of slices."""
        operands = self.terms * (self.rows + self.columns + 2 * VECTOR)
        return FLOAT_BYTES * (operands + self.shared_sums * self.rows * self.columns)

    @property
    def values(self) -> int:
        """Registers of a thread that hold values: accumulators, operands of a step, the prefetched tile."""
        staged = -(-self.terms * (self.rows + self.columns) // self.threads)
        return register_tile(self.thread_rows, self.thread_columns, staged)


# -- resources of a schedule -----------------------------------------------------------------------------------------


def require_limits(func: tirx.PrimFunc, limits: Limits) -> None:
    """Refuse a schedule whose thread blocks have more threads or shared memory than the target allows.

    Parameters
    ----------
    func : tirx.PrimFunc
        Scheduled; every buffer is allocated where it is used, and no larger than its used part.

    Raises
    ------
    ScheduleError
        If one of its launches is over a limit.
    """
    for nest in _launches(func.body):
        threads, shared_bytes = _taken(nest)
        if threads > limits.work_group:
            raise ScheduleError(f"a thread block of {threads} threads, and the target has {limits.work_group} at most.")
        if shared_bytes > limits.shared_bytes:
            raise ScheduleError(
                f"a thread block takes {shared_bytes} bytes of shared memory, and the target has {limits.shared_bytes}."
            )


def _launches(stmt: tirx.Stmt) -> Iterator[tirx.For]:
    """Yield the outermost loops that are bound to threads: each becomes a kernel."""
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
    """Return (threads, bytes of shared memory) of a thread block."""
    extents: dict[str, int] = {}
    for loop in collect(nest, tirx.For):
        tag = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""
        if tag.startswith("threadIdx"):  # the number of thread blocks may be known only at run time
            extents[tag] = max(int(loop.extent), extents.get(tag, 1))
    allocated = [buffer for each in collect(nest, s_tir.SBlock) for buffer in each.alloc_buffers]
    # Only static shared memory counts here: a rule that takes dynamic shared memory checks the device's limit itself.
    shared = [buffer for buffer in allocated if buffer.scope() == "shared"]
    threads = prod(extents.values())
    sizes = (prod(map(int, buffer.shape)) * DataType(str(buffer.dtype)).itemsize for buffer in shared)
    return threads, sum(sizes)

# SPDX-License-Identifier: Apache-2.0
"""The GPU in figures: what the rules' models of time count with, each figure once.

Cycles are those of one processor: a streaming multiprocessor, or a compute unit of OpenCL. The figures of a device that
a target names are in `tables.targets`, and take the place of those of a large GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT_BYTES = 4
"""Bytes of a float32."""
HALF_BYTES = 2
"""Bytes of a float16 or bfloat16."""

# -- warps and registers ---------------------------------------------------------------------------------------------

WARP = 32
"""Threads that issue one instruction together."""
VECTOR = 4
"""Floats that one instruction moves."""
ADDRESSES = 16
"""Registers of a thread that hold no values: addresses, counters."""
HELD_REGISTERS = 3
"""Registers per element on its way to shared memory: the element, and the invariant part of its address."""

# -- instructions ----------------------------------------------------------------------------------------------------

ISSUED = 4
"""Instructions per cycle of a processor."""
ISSUED_BY_WARP = 0.5
"""Instructions per cycle of one warp."""
PER_GATHERED = 12
"""Instructions for gathering an element of an operand's tile."""
GUARDED = 3
"""Instructions of a load that may lie in the padding."""
GROUP_RATE = 1600.0
"""Multiply-adds per cycle that a processor reaches with wgmma."""
WARP_RATE = 560.0
"""Multiply-adds per cycle that a processor reaches with mma.sync."""
GATHERED = 2
"""Numbers per cycle that a processor gathers, each with an address of its own: measured on an H100."""

# -- memory ----------------------------------------------------------------------------------------------------------

SECTOR = 32
"""Bytes of the smallest transaction with memory: of a buffer, or of one of the two image rows in a line."""
LINE_BYTES = 128
"""Bytes of a line of the cache."""
BANKS = 128
"""Bytes of all banks of shared memory together, which one access covers."""
LEAST_COPY_BYTES = 4
"""Least bytes of an asynchronous copy."""
LAST_LEVEL_BYTES = 50 * 1024 * 1024
"""Bytes of the last-level cache."""
LAST_LEVEL_RATE = 40.0
"""Bytes per cycle from the last-level cache for one processor, while all processors read."""
LAST_LEVEL_RATE_MATRIX = 34.0
"""The same, in bytes per cycle, in the model of GEMM on tensor cores."""
LAST_LEVEL_RATE_ATTENTION = 36.5
"""The same, in bytes per cycle, in the model of attention on tensor cores."""
SHARED_VECTOR = 3.77
"""Cycles that a processor takes for one vector load from shared memory by a warp."""
SHARED_VECTOR_CHAIN = 2.7
"""The same, in cycles, in the model of chains of rows."""

# -- latencies -------------------------------------------------------------------------------------------------------

ROUND_LATENCY = 232.0
"""Cycles of latency per tile of terms that only other threads can hide."""
ROUND_LATENCY_CHAIN = 120.0
"""The same, in cycles, in the model of chains of rows."""
WINDOW_WAIT = 600
"""Cycles that a step of a sum over a window waits for memory and barriers."""
GRAPH_LAUNCH = 5000.0
"""Cycles of a second kernel in a CUDA graph."""


@dataclass(frozen=True)
class Processor:
    """A streaming multiprocessor or compute unit; the default numbers are those of a large one.

    Attributes
    ----------
    lanes : int
        Fused multiply-adds that it issues per cycle.
    bytes_per_cycle : float
        Throughput of the last-level cache for one processor, while all processors read.
    threads, blocks, shared_bytes, registers : int
        Its limits on resident threads, thread blocks, bytes of shared memory and registers.
    """

    lanes: int = 128
    bytes_per_cycle: float = LAST_LEVEL_RATE
    threads: int = 2048
    blocks: int = 32
    shared_bytes: int = 220 * 1024
    registers: int = 65536

    def resident(self, threads: int, shared_bytes: int = 0, registers: int = 0) -> int:
        """Return the number of resident thread blocks (occupancy).

        Parameters
        ----------
        threads, shared_bytes : int
            Threads and bytes of shared memory of a thread block.
        registers : int
            Registers of a thread.
        """
        taken = ((threads, self.threads), (shared_bytes, self.shared_bytes), (registers * threads, self.registers))
        return min([self.blocks, *(held // each for each, held in taken if each)])

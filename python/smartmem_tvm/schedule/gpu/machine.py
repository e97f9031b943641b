# SPDX-License-Identifier: Apache-2.0
"""The GPU in figures: what the rules' models of time count with, each figure once.

Cycles are those of one processor: a streaming multiprocessor, or a compute unit of OpenCL. The figures of a device that
a target names are in `tables.targets`, and take the place of those of a large GPU. docs/gpu.md (Figures that a card
would measure) lists what is assumed here, and where the fits of several families disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...tables.targets import Core, Row
from . import waves

FLOAT_BYTES = 4
"""Bytes of a float32, by definition."""
HALF_BYTES = 2
"""Bytes of a float16 or bfloat16, by definition."""

# -- warps and registers ---------------------------------------------------------------------------------------------

WARP = 32
"""Threads that issue one instruction together: by definition of CUDA; on Adreno and Mali the model's."""
VECTOR = 4
"""Floats that one instruction moves: by definition of CUDA and OpenCL, 16 bytes."""
ADDRESSES = 16
"""Registers of a thread that hold no values, but addresses and counters: assumed on 2026-11-21."""
HELD_REGISTERS = 3
"""Registers per element on its way to shared memory, for the element and the invariant part of its address: measured
on an H100, as with them no kernel of ResNet-50 spills (`nvcc -Xptxas -v`, docs/gpu.md, 2026-11-25)."""

# -- instructions ----------------------------------------------------------------------------------------------------

ISSUED_BY_WARP = 0.5
"""Instructions per cycle of one warp: assumed on 2026-11-21."""
PER_GATHERED = 12
"""Instructions for gathering an element of an operand's tile: assumed on 2026-11-21."""
GUARDED = 3
"""Instructions of a load that may lie in the padding: assumed on 2026-11-25."""
GROUP_RATE = 1600.0
"""Multiply-adds per cycle that a processor reaches with wgmma: measured on an H200, 2026-11-24; the times of `python
benchmarks/matrix_tiles.py -o benchmarks/matrix_tiles.json` hold the model to it."""
WARP_RATE = 560.0
"""The same with mma.sync, in multiply-adds per cycle: measured on an H200, 2026-11-24."""
GATHERED = 2
"""Numbers per cycle that a processor gathers, each with an address of its own: measured on an H100, 2026-11-25; the
script was not kept."""

# -- memory ----------------------------------------------------------------------------------------------------------

SECTOR = 32
"""Bytes of the smallest transaction with memory, of a buffer or of one of the two image rows in a line: by NVIDIA's
and Qualcomm's data sheets."""
LINE_BYTES = 128
"""Bytes of a line of the cache, by NVIDIA's data sheets."""
BANKS = 128
"""Bytes of all banks of shared memory together, which one access covers: by definition of CUDA, 32 of four bytes."""
LEAST_COPY_BYTES = 4
"""Least bytes of an asynchronous copy, by definition of PTX (`cp.async`)."""
LAST_LEVEL_BYTES = 50 * 1024 * 1024
"""Bytes of the last-level cache, where the target names no device: an H100's, by its data sheet."""
LAST_LEVEL_RATE = 40.0
"""Bytes per cycle from the last-level cache for one processor, while all processors read: for GEMM in float32,
set on 2026-11-21 and fitted to 478 tiles on an H200 since (2026-11-27, `python benchmarks/matrix_tiles.py
--type float32 -o benchmarks/float_tiles.json`)."""
LAST_LEVEL_RATE_MATRIX = 34.0
"""The same, in bytes per cycle, on tensor cores: fitted to GEMM on an H200 (2026-11-24); benchmarks/matrix_tiles.json
holds the model to its tiles. Attention's own fit was 36.5, to 118 kernels of 24 shapes on an H100 (2026-11-25); with
34 the attentions of the networks keep their tiles (2026-11-28)."""
SHARED_VECTOR = 3.77
"""Cycles that a processor takes for one vector load from shared memory by a warp: fitted as `LAST_LEVEL_RATE`."""
SHARED_VECTOR_CHAIN = 2.7
"""The same, in cycles, for chains of rows: assumed on 2026-11-21."""

# -- latencies -------------------------------------------------------------------------------------------------------

ROUND_LATENCY = 232.0
"""Cycles of latency per tile of terms that only other threads can hide: fitted as `LAST_LEVEL_RATE`."""
ROUND_LATENCY_CHAIN = 120.0
"""The same, in cycles, for chains of rows: assumed on 2026-11-21."""
WINDOW_WAIT = 600
"""Cycles that a step of a sum over a window waits for memory and barriers: assumed on 2026-11-21."""


@dataclass(frozen=True)
class Processor:
    """A streaming multiprocessor or compute unit; the limits are those of NVIDIA's A100 and H100, by their data sheets.

    Attributes
    ----------
    lanes : int
        Fused multiply-adds that it issues per cycle: a warp's for each of its four schedulers.
    threads, blocks, shared_bytes, registers : int
        Its limits on resident threads, thread blocks, bytes of shared memory and registers.
    core : Core or None
        Registers, waves and local memory of an Adreno's core, in place of these limits.
    """

    lanes: int = 128
    threads: int = 2048
    blocks: int = 32
    shared_bytes: int = 220 * 1024
    registers: int = 65536
    core: Core | None = None

    @classmethod
    def of(cls, device: Row) -> Processor:
        """Return a core of a device: its local memory, and an Adreno's waves and registers, as its compiler has them.

        No compiler holds those of Mali yet: with them, GEMMs in halves ask for up to 1.35x of the lines (2026-11-28).
        """
        core = device.adreno_core
        return cls(shared_bytes=device.local_bytes if core is None else core.local_bytes, core=core)

    def resident(self, threads: int, shared_bytes: int = 0, registers: int = 0) -> int:
        """Return the number of resident thread blocks (occupancy).

        Parameters
        ----------
        threads, shared_bytes : int
            Threads and bytes of shared memory of a thread block.
        registers : int
            Registers of a thread, of four bytes.
        """
        if self.core is not None:
            given = waves.allotted(self.core, registers, threads, shared_bytes)
            held = waves.waves(self.core, given, threads, shared_bytes)
            most = self.shared_bytes // shared_bytes if shared_bytes else held  # Mesa counts a wave for two here
            return min(most, held // -(-threads // self.core.wave))
        taken = ((threads, self.threads), (shared_bytes, self.shared_bytes), (registers * threads, self.registers))
        return min([self.blocks, *(held // each for each, held in taken if each)])

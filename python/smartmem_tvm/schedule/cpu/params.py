# SPDX-License-Identifier: Apache-2.0
"""The properties of the processor that rules use: numbers in a frozen dataclass, so that a tuner can vary them."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.target.codegen import target_has_features

from ...cpu_features import has_byte_tiles, has_pairs, has_quads, has_tiles
from ...ir.recent import Recent
from .machine import MEMORY_RATE, MEMORY_RATE_ZEN, SECOND_LEVEL_BYTES

# LLVM feature -> (float32 lanes, vector registers); the first one that the target has counts.
# `llvm_get_vector_width` returns 512 for every x86, and so cannot be used.
_VECTOR_UNITS = (("avx512f", 16, 32), ("avx", 8, 16), ("neon", 4, 32))
_BASELINE = (4, 16)  # lanes and registers: by definition of x86-64, every processor of which has SSE2
_PAIRS = {16: "avx512bw", 8: "avx2", 4: "sse2"}  # lanes -> feature with products of as many pairs of integers
# Processor -> bytes per cycle from memory, where they differ from the default.
_MEMORY = (("znver", MEMORY_RATE_ZEN),)
FEW_REGISTERS = 16  # vector registers, by definition of SSE and AVX; AVX-512 and NEON have 32
_known = Recent(8)  # LLVM takes long to list the features of a processor, and each rule needs them for each kernel


@dataclass(frozen=True)
class CpuParams:
    """Parameters of the CPU rules.

    Attributes
    ----------
    lanes : int
        float32 values in a vector register.
    registers : int
        Vector registers; a tile's accumulators, one row of its right operand and a broadcast must fit.
    cores : int
        Threads that share a ``parallel`` loop.
    tasks_per_core : int
        Tasks per thread: more of them balance better, fewer pack less.
    serial_below : int
        Element operations below which waking the threads costs more than it saves.
    tile_rows, tile_vectors : tuple of int
        Candidate heights (rows) and widths (vectors) of the register tile.
    pack_reuse : int
        Times a packed panel must be read again to be worth packing when it need not be.
    panel_bytes : int
        Bytes of the left operand that one task keeps in its second-level cache.
    far_bytes : int
        Bytes of a packed panel that no longer stays in the second-level cache beside the product's other data.
    memory_bytes : float
        Bytes of weights that all cores together read from memory per cycle (of one vector of multiplications).
    block_bytes : int
        Bytes of the widest intermediate result of a block of rows of a chain.
    on_chip_bytes : int
        Bytes of a task's working set in a chain of rows, with its matrices: they fit in the second-level cache.
    window_vectors : int
        Accumulator vectors of a sliding-window tile.
    tile_values : int
        Most accumulators of a window's tile: from 1024 bytes on TVM allocates them on the heap, once per tile.
    row_vectors : int
        Partial sums (in vectors) of a reduction along a contiguous row.
    transpose_tile : int
        Side of the square tile of an element-wise kernel that reads across its output.
    has_amx : bool
        The processor multiplies tiles of bfloat16 numbers (AMX).
    has_byte_tiles : bool
        It multiplies tiles of quads of bytes (AMX int8).
    has_pair_dot : bool
        The processor multiplies vectors of pairs of integers (`ir.pairs`).
    has_quad_dot : bool
        It multiplies vectors of quads of bytes (`ir.packings`), and adds them to sums.
    has_byte_pairs : bool
        It multiplies vectors of pairs of bytes into sums of 16 bits (AVX2, AVX-512BW).
    """

    lanes: int = 8
    registers: int = 16
    cores: int = 4
    tasks_per_core: int = 4
    serial_below: int = 20_000
    tile_rows: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14)
    tile_vectors: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8)
    pack_reuse: int = 4
    panel_bytes: int = SECOND_LEVEL_BYTES // 4
    far_bytes: int = SECOND_LEVEL_BYTES * 3 // 2
    memory_bytes: float = MEMORY_RATE
    block_bytes: int = SECOND_LEVEL_BYTES // 16
    on_chip_bytes: int = SECOND_LEVEL_BYTES // 2
    window_vectors: int = 8
    tile_values: int = 255
    row_vectors: int = 4
    transpose_tile: int = 16
    has_amx: bool = False
    has_byte_tiles: bool = False
    has_pair_dot: bool = False
    has_quad_dot: bool = False
    has_byte_pairs: bool = False

    @property
    def facts(self) -> dict[str, int]:
        """The properties that the choices of a rule depend on."""
        names = ("lanes", "registers", "cores", "tile_values")
        return {name: getattr(self, name) for name in names}

    @property
    def tasks(self) -> int:
        """Wanted number of tasks, if the work is large enough to wake the threads."""
        return self.cores * self.tasks_per_core

    @classmethod
    def of(cls, target: tvm.target.Target) -> CpuParams:
        """Return the parameters of an ``llvm`` target: vectors from its features, cores from ``num-cores``."""
        return _known.get(target, lambda: cls._of(target))

    @classmethod
    def _of(cls, target: tvm.target.Target) -> CpuParams:
        units = (unit[1:] for unit in _VECTOR_UNITS if target_has_features(unit[0], target))
        lanes, registers = next(units, _BASELINE)
        memory = next((rate for name, rate in _MEMORY if _processor(target).startswith(name)), cls.memory_bytes)
        cores = int(target.attrs.get("num-cores") or cls.cores)
        memory *= max(1.0, cores / cls.cores)  # more cores, more memory channels: 16 read four times as much as 1 or 2
        pairs = lanes in _PAIRS and bool(target_has_features(_PAIRS[lanes], target))
        return cls(
            lanes=lanes,
            registers=registers,
            cores=cores,
            memory_bytes=memory,
            has_amx=has_tiles(target),
            has_byte_tiles=has_byte_tiles(target) and has_quads(target),
            has_pair_dot=pairs,
            has_quad_dot=has_quads(target),
            has_byte_pairs=has_pairs(target),
        )


def _processor(target: tvm.target.Target) -> str:
    """Return LLVM's name of a processor; empty if the target has none."""
    return str(target.attrs.get("mcpu") or "")

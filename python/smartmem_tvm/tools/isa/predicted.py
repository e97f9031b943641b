# SPDX-License-Identifier: Apache-2.0
"""Registers, waves and the inner loop of a kernel for Adreno by this package's models, before it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...schedule.gpu import thread_numbers
from ...schedule.gpu.machine import VECTOR
from ...schedule.gpu.matmul.matmul_tile import GpuTile
from ...schedule.gpu.waves import allotted, waves
from ...tables.targets import Core

Numbers = Mapping[str, int]


@dataclass(frozen=True)
class Predicted:
    """A kernel's figures by the models.

    Attributes
    ----------
    registers : int
        Of a thread, of four numbers each.
    waves : int
        Waves of 64 threads that a core holds at once.
    loop : int or None
        Instructions of a trip of the inner loop without empty slots; None where there is no model of them.
    """

    registers: int
    waves: int
    loop: int | None = None


def predicted(
    rule: str, tile: Numbers, facts: Numbers, threads: int, local_bytes: int, halves: bool, core: Core
) -> Predicted | None:
    """Return what the models say of a kernel; None for the kernels of rules that have no model.

    Parameters
    ----------
    rule : str
    tile, facts : mapping
        The values of the rule's first decision, and what it depends on (`smartmem.plan`).
    threads, local_bytes : int
        Threads and bytes of local memory of a thread block.
    halves : bool
        Whether a thread holds operands as float16.
    """
    if rule not in _NUMBERS or not tile:
        return None
    registers = allotted(core, _NUMBERS[rule](tile, facts, halves), threads, local_bytes, halves)
    held = waves(core, registers, threads, local_bytes, halves)
    return Predicted(registers, held, _loop(tile, halves) if rule == "GpuMatmul" else None)


def _tile(tile: Numbers) -> GpuTile:
    return GpuTile(**{**tile, "band": 0})


def _gemm(tile: Numbers, facts: Numbers, halves: bool) -> int:
    own = _tile(tile)
    once = facts["depth"] <= own.depth * own.splits
    staged = 0 if once else own.staged
    return thread_numbers.Held(own.thread_rows, own.thread_columns, staged, halves, own.unroll).gemm


def _loop(tile: Numbers, halves: bool) -> int:
    own = _tile(tile)
    whole = own.unroll == own.slice_depth  # else the inner loop is within a tile of terms, and copies nothing
    copied = -(-own.staged // VECTOR) if whole else 0
    return thread_numbers.gemm_trip(own.thread_rows, own.thread_columns, own.unroll, copied, halves)


def _window(tile: Numbers, _: Numbers, halves: bool) -> int:
    return thread_numbers.Held(tile["thread_rows"], tile["thread_columns"], 1, halves).window


def _slide(tile: Numbers, facts: Numbers, halves: bool) -> int:
    results = tile["across"] * tile["down"] * tile["rows"] * facts["together"]
    return thread_numbers.sliding(results, tile["rows"], halves)


def _rows(tile: Numbers, *_) -> int:
    return thread_numbers.of_rows(tile["lanes"], tile["vector"], tile["slices"])


_NUMBERS = {
    "GpuMatmul": _gemm,
    "WindowProduct": _window,
    "WindowSlide": _slide,
    "GpuRows": _rows,
    "GpuRowChains": lambda *_: thread_numbers.of_chain(),
}
"""Rule -> numbers of four bytes that a thread holds at once."""

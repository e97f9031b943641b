# SPDX-License-Identifier: Apache-2.0
"""Waves of a phone's GPU: how many a core holds of a kernel, and how many registers a thread gets.

The rules are those of Mesa's compiler for Adreno (freedreno/ir3: ir3.c, ir3_ra.c), where its sources of 2026 are not at
hand as its results show them. Registers are handed out whole, to waves that come and go together, and a thread gets as
many as leave the number of waves. So few numbers of waves occur: on Adreno 740 a thread with 25 to 32 registers of four
numbers leaves 6 waves, with 33 to 48 it leaves 4. benchmarks/adreno_registers.json holds them to the compiler.
"""

from __future__ import annotations

from ...tables.targets import Core

_HALF_STEP = 33  # registers from which kernels of halves take about one in two of those that cost no wave: measured
_QUARTER = 4  # up to this part of a core's registers kernels of halves do not take more: measured


def doubled(core: Core, registers: int, threads: int, local_bytes: int = 0, halves: bool = False) -> bool:
    """Whether waves have twice as many threads: a block fills one, and registers then hold more threads.

    Where they hold as many, kernels of halves have such waves, and kernels that fill the core.
    """
    if not core.doubles or threads <= core.wave:
        return False
    single, double = (core.registers // (max(registers, 1) * size) * core.together for size in (1, 2))
    single, local = min(core.waves, single), _by_local_memory(core, threads, 1, local_bytes)
    if local < single:
        return halves
    return 2 * double > single or (2 * double == single and (halves or single == core.waves))


def waves(core: Core, registers: int, threads: int, local_bytes: int = 0, halves: bool = False) -> int:
    """Return the waves of `core.wave` threads that a core holds at once; those of twice the threads count as two.

    Parameters
    ----------
    registers : int
        Registers of a thread, of `core.unit` numbers each.
    threads, local_bytes : int
        Threads and bytes of local memory of a thread block.
    halves : bool
        Whether most of the arithmetic is on halves.
    """
    size = 1 + doubled(core, registers, threads, local_bytes, halves)
    held = core.registers // (max(registers, 1) * size) * core.together
    return size * min(core.waves, held, _by_local_memory(core, threads, size, local_bytes))


def _by_local_memory(core: Core, threads: int, size: int, local_bytes: int) -> int:
    taken = -(-local_bytes // core.local_unit) * core.local_unit
    if not taken:
        return core.waves
    waves_each = -(-threads // (core.wave * size * core.together))
    return waves_each * (core.local_bytes // taken) * core.together


def most_registers(core: Core, threads: int) -> int:
    """Return the registers of a thread above which the compiler spills: all threads of a block must fit in the core.

    The compiler counts blocks of several waves as if their waves were doubled. So a block of 65 threads has two thirds
    of the registers of one of 64 on an Adreno 660.
    """
    size = 2 if core.doubles and threads > core.wave else 1
    groups = -(-threads // (core.wave * core.together * size))
    return min(core.most, core.registers // (groups * size))


def allotted(core: Core, numbers: int, threads: int, local_bytes: int = 0, halves: bool = False) -> int:
    """Return the registers that the compiler gives a thread that holds so many numbers of four bytes at once.

    They are rounded up to the most that leave as many waves, for kernels of halves not always all the way.
    """
    least = min(-(-numbers // core.unit), most_registers(core, threads))
    held, found = waves(core, least, threads, local_bytes, halves), least
    quarter = core.registers // _QUARTER
    most = quarter if halves and least <= quarter else core.most
    while found < most and waves(core, found + 1, threads, local_bytes, halves) >= held:
        found += 1
    return (least + found) // 2 if halves and least >= _HALF_STEP else found


def spills(core: Core, numbers: int, threads: int) -> bool:
    """Whether a thread holds more numbers of four bytes at once than its registers have."""
    return -(-numbers // core.unit) > most_registers(core, threads)

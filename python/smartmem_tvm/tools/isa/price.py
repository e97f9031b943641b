# SPDX-License-Identifier: Apache-2.0
"""The price of a kernel for Adreno without the phone: what its machine code issues, and what its accesses take.

    issue        slots of all threads / peak; of few waves as long as one wave takes, over the waves of a scheduler
    scratch      bytes of spills and arrays outside of registers / bandwidth of the second level
    memory ..    the parts of `analysis.kernel_time`, from the model of accesses
    seconds = longest + 0.15 * (sum of the others)

It is the sum of `kernel_time.kernel_seconds`, with the compiler's count of instructions in the place of an estimate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ...analysis.kernel_time import overlapped
from ...tables.targets import Row
from .ir3 import SCRATCH, Code, Instruction
from .kernels import SLOTS, KernelCode
from .sources import launch_of

_WORD = 4  # bytes that an access of scratch memory moves for each of its numbers, at least: a half has a word, too
_SECOND_LEVEL = 1  # place of the second level among `memory_parts`
_WAITS = {"(sy)": "systall", "(ss)": "sstall"}
"""Flag of an instruction that waits for memory and texels, or for the special unit and local memory -> the name of the
compiler's own estimate of all slots that a wave waits so, each instruction counted once."""


def seconds(codes: Sequence[KernelCode], memory: Sequence[float], row: Row) -> float | None:
    """Return the seconds of a kernel; None if the trips of a loop of it are not known.

    Parameters
    ----------
    codes : sequence of KernelCode
        Its OpenCL kernels, which run one after the other.
    memory : sequence of float
        Seconds of the parts of memory of all of them, `kernel_time.memory_parts`.
    row : Row
        The device, an Adreno with a `Core`.
    """
    issued, spilled = ([part(each, row) for each in codes] for part in (issue_seconds, scratch_seconds))
    if None in issued or None in spilled:
        return None
    parts = list(memory)
    parts[_SECOND_LEVEL] += sum(spilled)
    return overlapped([sum(issued), *parts])


def issue_seconds(code: KernelCode, row: Row) -> float | None:
    """Return the seconds in which the device issues a launch at its occupancy; None if the trips are not known.

    The scheduler with the most waves counts; a core has `Core.together` of them, as its waves come in such groups. A
    wave issues in order, and while it waits, the other waves of its scheduler issue. If all of them wait, time passes:
    a round of waves takes no less than one wave alone, with its empty slots (``nop``) and its waits as the compiler
    estimates them.
    """
    launch, slots = launch_of(code.source), code.code.issued(SLOTS)
    if launch is None or slots is None:
        return None
    threads, blocks, wave = math.prod(launch[0]), math.prod(launch[1]), code.wave
    schedulers = row.cores * row.core.together
    mine = -(-(-(-blocks // row.cores) * -(-threads // wave)) // row.core.together)
    held = max(1.0, code.code.facts["max_waves"] / row.core.together)
    issued = max(mine * slots, max(1.0, mine / held) * slots_alone(code.code))
    return issued * wave * schedulers / row.peak


def slots_alone(code: Code) -> float | None:
    """Return the slots that one wave takes without any other: its instructions, empty slots and waits."""
    mean = {flag: code.facts.get(fact, 0) / max(1, code.facts.get(flag, 0)) for flag, fact in _WAITS.items()}

    def amount(each: Instruction) -> float:
        flags = each.text.split(each.op)[0]
        waits = sum(cost for flag, cost in mean.items() if flag in flags)
        return each.times * SLOTS.get(each.kind, 1.0) + each.nops + waits

    # An empty slot has no weight in `SLOTS`, as other waves fill it; here there are none.
    return code.summed(lambda each: amount(each) + (each.times if each.op == "nop" else 0))


def scratch_seconds(code: KernelCode, row: Row) -> float | None:
    """Return the seconds that scratch accesses of a launch take; None if their number is not known.

    Scratch memory is ordinary memory: each thread has words of its own, which the first level does not keep. So an
    access costs its bytes at the second level's bandwidth, or at memory's if the threads that run at once have more
    scratch memory than that level holds.
    """
    launch, words = launch_of(code.source), code.code.summed(_words)
    if not words or launch is None:
        return words if launch is not None else None
    threads = math.prod(launch[0]) * math.prod(launch[1])
    resident = min(threads, row.cores * code.waves * row.core.wave) * code.compiled.scratch_bytes
    rate = row.l2_bandwidth if resident <= row.l2_bytes else row.bandwidth
    return words * _WORD * threads / rate


def _words(each: Instruction) -> int:
    if each.kind != SCRATCH:
        return 0
    found = re.search(r",\s*(\d+)\s*$", each.operands)
    return each.times * (int(found[1]) if found else 1)

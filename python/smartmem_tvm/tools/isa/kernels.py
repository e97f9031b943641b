# SPDX-License-Identifier: Apache-2.0
"""What the machine code of a network's kernels says: instructions by class, registers, waves, issue time, for Adreno.

`MaliCode` says the same of Mali, whose threads are all there or half of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...tables.targets import Row
from . import bifrost
from .compiler import STATISTICS, Compiled
from .ir3 import FLOAT16, NOPS, SCRATCH, Code, parse, share
from .sources import launch_of

WAVE = 64
"""Threads of a wave; a kernel with few registers runs waves of 128, which count as two."""
_MOST_WAVES = 16  # of a core at once, single or double (Mesa, ir3_compiler.c: max_waves)
_PAIR = 2  # waves are added to a core in pairs (Mesa, ir3_compiler.c: wave_granularity)
REGISTERS, LOCAL_MEMORY, DEVICE = "registers", "local memory", "device"
# Slots of the arithmetic unit. Halves go at twice the rate (as `Speed.of_row` has it); the empty slots of a wave are
# filled by other waves at best.
SLOTS = {FLOAT16: 0.5, NOPS: 0.0}


@dataclass(frozen=True)
class KernelCode:
    """The machine code of a kernel and what follows from it.

    Attributes
    ----------
    name, source : str
        The OpenCL kernel and its program.
    compiled : Compiled
        What Mesa printed.
    code : Code or None
        None if Mesa refused the program.
    """

    name: str
    source: str
    compiled: Compiled
    code: Code | None

    @classmethod
    def of(cls, name: str, source: str, compiled: Compiled) -> KernelCode:
        """Read what Mesa printed; the result is a `MaliCode` if it is of Mali."""
        if compiled.code.startswith(STATISTICS):
            return MaliCode(name, source, compiled, bifrost.parse(compiled.code))
        return cls(name, source, compiled, None if compiled.refused else parse(compiled.code))

    @property
    def _waves_together(self) -> int:
        return 1 + self.code.facts.get("double_threadsize", 0)

    @property
    def wave(self) -> int:
        """Threads of a wave of this kernel."""
        return WAVE * self._waves_together

    @property
    def waves(self) -> int:
        """Waves of 64 threads that a core holds at once."""
        return self.code.facts["max_waves"] * self._waves_together

    @property
    def limited_by(self) -> str:
        """What keeps more waves from a core: `REGISTERS`, `LOCAL_MEMORY` or `DEVICE`."""
        if self.waves >= _MOST_WAVES * self._waves_together:
            return DEVICE
        return REGISTERS if self.waves >= self.compiled.threads // (WAVE * _PAIR) * _PAIR else LOCAL_MEMORY

    @property
    def registers(self) -> int:
        """Registers of four numbers of 32 bits, as Mesa counts them."""
        return self.code.facts["full"]

    def issue_seconds(self, row: Row) -> float | None:
        """Return the seconds in which a device issues all instructions of a launch, at its peak.

        Instructions under a condition count as if it were true, and waves as if they were full. None if the size of the
        launch or the trips of a loop are not known.
        """
        launch, slots = launch_of(self.source), self.code.issued(SLOTS)
        if launch is None or slots is None:
            return None
        threads = -(-math.prod(launch[0]) // self.wave) * self.wave
        return slots * threads * math.prod(launch[1]) / row.peak

    def as_dict(self, row: Row) -> dict:
        """Plain data for JSON."""
        if self.code is None:
            return {"kernel": self.name, "refused": self.compiled.refused}
        inner, counts = self.code.inner_loop, self.code.counts
        within = self.code.counts_of(inner) if inner else counts
        launch = launch_of(self.source)
        return {
            "kernel": self.name,
            "refused": None,
            "instructions": self.code.facts["instr"],
            "classes": counts,
            "inner_loop": {"trips": inner.trips, "classes": within} if inner else None,
            "arithmetic_share": share(within),
            "registers": self.registers,
            "half_registers": self.code.facts.get("half", 0),
            "waves": self.waves,
            "limited_by": self.limited_by,
            "local_bytes": self.compiled.local_bytes,
            "scratch_bytes": self.compiled.scratch_bytes,
            "scratch": counts[SCRATCH],
            "scratch_in_loop": within[SCRATCH] if inner else 0,
            "threads": list(launch[0]) if launch else None,
            "blocks": list(launch[1]) if launch else None,
            "issue_seconds": self.issue_seconds(row),
        }


class MaliCode(KernelCode):
    """The machine code of a kernel for Mali."""

    @property
    def full(self) -> bool:
        """Whether a core holds as many threads as it can; with more than 32 registers each it holds half of them."""
        return self.code.facts["threads"] > 1

    @property
    def limited_by(self) -> str:
        """What keeps more threads from a core: `REGISTERS` or `DEVICE`; local memory is ordinary memory."""
        return DEVICE if self.full else REGISTERS

    @property
    def registers(self) -> int:
        """Registers of 32 bits, at most 64."""
        return self.code.facts["registers"]

    def issue_seconds(self, row: Row) -> None:
        """Return None: trips of loops are not read off Mali's code."""

    def as_dict(self, row: Row) -> dict:
        """Plain data for JSON; ``threads_held`` is ``full`` or ``half`` in the place of waves."""
        inner, counts = self.code.inner_loop, self.code.counts
        within, launch = self.code.counts_of(inner) if inner else counts, launch_of(self.source)
        return {
            "kernel": self.name,
            "refused": None,
            "instructions": self.code.facts["instr"],
            "classes": counts,
            "inner_loop": {"trips": None, "classes": within} if inner else None,
            "arithmetic_share": share(within),
            "registers": self.registers,
            "threads_held": "full" if self.full else "half",
            "limited_by": self.limited_by,
            "local_bytes": self.compiled.local_bytes,
            "scratch_bytes": self.compiled.scratch_bytes,
            "scratch": counts[SCRATCH],
            "scratch_in_loop": within[SCRATCH] if inner else 0,
            "spills": self.code.facts["spills"],
            "fills": self.code.facts["fills"],
            "threads": list(launch[0]) if launch else None,
            "blocks": list(launch[1]) if launch else None,
            "issue_seconds": None,
        }


def kernel_codes(sources: Mapping[str, str], compiled: Mapping[str, Compiled]) -> dict[str, KernelCode]:
    """Return the machine code of each program by name."""
    return {name: KernelCode.of(name, source, compiled[name]) for name, source in sources.items()}

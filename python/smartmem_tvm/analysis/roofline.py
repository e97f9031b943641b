# SPDX-License-Identifier: Apache-2.0
"""The least time that a kernel takes on a device, from its work and from how fast the device does each part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from ..tables.targets import Row
from .work import Work

FAR = 4.0
"""Times its bound from which on a kernel counts as slow."""
ARITHMETIC, MEMORY, LAUNCH = "arithmetic", "memory", "launch"
_FUNCTION = 8  # multiply-adds that a function takes where nobody measured it: the shortest polynomials
_BYTES = {"int64": 8, "uint64": 8, "float64": 8}

Curve = Sequence[tuple[int, float]]
"""Bytes that a kernel touches, ascending, and bytes per second that it moves then."""


@dataclass(frozen=True)
class Speed:
    """How fast a device is.

    Attributes
    ----------
    name : str
        Of the device.
    threads : int or None
        Of a CPU.
    multiply_adds : mapping
        Type -> multiply-adds per second; ``float32`` is there.
    calls : mapping
        Function -> calls per second.
    moved : sequence of (int, float)
        Bytes that a kernel touches -> bytes per second that it reads, or reads and writes, at best. They fit into the
        first cache, or only into memory.
    written : sequence of (int, float)
        The same of bytes that are written.
    launch : float
        Seconds of a kernel that does nothing, as kernels are timed.
    measured : bool
        On this machine; else from the device's row in `tables.targets`.
    """

    name: str
    threads: int | None
    multiply_adds: Mapping[str, float]
    calls: Mapping[str, float] = field(default_factory=dict)
    moved: Curve = ()
    written: Curve = ()
    launch: float = 0.0
    measured: bool = True

    def as_dict(self) -> dict:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping) -> Speed:
        """What `as_dict` made."""
        curves = {name: tuple((int(size), float(rate)) for size, rate in data[name]) for name in ("moved", "written")}
        return cls(**{**data, **curves})

    @classmethod
    def of_row(cls, row: Row) -> Speed:
        """What the tables know of a device."""
        narrow = {"float16": 2 * row.peak, "int8": 4 * row.peak} if row.half else {}
        first = row.cores * max(row.buffer_l1_bytes, row.texture_l1_bytes)
        fastest = max(row.buffer_bandwidth, row.texture_bandwidth)
        levels = [(first, fastest), (row.l2_bytes, row.l2_bandwidth), (4 * row.l2_bytes, row.bandwidth)]
        moved = tuple((size, rate) for size, rate in levels if size and rate)
        return cls(row.name, None, {"float32": row.peak, **narrow}, moved=moved, measured=False)

    def rate(self, dtype: str) -> float:
        """Multiply-adds per second of a type; of one that nobody measured, those of float32."""
        dtype = dtype.removeprefix("u")
        return self.multiply_adds.get(dtype, self.multiply_adds["float32"] * 4 / max(4, _BYTES.get(dtype, 4)))


@dataclass(frozen=True)
class Bound:
    """The least time of a launch, in seconds.

    Attributes
    ----------
    arithmetic, memory, launch : float
        For the arithmetic with its function calls; to move each byte once; to start and end.
    """

    arithmetic: float
    memory: float
    launch: float

    @property
    def seconds(self) -> float:
        """Arithmetic and memory overlap at best; a launch comes before both."""
        return self.launch + max(self.arithmetic, self.memory)

    @property
    def by(self) -> str:
        """What takes longest: ``arithmetic``, ``memory`` or ``launch``."""
        parts = {LAUNCH: self.launch, ARITHMETIC: self.arithmetic, MEMORY: self.memory}
        return max(parts, key=parts.__getitem__)


def bound(work: Work, speed: Speed) -> Bound:
    """The roofline (Williams et al., 2009) of a kernel: no schedule takes less.

    Arithmetic takes its multiply-adds at the peak and its function calls at theirs, one after the other, for both are
    made of the same instructions. Memory moves as fast as from the cache that all that the kernel touches fits into:
    where it was before the launch nobody knows.
    """
    arithmetic = sum(work.multiply_adds(dtype) / speed.rate(dtype) for dtype in work.arithmetic)
    function = speed.multiply_adds["float32"] / _FUNCTION
    arithmetic += sum(times / speed.calls.get(name, function) for name, times in work.calls.items())
    return Bound(arithmetic, _moving(work, speed), speed.launch)


def _moving(work: Work, speed: Speed) -> float:
    moved = work.bytes / at(speed.moved, work.bytes) if speed.moved else 0.0
    written = work.bytes_written / at(speed.written, work.bytes) if speed.written else 0.0
    return max(moved, written)


def at(curve: Curve, size: int) -> float:
    """Bytes per second of a kernel that touches `size` bytes: between two measured sizes on a line of logarithms.

    A larger size is never faster: where the curve rises, something disturbed the smaller one.
    """
    sizes = [each for each, _ in curve]
    rates = [max(rate for _, rate in curve[number:]) for number in range(len(curve))]
    if size <= sizes[0]:
        return rates[0]
    for (low, slow), (high, fast) in zip(zip(sizes, rates), zip(sizes[1:], rates[1:])):
        if size <= high:
            part = math.log(size / low) / math.log(high / low)
            return math.exp(math.log(slow) + part * math.log(fast / slow))
    return rates[-1]

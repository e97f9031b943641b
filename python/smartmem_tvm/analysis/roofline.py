# SPDX-License-Identifier: Apache-2.0
"""A lower bound on the time of a kernel on a device, from its work and the speed of each part of the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from ..tables.functions import instructions_of
from ..tables.targets import Row
from .work import Work

FAR = 4.0
"""Ratio of a kernel's time to its bound, from which on the kernel counts as slow."""
ARITHMETIC, MEMORY, LAUNCH = "arithmetic", "memory", "launch"
_FUNCTION = 8
"""Multiply-adds of a function that was neither measured nor is in `tables.functions`: the shortest polynomials'."""
_BYTES = {"int64": 8, "uint64": 8, "float64": 8}

Curve = Sequence[tuple[int, float]]
"""Pairs (bytes that a kernel touches, bytes per second that it then moves), ascending."""


@dataclass(frozen=True)
class Speed:
    """Speeds of the parts of a device.

    Attributes
    ----------
    name : str
        Name of the device.
    threads : int or None
        Number of threads of a CPU.
    multiply_adds : mapping
        Type -> multiply-adds per second; ``float32`` is always present.
    calls : mapping
        Function -> calls per second.
    moved : sequence of (int, float)
        Bytes that a kernel touches -> the most bytes per second that it reads, or reads and writes; the sizes range
        from the first cache to memory.
    written : sequence of (int, float)
        The same for bytes that are written.
    launch : float
        Seconds of an empty kernel, timed as kernels are.
    measured : bool
        Whether the speeds were measured on this machine; else they are from the device's row in `tables.targets`.
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
        """Return the speeds that `as_dict` wrote."""
        curves = {name: tuple((int(size), float(rate)) for size, rate in data[name]) for name in ("moved", "written")}
        return cls(**{**data, **curves})

    @classmethod
    def of_row(cls, row: Row) -> Speed:
        """Return the speeds of a device from its row in the tables."""
        narrow = {"float16": 2 * row.peak, "int8": 4 * row.peak} if row.half else {}
        first = row.cores * max(row.buffer_l1_bytes, row.texture_l1_bytes)
        fastest = max(row.buffer_bandwidth, row.texture_bandwidth)
        levels = [(first, fastest), (row.l2_bytes, row.l2_bandwidth), (4 * row.l2_bytes, row.bandwidth)]
        moved = tuple((size, rate) for size, rate in levels if size and rate)
        counts = instructions_of() if row.phone else {}
        calls = {name: row.peak / count for name, count in counts.items()}
        return cls(row.name, None, {"float32": row.peak, **narrow}, calls, moved=moved, measured=False)

    def rate(self, dtype: str) -> float:
        """Return the multiply-adds per second of a type; an unmeasured one uses float32's, scaled by its width."""
        dtype = dtype.removeprefix("u")
        return self.multiply_adds.get(dtype, self.multiply_adds["float32"] * 4 / max(4, _BYTES.get(dtype, 4)))


@dataclass(frozen=True)
class Bound:
    """The least time of a launch, in seconds.

    Attributes
    ----------
    arithmetic, memory, launch : float
        Seconds for arithmetic and function calls, for moving each byte once, and for starting and ending the launch.
    """

    arithmetic: float
    memory: float
    launch: float

    @property
    def seconds(self) -> float:
        """Total seconds: arithmetic and memory overlap at best, and the launch comes before both."""
        return self.launch + max(self.arithmetic, self.memory)

    @property
    def by(self) -> str:
        """The longest part: ``arithmetic``, ``memory`` or ``launch``."""
        parts = {LAUNCH: self.launch, ARITHMETIC: self.arithmetic, MEMORY: self.memory}
        return max(parts, key=parts.__getitem__)


def bound(work: Work, speed: Speed) -> Bound:
    """Return the roofline (Williams et al., 2009) of a kernel: no schedule takes less time.

    Multiply-adds of each type and function calls run at their peaks, one after the other, as all use the same
    instructions; a sum of products of halves takes the instructions of its products, see `Work.instructions`. Memory
    moves at the speed of the smallest cache that holds everything the kernel touches, since the place of the data
    before the launch is unknown.
    """
    arithmetic = sum(times / speed.rate(dtype) for dtype, times in work.instructions.items())
    function = speed.multiply_adds["float32"] / _FUNCTION
    arithmetic += sum(times / speed.calls.get(name, function) for name, times in work.calls.items())
    return Bound(arithmetic, _moving(work, speed), speed.launch)


def _moving(work: Work, speed: Speed) -> float:
    moved = work.bytes / at(speed.moved, work.bytes) if speed.moved else 0.0
    written = work.bytes_written / at(speed.written, work.bytes) if speed.written else 0.0
    return max(moved, written)


def at(curve: Curve, size: int) -> float:
    """Return the bytes per second of a kernel that touches `size` bytes, interpolated on logarithms of both.

    A larger size is never faster: if the curve rises, something disturbed the measurement of the smaller size.
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

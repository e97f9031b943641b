# SPDX-License-Identifier: Apache-2.0
"""Compare the kernels of a network with their roofline: the least time that the device allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import tirx
from tvm.target import Target

from ..analysis.roofline import FAR, Bound, Speed, bound
from ..analysis.work import Work, work
from ..ir.graph import read_log
from ..ir.kernel import Opaque, parse
from .speed import speed_of

_NEAR = 2.0  # a kernel within this multiple of its time from memory is explained by memory
_OUTSIDE = "TVM's code generator or a library makes it, and no loops of it are seen"


@dataclass(frozen=True)
class KernelBound:
    """The least time of one kernel on a device.

    Attributes
    ----------
    work : Work or None
        Operations and bytes of a launch; None if they cannot be derived.
    bound : Bound or None
        The least seconds of a launch, split into arithmetic, memory and launch.
    reason : str
        Why there is no bound.
    """

    work: Work | None = None
    bound: Bound | None = None
    reason: str = ""


def kernel_bounds(graph: tvm.IRModule, speed: Speed) -> dict[str, KernelBound]:
    """Return the least time of every kernel of a network.

    Parameters
    ----------
    graph : tvm.IRModule
        After the graph passes, like `Compiled.graph` and the result of `optimize`: the work of a kernel can no longer
        be read once it is scheduled. Its log names the kernels whose factors were rounded afterwards (`RoundProducts`).
    speed : Speed
        The speed of the device, see `runtime.speed.speed_of`.

    Returns
    -------
    dict
        Kernel name -> its bound.
    """
    functions = {gvar.name_hint: func for gvar, func in graph.functions_items() if isinstance(func, tirx.PrimFunc)}
    rounded = [each for each in read_log(graph) if "kernel" in each and "multiplied" in each]
    factors = {each["kernel"]: each["multiplied"] for each in rounded}
    return {name: _bound(func, speed, factors.get(name)) for name, func in functions.items()}


def _bound(func: tirx.PrimFunc, speed: Speed, factors: str | None) -> KernelBound:
    try:
        found = work(parse(func), factors)
    except Opaque as reason:
        return KernelBound(reason=str(reason))
    return KernelBound(found, bound(found, speed))


def roofline(graph: tvm.IRModule, target: Target) -> tuple[Speed | None, dict[str, KernelBound]]:
    """Return the speed of a target's device and the bounds of the kernels on it; None and {} for an unknown device."""
    speed = speed_of(target)
    return speed, kernel_bounds(graph, speed) if speed is not None else {}


def add_bounds(report: dict, bounds: Mapping[str, KernelBound], speed: Speed | None) -> dict:
    """Put bounds beside the times of a report.

    Parameters
    ----------
    report : dict
        From `kernel_times.schedule_report`.

    Returns
    -------
    dict
        The report. Each of its ``kernels`` has ``bound_seconds`` (of all its launches, or of one where they are not
        known), ``bound_by`` (``arithmetic``, ``memory`` or ``launch``), ``of_roofline`` (the bound over the time: 1 is
        the best possible), ``work`` (of a launch, see `Work`), and ``off`` (a sentence: why it has no bound, or why it
        takes more than four times its bound if the reason is known); None where there is none. ``slow_share``: the
        share of the time in kernels that take more than four times their bound. ``speed``: see `Speed`.
    """
    for entry in report["kernels"]:
        entry |= _beside(entry, bounds.get(entry["kernel"], KernelBound(reason=_OUTSIDE)), speed)
    timed = [each for each in report["kernels"] if each["seconds"] is not None]
    slow = sum(each["share"] for each in timed if is_slow(each))
    return {**report, "slow_share": slow if timed and speed else None, "speed": speed.as_dict() if speed else None}


def is_slow(entry: Mapping) -> bool:
    """Return whether a kernel of a report takes more than `FAR` times its bound."""
    return entry.get("of_roofline") is not None and entry["of_roofline"] < 1 / FAR


def _beside(entry: Mapping, found: KernelBound, speed: Speed | None) -> dict:
    nothing = dict.fromkeys(("bound_seconds", "bound_by", "of_roofline", "work", "off"))
    if found.bound is None or speed is None:
        return {**nothing, "off": found.reason if speed is not None else None}
    seconds = found.bound.seconds * (entry["launches"] or 1)
    told = {"bound_seconds": seconds, "bound_by": found.bound.by, "work": found.work.as_dict()}
    if not entry["seconds"]:
        return {**nothing, **told}
    told |= {"of_roofline": seconds / entry["seconds"]}
    return {**nothing, **told, "off": _why(entry, found, speed) if is_slow(told) else None}


def _why(entry: Mapping, found: KernelBound, speed: Speed) -> str | None:
    """Return the sentence that explains a time of more than four bounds, None if none applies."""
    once = entry["seconds"] / entry["launches"]
    slowest = speed.moved[-1][1] if speed.moved else float("inf")
    far = replace(found.bound, memory=found.work.bytes / slowest)
    reasons = []
    if once < _NEAR * far.seconds:
        reasons.append(f"from memory, and not from a cache, its bytes take {far.memory * 1e6:.1f} us")
    if entry["catch_all"]:
        reasons.append("no rule is for kernels like this one")
    return "; ".join(reasons) or None


def slowest(kernels: Sequence[Mapping], share: float = 0.0) -> list[Mapping]:
    """Return the kernels of a report that take more than four times their bound and more than a share of the time."""
    return [each for each in kernels if is_slow(each) and each["share"] > share]

# SPDX-License-Identifier: Apache-2.0
"""Curves of a search: the best time of each kernel over the candidates tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import median

from ...tune.record_lines import kind_of


def curves(records: Iterable[tuple[str, Sequence[Mapping]]], names: Mapping[float, str]) -> list[dict]:
    """Return one curve for each kernel, device and strategy, sorted by the time that the untuned kernel lost.

    Parameters
    ----------
    records : iterable
        (file, lines) of records of tuning.
    names : mapping
        Seconds of a winner -> name of its kernel, if a compiled model has it.

    Returns
    -------
    list of dict
        ``file``, ``device``, ``strategy``, ``kernel`` (its name, or the shapes of its tensors), ``workload``,
        ``seconds`` (of each candidate in the order tried, None if it failed), ``best`` (until then), ``untuned``,
        ``winner`` (seconds, measured in turns with the untuned kernel) and ``gain``; None if unknown.
    """
    found: dict[tuple, dict] = {}
    for file, lines in records:
        runs: dict[str, Mapping] = {}
        wrong = {line["wrong"] for line in lines if kind_of(line) == "wrong"}
        for line in lines:
            kind = kind_of(line)
            if kind == "target":
                runs[line["run"]] = line
            elif kind in ("trace", "winner") and line["run"] in runs:
                run = runs[line["run"]]
                about = (file, str(run.get("device", "")), str(run.get("strategy", "")))
                curve = found.setdefault((*about, line["workload"]), _curve(*about, line["workload"]))
                _take(curve, kind, line, wrong, names)
    for curve in found.values():
        curve["best"] = _best(curve["seconds"])
    return sorted(found.values(), key=lambda each: -_lost(each))


def _curve(file: str, device: str, strategy: str, workload: str) -> dict:
    about = {"file": file, "device": device, "strategy": strategy, "workload": workload, "kernel": workload}
    return {**about, "seconds": [], "untuned": None, "winner": None, "gain": None}


def _take(curve: dict, kind: str, line: Mapping, wrong: set[str], names: Mapping[float, str]) -> None:
    if kind == "trace":
        good = line["seconds"] and line["record"] not in wrong
        curve["seconds"].append(median(line["seconds"]) if good else None)
        if curve["kernel"] == curve["workload"]:
            curve["kernel"] = _shapes(line["arguments"]) or curve["workload"]
    elif line["winner"] not in wrong:
        untuned, seconds = line["untuned"], line["seconds"]
        curve.update(untuned=untuned, winner=seconds, gain=untuned / seconds)
        curve["kernel"] = names.get(seconds, curve["kernel"])


def _shapes(arguments: Sequence) -> str:
    """Return the shapes of a kernel's tensors as text: its inputs, and at the end its result."""
    shapes = ["x".join(map(str, each[2])) for each in arguments if len(each) > 2]
    return " · ".join(shapes[:-1]) + " -> " + shapes[-1] if shapes else ""


def _best(seconds: Sequence[float | None]) -> list[float | None]:
    def smaller(old: float | None, new: float | None) -> float | None:
        known = [each for each in (old, new) if each is not None]
        return min(known) if known else None

    return list(accumulate(seconds, smaller))


def _lost(curve: Mapping) -> float:
    best = [each for each in curve["best"] if each is not None]
    return (curve["untuned"] or 0.0) - (curve["winner"] or (best[-1] if best else 0.0))

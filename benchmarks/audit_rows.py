# SPDX-License-Identifier: Apache-2.0
"""What the rows of audit.json say: whether a network is right, and how its time compares."""

from __future__ import annotations

from collections.abc import Mapping

OURS, REFERENCE, OTHERS = "smartmem", "onnxruntime", ("onnxruntime", "openvino")
PLAIN = "onnxruntime-plain"
RIGHT = 1e-4
"""Of an output's largest value, as `smartmem verify` has it in float32."""


def is_right(row: Mapping) -> bool:
    """Whether a network gives what ONNX Runtime does; not if that does not run it."""
    return row.get("deviation") is not None and row["deviation"] <= RIGHT


def is_undecided(row: Mapping) -> bool:
    """Whether rounding decides what a network gives: ONNX Runtime is as far from itself, with other sums, as we are.

    Detectors that keep the hundred best of a thousand nearly equal scores are such with random weights.
    """
    own = row.get("reference_deviation")
    return not is_right(row) and own is not None and own > RIGHT and own >= row["deviation"] / 10


def median(row: Mapping, system: str, threads: str = "1") -> float | None:
    """Milliseconds of a system on so many threads."""
    timed = row.get("latency", {}).get(threads, {}).get(system)
    return timed["median"] if timed else None


def ratio(row: Mapping, other: str, threads: str = "1") -> float | None:
    """Our time over another system's."""
    ours, theirs = median(row, OURS, threads), median(row, other, threads)
    return ours / theirs if ours and theirs else None


def ratio_of_faster(row: Mapping, threads: str = "1") -> float | None:
    """Our time over that of the faster of the others."""
    return max((each for each in (ratio(row, other, threads) for other in OTHERS) if each), default=None)


def line(row: Mapping) -> str:
    """A row for people."""
    if "error" in row:
        return f"{row['stage']}: {row['error']}"
    text = "right" if is_right(row) else "decided by rounding" if is_undecided(row) else "WRONG"
    text += f" ({row['deviation']:.1e})" if row["deviation"] is not None else ""
    text += f", {row['kernels']} kernels, {row['layout_kernels']} of them layout"
    text += f", {sum(row['seconds'].values()):.0f} s to compile"
    for count in row["latency"]:
        compared = [f"{each:.2f}x of {other}'s" for other in OTHERS if (each := ratio(row, other, count))]
        if compared:
            text += f"; {median(row, OURS, count):.2f} ms on {count}, {', '.join(compared)}"
    return text

# SPDX-License-Identifier: Apache-2.0
"""The table of docs/opencl.md, of the same networks through OpenCL and CUDA on one GPU (opencl_cuda.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import geometric_mean

from rendering import content, table

RESULTS = "opencl_cuda.json"
SYSTEMS = ("cuda graph", "cuda", "opencl", "opencl-texture")
RATIOS = (("opencl", "cuda"), ("opencl-texture", "cuda"), ("opencl", "cuda graph"), ("opencl-texture", "cuda graph"))
TITLES = ("network", "launches", "CUDA graph, ms", "CUDA", "buffers", "textures", "buffers / CUDA", "textures / CUDA")
TITLES += ("buffers / graph", "textures / graph", "host, us a launch: CUDA", "buffers")


def page() -> str:
    """A line for each network, the means and the worst, and where it was measured."""
    rows = dict(sorted(content(RESULTS)["networks"].items()))
    said = [_summary(rows.values(), a, b) for a, b in RATIOS]
    first = next(iter(rows.values()))
    source = f"{first['device']}, {first['driver']}, {first['date']}; geometric means:"
    return "\n\n".join((table(TITLES, [_line(*each) for each in rows.items()]), source, "\n".join(said)))


def _summary(rows: Iterable[Mapping], system: str, base: str) -> str:
    ratios = [ratio for row in rows if (ratio := _ratio(row, system, base))]
    return f"- {system} / {base}: {geometric_mean(ratios):.2f}x, at most {max(ratios):.2f}x ({len(ratios)} networks)"


def _ratio(row: Mapping, system: str, base: str) -> float | None:
    times = row["milliseconds"]
    return times[system] / times[base] if system in times and base in times else None


def _line(name: str, row: Mapping) -> tuple[str, ...]:
    times = (f"{row['milliseconds'][each]:.3f}" if each in row["milliseconds"] else "-" for each in SYSTEMS)
    ratios = (_ratio(row, *each) for each in RATIOS)
    host = (f"{row['host'][each] * 1e3 / row['launches'][each]:.1f}" for each in ("cuda", "opencl"))
    return name, str(row["launches"]["opencl"]), *times, *(f"{each:.2f}x" if each else "-" for each in ratios), *host

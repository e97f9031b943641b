# SPDX-License-Identifier: Apache-2.0
"""The table of docs/opencl.md, of the same networks through OpenCL and CUDA on one GPU (opencl_cuda.py)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean

from rendering import content, table

RESULTS = "opencl_cuda.json"
SYSTEMS = ("cuda graph", "cuda", "opencl", "opencl-texture")
RATIOS = (("opencl", "cuda"), ("opencl-texture", "cuda"), ("opencl", "cuda graph"), ("opencl-texture", "cuda graph"))
TITLES = ("network", "launches", "CUDA graph, ms", "CUDA", "buffers", "textures", "buffers / CUDA", "textures / CUDA")
TITLES += ("buffers / graph", "textures / graph", "host, us a launch: CUDA", "buffers")


def page() -> str:
    """A line for each network, the means and the worst, and where it was measured."""
    every = content(RESULTS)["networks"]
    found = {name: row for name, row in every.items() if set(SYSTEMS) <= set(row.get("milliseconds", ()))}
    rows = [found[name] for name in sorted(found)]
    named = [f"{a} / {b}" for a, b in RATIOS]
    means = [geometric_mean(each) for each in zip(*map(ratios, rows), strict=True)]
    worst = [max(each) for each in zip(*map(ratios, rows), strict=True)]
    said = (f"- {name}: {mean:.2f}x, at most {most:.2f}x" for name, mean, most in zip(named, means, worst, strict=True))
    first = rows[0]
    source = f"{first['device']}, {first['driver']}, {first['date']}; {len(rows)} networks, geometric means:"
    if without := sorted(set(every) - set(found)):
        source = f"Without a time in each: {', '.join(without)}. {source}"
    return "\n\n".join((table(TITLES, [_line(name, found[name]) for name in sorted(found)]), source, "\n".join(said)))


def ratios(row: Mapping) -> list[float]:
    """Of `RATIOS`."""
    return [row["milliseconds"][a] / row["milliseconds"][b] for a, b in RATIOS]


def _line(name: str, row: Mapping) -> tuple[str, ...]:
    times = (f"{row['milliseconds'][each]:.3f}" for each in SYSTEMS)
    host = (f"{row['host'][each] * 1e3 / row['launches'][each]:.1f}" for each in ("cuda", "opencl"))
    return name, str(row["launches"]["opencl"]), *times, *(f"{each:.2f}x" for each in ratios(row)), *host

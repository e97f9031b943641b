# SPDX-License-Identifier: Apache-2.0
"""The table of docs/gpu.md, of chains of small kernels beside torch.compile (chains.py)."""

from __future__ import annotations

from statistics import geometric_mean

from rendering import content, table

RESULTS = "chains.json"
PRECISIONS = ("float32", "half")
TITLES = ("network", "precision", "merged, us", "a launch each", "torch.compile", "merged / each", "merged / torch")
TITLES += ("error", "of torch")


def page() -> str:
    """A line for each network and precision, the means, and where it was measured."""
    found = content(RESULTS)
    lines, ratios = [], []
    for name, row in found.items():
        for precision in PRECISIONS:
            systems = [f"{each}, {precision}" for each in ("smartmem", "smartmem, a launch each", "torch")]
            merged, each, torch = (row["seconds"][system] for system in systems)
            errors = (f"{row['errors'][system]:.1e}" for system in (systems[0], systems[2]))
            ratios.append((merged / each, merged / torch))
            times = (f"{seconds * 1e6:.1f}" for seconds in (merged, each, torch))
            lines.append((name, precision, *times, *(f"{ratio:.2f}x" for ratio in ratios[-1]), *errors))
    first = next(iter(found.values()))
    means = " and ".join(f"{geometric_mean(each):.2f}x" for each in zip(*ratios, strict=True))
    source = f"{first['device']}, torch {first['torch']}, {first['date']}; geometric means of the ratios: {means}."
    return f"{table(TITLES, lines)}\n\n{source}"

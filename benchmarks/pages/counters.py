# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/memory_accesses.md that compare the model with what counters.py counted on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rendering import table

RESULTS = "counters_h100.json"
COLUMNS = {
    "load_lines": "sectors loaded",
    "store_lines": "sectors stored",
    "l1_misses": "from and to the second level",
    "buffer_misses": "read from memory",
}
"""Key of the file -> heading."""
SUMMARY = ("", "model / counter, median", "within 5%", "farthest off", "rank correlation")
LONGEST = 44  # characters of a kernel's name


def page(content: Mapping) -> str:
    """How near the model comes to the counters, in all and kernel by kernel."""
    kernels = content["kernels"]
    summary = table(SUMMARY, [_summary(kernels, column) for column in COLUMNS])
    each = table(("model / counter", "kernel", *COLUMNS.values(), "µs"), [_kernel(row) for row in kernels])
    time = correlation([row["memory_us"] for row in kernels], [row["us"] for row in kernels])
    where = (
        f"Rank correlation of the time measured and the one that the modelled bytes take at the row's bandwidths: "
        f"{time:.2f}. Model of {content['row']}, {len(kernels)} kernels on {content['device']}, {content['date']}."
    )
    return "\n\n".join([summary, each, where])


def ratios(kernels: Sequence[Mapping], column: str) -> np.ndarray:
    """Model over counter, kernel by kernel."""
    return np.array([row["model"][column] / row["counters"][column] for row in kernels])


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, of values that are hardly ever equal."""
    ranks = [np.argsort(np.argsort(each)) for each in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def _summary(kernels: Sequence[Mapping], column: str) -> tuple:
    found = ratios(kernels, column)
    off = np.abs(np.log(found))
    ranks = correlation(*([row[key][column] for row in kernels] for key in ("model", "counters")))
    near = f"{(off <= np.log(1.05)).sum()} of {len(found)}"
    return COLUMNS[column], f"{np.median(found):.3f}", near, f"{found[off.argmax()]:.2f}", f"{ranks:.3f}"


def _kernel(row: Mapping) -> tuple:
    name = row["kernel"] if len(row["kernel"]) <= LONGEST else f"{row['kernel'][: LONGEST - 3]}..."
    cells = (f"{row['model'][column] / row['counters'][column]:.2f}" for column in COLUMNS)
    return f"{row['network']}, {row['side']}", f"`{name}`", *cells, f"{row['us']:.1f}"

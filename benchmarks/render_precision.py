#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turn benchmarks/precision.json, which precision.py measured, into docs/precision.md."""

from __future__ import annotations

import json
from pathlib import Path

from precision import NETWORKS, RESULTS, TARGETS, TOLERANCES, tolerance
from render import table

from smartmem_tvm.bench.results import write

PAGE = Path(__file__).resolve().parent.parent / "docs" / "precision.md"
_HEAD = """<!-- Written by benchmarks/render_precision.py from benchmarks/precision.json. -->
# Numbers of 16 bits

`--precision half-storage`, or `sm.Options(precision="half-storage")`: tensors between kernels and weights are half
numbers in memory, buffers or textures, and kernels compute in float32. Results and inputs of the model are what they
were. It runs on every OpenCL device and on CUDA: OpenCL converts when it reads and writes. A tensor stays float32, and
`explain.json` says why, if a number beyond 65504 goes into it (what a mask adds), or a reader makes integers of it.

`--precision half`: arithmetic too is of halves, for GPUs with `cl_khr_fp16` by name (adreno-740, mali-g76), and CUDA.
Products of halves are added up as halves for a few terms, and what these come to in float32; the statistics of rows
(normalisations, the sum of a softmax) are float32, and what is made of them is rounded when it is stored.

The largest absolute error of any output beside ONNX Runtime, relative to the largest magnitude of that output, through
OpenCL on random inputs and with random weights. Allowed are {allowed}.

    make bench-precision
"""
_CONDITION = """
ResNeXt-50 with random weights magnifies what its first stage rounds: rounding nothing but the image to half moves its
output by 2.2e-3, and Swin-T's by 3.6e-5. With half-storage it **misses {goal:.0e}**; tests hold it below {allowed:.1e}.
"""


def page() -> str:
    """The whole page."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    kinds = [(memory, precision) for precision in TOLERANCES for memory in TARGETS]
    lines = [(network, *(_cell(found["rows"].get(f"{network}, {m}, {p}")) for m, p in kinds)) for network in NETWORKS]
    allowed = " and ".join(f"{error:.0e} in {precision}" for precision, error in TOLERANCES.items())
    parts = (
        _HEAD.format(allowed=allowed),
        table(("network", *(f"{p}, {m}" for m, p in kinds)), lines),
        _CONDITION.format(goal=TOLERANCES["half-storage"], allowed=tolerance("resnext50", "half-storage")),
        _source(found),
    )
    return "\n".join(parts)


def _source(found: dict) -> str:
    here, rows = found["machine"], found["rows"].values()
    return (
        f"Measured on {found['device']}: {here['cpu']}, {here['os']}; apache-tvm {here['apache-tvm']}, onnxruntime "
        f"{here['onnxruntime']}; {', '.join(sorted({row['date'] for row in rows}))}.\n"
    )


def _cell(row: dict | None) -> str:
    return "-" if row is None else row["failed"] if "failed" in row else f"{row['error']:.1e}"


if __name__ == "__main__":
    write(PAGE, page())

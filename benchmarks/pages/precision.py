# SPDX-License-Identifier: Apache-2.0
"""The page docs/precision.md, of what precision.py measured."""

from __future__ import annotations

from pages import bfloat16, half_instructions
from precision import NETWORKS, RESULTS, TARGETS, TOLERANCES, tolerance
from rendering import content, dates, table, versions

from smartmem_tvm.tables.precisions import PRECISIONS

_HEAD = """<!-- Written by benchmarks/render.py from benchmarks/precision.json and half_instructions.json. -->
# Numbers of 16 bits, and tf32

This page is for those who want types of 16 bits, or tf32. After it you can choose a precision, and know its error and
its speed.

`--precision half-storage`, or `sm.Options(precision="half-storage")`: tensors between kernels and weights are half
numbers in memory, buffers or textures, and kernels compute in float32. Results and inputs of the model are what they
were. It runs on every OpenCL device and on CUDA: OpenCL converts when it reads and writes. A tensor stays float32, and
`explain.json` says why, if a number beyond 65504 goes into it (what a mask adds), or a reader makes integers of it. On
CUDA a product of two tensors that are stored as halves takes the matrix instructions of halves: their product is a
float32 without rounding, and sums are float32.

`--precision half`: arithmetic too is of halves, for GPUs with `cl_khr_fp16` by name (adreno-740, mali-g76), and CUDA.
Products of halves are added up as halves for a few terms, and these short sums in float32; the statistics of rows
(normalisations and their squares, the sum of a softmax) are float32, and results are rounded when they are stored. A
mask that is added inside of a softmax's kernel and has numbers beyond 65504 is read as the nearest half: a row that is
masked as a whole stays a row of numbers. Other readers of such numbers compute in float32.

`--precision bfloat16`, on CUDA of compute capability 8.0 or more: tensors and weights are bfloat16 in memory, products
are made of bfloat16 by matrix instructions with sums of float32, and all the rest is computed in float32 and rounded
when it is stored: eight bits are too few for statistics and epilogues. It has float32's range: nothing is too large.

`--precision tf32`, on the same GPUs: tensors stay float32 in memory, and the factors of products are rounded to tf32,
of 11 bits: to the nearest for `mma.sync`, while `wgmma` cuts the rest off. Nothing else is rounded.

Older GPUs compile both and compute in float32, which `smartmem explain` says, as it says of each tensor and kernel in
any precision what stays float32, and why.

A model that comes in float16 or bfloat16 is computed as what it is, in any precision: for CUDA its products take matrix
instructions too, and sums, softmax and norms are float32.

`smartmem verify` allows the error that the coarsest numbers of a compilation come to, and says which and why:

| precision | error allowed |
| --- | --- |
{tolerances}

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
    found = content(RESULTS.name)
    kinds = [(memory, precision) for precision in TOLERANCES for memory in TARGETS]
    lines = [(network, *(_cell(found["rows"].get(f"{network}, {m}, {p}")) for m, p in kinds)) for network in NETWORKS]
    allowed = " and ".join(f"{error:.0e} in {precision}" for precision, error in TOLERANCES.items())
    parts = (
        _HEAD.format(allowed=allowed, tolerances=_tolerances()),
        table(("network", *(f"{p}, {m}" for m, p in kinds)), lines),
        _CONDITION.format(goal=TOLERANCES["half-storage"], allowed=tolerance("resnext50", "half-storage")),
        _source(found),
        half_instructions.figures(),
        bfloat16.section(),
    )
    return "\n".join(parts)


def _tolerances() -> str:
    return "\n".join(f"| {name} | {each.tolerance:g}: {each.why} |" for name, each in PRECISIONS.items())


def _source(found: dict) -> str:
    here = found["machine"]
    return (
        f"Measured on {found['device']}: {here['cpu']}, {here['os']}; {versions(here)}; "
        f"{dates(found['rows'].values())}.\n"
    )


def _cell(row: dict | None) -> str:
    return "-" if row is None else row["failed"] if "failed" in row else f"{row['error']:.1e}"

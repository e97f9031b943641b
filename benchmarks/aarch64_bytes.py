#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products of bytes on AArch64 beside those of floats: instructions and cycles of a tile's innermost loop.

python benchmarks/aarch64_bytes.py                 # a row for each processor, as JSON: half a minute

Nothing is run: LLVM compiles a product of a register tile for each processor, and its model of the processor
(`llvm-mca`) says how many cycles a turn of the innermost loop takes. `make test-aarch64` runs such products.
"""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import tvm
from aarch64_tiles import DEPTH, counted, innermost, mca_program, target_of
from tvm import relax, te

from smartmem_tvm.ir.kernel import DECISIONS
from smartmem_tvm.schedule.cpu.pair_products import PairProducts
from smartmem_tvm.schedule.cpu.tile import Tile
from smartmem_tvm.schedule.schedule_kernels import ScheduleKernels

PROCESSORS = ("cortex-a76", "cortex-a78", "neoverse-n2", "cortex-x2")
TILES = (Tile(6, 16), Tile(1, 16))
PRODUCTS = {"float32": (re.compile(r"^\s+fm(?:la|add)\s"), 4), "bytes": (re.compile(r"^\s+us?dot\s"), 16)}
"""Instructions that multiply, and how many products each makes."""


def assembly(kind: str, tile: Tile, processor: str) -> str:
    """A product of one tile and a constant."""
    target = target_of(processor)
    left, right = ("float32", "float32") if kind == "float32" else ("uint8", "int8")
    result = "float32" if kind == "float32" else "int32"
    weights = np.arange(4 * DEPTH * tile.width).reshape(4 * DEPTH, tile.width).astype(right)
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((tile.height, 4 * DEPTH), left))

    def body(x, w):
        k = te.reduce_axis((0, 4 * DEPTH), "k")
        shape = (tile.height, tile.width)
        return te.compute(shape, lambda i, j: te.sum(x[i, k].astype(result) * w[k, j].astype(result), k), name="y")

    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit_output(builder.emit_te(body, x, relax.const(weights, right)))
        builder.emit_func_output(made)
    with target:
        mod = PairProducts()(builder.get())
        (func,) = (each for each in mod.functions.values() if isinstance(each, tvm.tirx.PrimFunc))
        given = {"matmul.swapped": 0, "matmul.height": tile.height, "matmul.width": tile.width}
        func = func.with_attrs({DECISIONS: given, "global_symbol": "main"}).without_attr("private")
        scheduled = ScheduleKernels()(tvm.IRModule({"main": func}))
        return tvm.compile(scheduled, target=target).mod.inspect_source("s")


def measured(kind: str, tile: Tile, processor: str, mca: str) -> dict:
    """Instructions and cycles for 64 products."""
    pattern, each = PRODUCTS[kind]
    loop, found = innermost(assembly(kind, tile, processor), pattern)
    code = [line for line in loop if not line.strip().startswith(".")]
    # Without i8mm a second product of each row's bytes takes off what signed bytes were given: it is none of the 64.
    products = found * each
    if kind == "bytes" and not any("usdot" in line for line in code):
        products = products * tile.width // (tile.width + 4)
    return {"instructions": 64 * len(code) / products, "cycles": 64 * counted(code, processor, mca) / products}


def main() -> int:
    """All processors, one after the other."""
    mca = mca_program()
    if mca is None:
        print("llvm-mca is not installed: it is in Debian's package llvm-16", file=sys.stderr)
        return 2
    for processor in sys.argv[1:] or PROCESSORS:
        for tile in TILES:
            found = {kind: measured(kind, tile, processor, mca) for kind in PRODUCTS}
            print(json.dumps({"processor": processor, "tile": [tile.height, tile.width], **found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

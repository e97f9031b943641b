#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The register tiles chosen for products on AArch64, beside the best by LLVM's models of its processors.

python benchmarks/aarch64_tiles.py                 # benchmarks/aarch64_tiles.json: a few minutes
python benchmarks/render.py cpu                    # and from it a table of docs/cpu.md

Nothing is run: every tile is compiled for each processor, and `llvm-mca` says how many cycles a turn of its innermost
loop takes. A product takes those of its tiles and of what is left of rows and columns.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import subprocess
from pathlib import Path
from statistics import geometric_mean

import tvm
from tvm import te

from smartmem_tvm.errors import UserError
from smartmem_tvm.ir.kernel import DECISIONS
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.schedule.cpu.tile import Tile, best_tile, column_tiles, fits
from smartmem_tvm.schedule.schedule_kernels import ScheduleKernels
from smartmem_tvm.tools.bench.results import write

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "aarch64_tiles.json"
PROCESSORS = ("cortex-a55", "cortex-a57", "neoverse-n2", "apple-a14")
DEPTH = 64  # steps of a loop that is looked at; cycles are for one of them
ROWS = (1, 2, 3, 5, 7, 8, 12, 16, 49, 50, 64, 77, 128, 196, 197, 256, 577, 784, 1024, 3136)
COLUMNS = (4, 12, 24, 32, 40, 64, 96, 160, 192, 320, 768, 1000)
_LABEL = re.compile(r"^(\.?\w+):")
_BRANCH = re.compile(r"^\s+(?:b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\d+,)\s+(\.?\w+)\s*$")
_PRODUCT = re.compile(r"^\s+fm(?:la|add)\s")
_CYCLES = re.compile(r"Total Cycles:\s+(\d+)")
_TURNS = 200


def target_of(processor: str) -> tvm.target.Target:
    """A processor that TVM compiles for, whether or not it is here."""
    return tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": processor, "num-cores": 1})


def assembly(tile: Tile, target: tvm.target.Target) -> str:
    """A product of one tile, as the rule for products writes it."""
    x = te.placeholder((tile.height, DEPTH), "float32", "x")
    w = te.placeholder((DEPTH, tile.width), "float32", "w")
    k = te.reduce_axis((0, DEPTH), "k")
    y = te.compute((tile.height, tile.width), lambda i, j: te.sum(x[i, k] * w[k, j], k), "y")
    given = {"matmul.swapped": 0, "matmul.height": tile.height, "matmul.width": tile.width}
    func = te.create_prim_func([x, w, y]).with_attrs({DECISIONS: given, "global_symbol": "main"})
    with target:
        scheduled = ScheduleKernels()(tvm.IRModule({"main": func}))
        return tvm.compile(scheduled, target=target).mod.inspect_source("s")


def innermost(text: str, product: re.Pattern = _PRODUCT) -> tuple[list[str], int]:
    """The loop with the most multiplications, and how many instructions multiply in it."""
    lines, labels, best = text.splitlines(), {}, ([], 0)
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = number
        elif (branch := _BRANCH.match(line)) and branch[1] in labels:
            body = [each for each in lines[labels[branch[1]] + 1 : number + 1] if not _LABEL.match(each)]
            products = sum(bool(product.match(each)) for each in body)
            if products > best[1]:
                best = body, products
    return best


def cycles_of(tile: Tile, processor: str, lanes: int, mca: str) -> float:
    """Cycles of one step along the depth."""
    loop, products = innermost(assembly(tile, target_of(processor)))
    if not products:
        raise UserError(f"No loop that multiplies was found in a product of {tile.height} x {tile.width}.")
    steps = products / (tile.height * -(-tile.width // lanes))
    return counted([each for each in loop if not each.strip().startswith(".")], processor, mca) / steps


def counted(code: list[str], processor: str, mca: str) -> float:
    """Cycles of a turn of a loop by LLVM's model of a processor."""
    command = [mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={processor}", f"-iterations={_TURNS}"]
    said = subprocess.run(command, input="\n".join(code), capture_output=True, text=True, check=True).stdout
    return int(_CYCLES.search(said)[1]) / _TURNS


def mca_program() -> str | None:
    """The newest `llvm-mca`: older ones take the model of another processor for some."""
    names = (*(f"llvm-mca-{version}" for version in range(30, 13, -1)), "llvm-mca")
    return next(filter(None, map(shutil.which, names)), None)


def total(tile: Tile, rows: int, columns: int, cycles: dict[Tile, float], params: CpuParams) -> float:
    """Cycles of one step along the depth of a whole product, what is left of rows and columns included."""
    heights = [(tile.height, rows // tile.height), (rows % tile.height, 1)]
    widths = [(tile.width, columns // tile.width)]
    widths += [(width, 1) for width in column_tiles(columns % tile.width, params)]
    return sum(cycles[Tile(h, w)] * nh * nw for h, nh in heights for w, nw in widths if h and nh and nw)


def candidates(params: CpuParams) -> list[Tile]:
    """Whole tiles that the rule chooses from."""
    pairs = [Tile(h, v * params.lanes) for h in params.tile_rows for v in params.tile_vectors]
    return [tile for tile in pairs if fits(tile.height, tile.width, params)]


def measured(processor: str, mca: str) -> dict:
    """What the choice costs on one processor, over all products."""
    params = CpuParams.of(target_of(processor))
    tiles = candidates(params)
    parts = {Tile(h, tile.width) for tile in tiles for h in range(1, tile.height + 1)}
    cycles = {tile: cycles_of(tile, processor, params.lanes, mca) for tile in sorted(parts, key=str)}
    ratios = {}
    for rows in ROWS:
        for columns in COLUMNS:
            chosen = best_tile(rows, columns, params, DEPTH)
            able = [tile for tile in tiles if tile.height <= rows and tile.width <= columns] or [chosen]
            best = min(total(tile, rows, columns, cycles, params) for tile in able)
            ratios[f"{rows} x {columns}"] = total(chosen, rows, columns, cycles, params) / best
    largest = best_tile(3136, 768, params, DEPTH)
    fastest = min(tiles, key=lambda tile: cycles[tile] / (tile.height * tile.width))
    worst = max(ratios, key=ratios.get)
    return {
        "processor": processor,
        "products": len(ratios),
        "mean": geometric_mean(ratios.values()),
        "worst": {"product": worst, "ratio": ratios[worst]},
        "chosen": {"tile": [largest.height, largest.width], "cycles": cycles[largest]},
        "fastest": {"tile": [fastest.height, fastest.width], "cycles": cycles[fastest]},
    }


def main() -> int:
    """All processors, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processors", nargs="*", default=list(PROCESSORS), help="names that LLVM knows")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args()
    mca = mca_program()
    if mca is None:
        parser.error("llvm-mca is not installed: it is in Debian's package llvm-16")
    rows = []
    for processor in args.processors:
        rows.append(measured(processor, mca))
        print(json.dumps(rows[-1]), flush=True)
    version = subprocess.run([mca, "--version"], capture_output=True, text=True, check=True).stdout
    tool = re.search(r"version (\S+)", version)
    found = {"date": datetime.date.today().isoformat(), "llvm": tool and tool[1], "rows": rows}
    write(args.output, json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

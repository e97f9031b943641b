#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels of one block of Swin-T, with shifted windows, as TVM's default passes leave them and as ours do.

python benchmarks/swin_block.py         # benchmarks/swin_block.json
python benchmarks/render.py readme      # and from it the picture of README.md and docs/index.md

Nothing is run: kernels are those of the graphs.
"""

from __future__ import annotations

import json
from pathlib import Path

import tvm

from smartmem_tvm import Options, from_onnx, optimize
from smartmem_tvm.frontend import from_onnx_as_tvm
from smartmem_tvm.graph_report import explain, only_moves_data
from smartmem_tvm.pipeline import BASELINE_PHASES, run_phases
from smartmem_tvm.target import parse_target
from smartmem_tvm.tools.bench.results import write

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "swin_block.json"
MODEL, TARGET = "swin_t", "cpu"
AFTER = 2
"""A block ends with the second matmul of its perceptron, so many kernels after the first, which holds GELU."""


def second_block(kernels: list[dict]) -> list[dict]:
    """The kernels between the end of the first block and that of the second, whose windows are shifted."""
    first, second = [place for place, each in enumerate(kernels) if "gelu" in each["name"]][:2]
    return kernels[first + AFTER : second + AFTER]


def tvms(file: Path) -> list[dict]:
    """Kernels of TVM's importer and its five default passes, in the order in which they are launched."""
    with parse_target(TARGET):
        mod = run_phases(from_onnx_as_tvm(file), BASELINE_PHASES, Options())
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    called = [each.value.args[0] for each in bindings if isinstance(getattr(each, "value", None), tvm.ir.Call)]
    kernels = [each for each in called if isinstance(each, tvm.ir.GlobalVar)]
    return [{"name": each.name_hint, "layout": only_moves_data(mod[each])} for each in kernels]


def ours(file: Path) -> list[dict]:
    """Our kernels, and how many layout operators each reads or writes through."""
    kernels = explain(optimize(from_onnx(file), target=TARGET))["kernels"]
    return [{"name": each["kernel"], "through": len(each["views"])} for each in kernels]


def main() -> None:
    """Count, and write the file."""
    file = HERE.parent / "models" / f"{MODEL}.onnx"
    found = {"model": MODEL, "tvm": second_block(tvms(file)), "ours": second_block(ours(file))}
    write(RESULTS, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

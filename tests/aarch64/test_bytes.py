# SPDX-License-Identifier: Apache-2.0
"""Products of bytes by Arm's dot products, on the board: equal to ONNX Runtime's to the bit."""

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import compose

from against_onnxruntime import reference
from drawn_integers import Drawn
from smartmem_tvm.cli import main

ABLE = {"dotprod": ["+v8.2a", "+dotprod"], "i8mm": ["+v8.6a", "+dotprod", "+i8mm"]}
INSTRUCTION = {"dotprod": "udot", "i8mm": "usdot"}


def code_of(library: Path) -> list[str]:
    """The lines of a library's machine code."""
    command = ["aarch64-linux-gnu-objdump", "-d", str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def together(seeds: range) -> onnx.ModelProto:
    """One model of the operators of several seeds."""
    whole = None
    for seed in seeds:
        drawn = Drawn(seed)
        model, (result,) = drawn.model, reference(drawn.model, drawn.inputs, threads=1)
        shape = model.graph.output[0].type.tensor_type.shape
        shape.SetInParent()
        for size in result.shape:
            shape.dim.add().dim_value = size
        model = compose.add_prefix(model, f"s{seed}_")
        whole = model if whole is None else compose.merge_models(whole, model, [])
    return whole


@pytest.mark.parametrize("feature", ABLE)
def test_drawn_operators_of_integers(feature, board, tmp_path, capsys):
    seeds = range(40) if feature == "i8mm" else range(40, 80)
    onnx.save(together(seeds), tmp_path / "bytes.onnx")
    aim = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 2, "mattr": ABLE[feature]}
    folder = str(tmp_path / "out")
    arguments = ("compile", str(tmp_path / "bytes.onnx"), "--target", json.dumps(aim), "-o", folder)
    assert main([*arguments, "--json"]) == 0
    compiled = json.loads(capsys.readouterr().out)
    assert sum(INSTRUCTION[feature] in line.split() for line in code_of(tmp_path / "out" / "lib.so")) > 100
    assert main(["measure", folder, *board, "--runs", "1", "--replays", "1", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["correct"] and compiled["manifest"]["kernels"]
    assert len(measured["outputs"]) == len(seeds)
    assert np.max([each["max_rel_err"] for each in measured["outputs"].values()]) == 0

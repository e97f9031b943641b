# SPDX-License-Identifier: Apache-2.0
"""Products of bytes by Arm's dot products, on the board: equal to ONNX Runtime's to the bit."""

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import compose, helper

from against_onnxruntime import reference
from coded_weights import nbits
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


def compiled_and_measured(model: Path, feature: str, board, capsys, *options: str) -> dict:
    """What `measure` says of a model, whose code has the instruction."""
    aim = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 2, "mattr": ABLE[feature]}
    folder = model.with_suffix("")
    assert main(["compile", str(model), "--target", json.dumps(aim), "-o", str(folder)]) == 0
    assert any(INSTRUCTION[feature] in line.split() for line in code_of(folder / "lib.so"))
    capsys.readouterr()
    assert main(["measure", str(folder), *board, "--runs", "1", "--replays", "1", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rows_in_bytes(bits: int) -> onnx.ModelProto:
    """A product by codes whose rows become bytes."""
    drawn = nbits(np.random.default_rng(bits), 5, 256, 96, 32, bits, True)
    for node in drawn.model.graph.node:
        node.attribute.append(helper.make_attribute("accuracy_level", 4))
    return drawn.model


@pytest.mark.parametrize("feature", ABLE)
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_in_bytes(bits, feature, board, tmp_path, capsys):
    """As close to ONNX Runtime, which rounds rows, too, as both are to the exact product."""
    onnx.save(rows_in_bytes(bits), tmp_path / "rows.onnx")
    measured = compiled_and_measured(tmp_path / "rows.onnx", feature, board, capsys, "--rtol", "0.02")
    assert measured["correct"]


@pytest.mark.parametrize("feature", ABLE)
def test_drawn_operators_of_integers(feature, board, tmp_path, capsys):
    seeds = range(20) if feature == "i8mm" else range(20, 40)
    onnx.save(together(seeds), tmp_path / "bytes.onnx")
    measured = compiled_and_measured(tmp_path / "bytes.onnx", feature, board, capsys)
    assert measured["correct"]
    assert len(measured["outputs"]) == len(seeds)
    assert np.max([each["max_rel_err"] for each in measured["outputs"].values()]) == 0

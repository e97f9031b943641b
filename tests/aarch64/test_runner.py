# SPDX-License-Identifier: Apache-2.0
"""The runner, built here for a board and run by qemu, where there is no Python."""

import json
from pathlib import Path

import numpy as np
import onnx

from runner import call
from small_network import network
from smartmem_tvm.cli import main
from smartmem_tvm.deploy.export import load

ROOT = Path(__file__).resolve().parents[2] / ".aarch64"
TARGET = json.dumps({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 2})
QEMU = {"before": ("qemu-aarch64-static",), "QEMU_LD_PREFIX": str(ROOT)}


def test_models_run_on_a_board_without_python(tmp_path, capsys):
    """With a memory budget, as it was exported, and without, in the same program."""
    model, out, whole = str(tmp_path / "small.onnx"), tmp_path / "out", tmp_path / "whole"
    onnx.save(network(), model)
    options = ("--target", TARGET, "--runtime", str(ROOT / "site"), "-o", str(out), "--memory-budget", "300kB")
    assert main(["export", model, "--runner", *options]) == 0, capsys.readouterr().err
    assert main(["compile", model, "--target", TARGET, "-o", str(whole)]) == 0
    assert main(["compile", model, "-o", str(tmp_path / "here")]) == 0
    assert (out / "stream.so").exists()
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    (expected,) = load(tmp_path / "here").run(x)
    for folder in (out / "model", whole):
        arguments = (folder, "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path, "--repeat", "3", "--json")
        done = call(*arguments, program=out / "smartmem_run", **QEMU)
        assert done.code == 0, done.err
        # Another CPU adds in another order.
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-4, atol=1e-5)
        with capsys.disabled():
            print(f"\n{done.data['latency_ms']['p50']:.1f} ms under qemu")

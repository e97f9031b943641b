# SPDX-License-Identifier: Apache-2.0
"""``smartmem tune --judge mesa`` with Mesa itself; ``make test-adreno`` runs it where that is set up."""

from __future__ import annotations

import json

import pytest

from matmul_model import matmuls
from smartmem_tvm.cli import main
from smartmem_tvm.mesa_folder import mesa_problem, mesa_version
from smartmem_tvm.tools.isa import compiler

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(mesa_problem() is not None, reason=f"{mesa_problem()}"),
]


def test_candidates_have_the_same_prices_each_time(tmp_path, monkeypatch, capsys):
    model, prices = matmuls(tmp_path / "one.onnx", (256, 384)), []
    for kept in ("one", "two"):
        monkeypatch.setenv(compiler.FOLDER_VARIABLE, str(tmp_path / kept))
        records = tmp_path / f"{kept}.jsonl"
        how = ["--target", "adreno-740", "--precision", "half", "--judge", "mesa", "--trials", "4"]
        assert main(["tune", str(model), *how, "--records", str(records), "--json"]) == 0
        (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
        assert kernel["trials"] == 4 and kernel["failed"] < 3, kernel
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        assert lines[0]["judge"].startswith(f"Mesa {mesa_version()}") and lines[0]["device"] == "adreno-740"
        prices.append([line["seconds"] for line in lines if "record" in line])
    assert prices[0] == prices[1] and len({each[0] for each in prices[0] if each}) > 1
    # The first candidate is the untuned kernel, and has its price.
    assert prices[0][0][0] * 1e6 == pytest.approx(kernel["untuned_us"])

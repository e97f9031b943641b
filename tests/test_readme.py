# SPDX-License-Identifier: Apache-2.0
"""The README shows the committed measurements, and commands that exist."""

import re
from pathlib import Path

import pytest

from smartmem_tvm.cli import main
from smartmem_tvm.tables.suite import SUITES
from smartmem_tvm.tools.bench.results import failures, read

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = read(ROOT / "benchmarks" / "smartmem18.json")
PROMISED = {entry.file: entry for entry in SUITES["smartmem18"]}


def test_every_network_was_measured():
    assert set(ROWS) == set(PROMISED)


@pytest.mark.parametrize("file", ROWS)
def test_committed_figures_keep_the_promises(file):
    row, entry = ROWS[file], PROMISED[file]
    assert not failures(row)
    ours = row["systems"]["smartmem"]
    assert ours["kernels"] == ours["kernels_in_graph"]
    assert ours["layout_kernels"] == 0
    if not entry.compile_only:
        assert ours["kernels"] <= entry.at_most
        assert ours["relative_error"] <= 1e-4
        tvm = row["systems"]["tvm"]
        assert ours["bytes_moved"]["activations"] <= tvm["bytes_moved"]["activations"]
    assert max(ours["peak_mb"].values()) <= 20e3


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^smartmem ([\w-]+)", README, re.MULTILINE))))
def test_commands_shown_exist(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"smartmem {command}" in capsys.readouterr().out

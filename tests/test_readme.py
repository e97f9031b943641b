# SPDX-License-Identifier: Apache-2.0
"""The README shows the committed measurements, and commands that exist."""

import json
import re
import runpy
from pathlib import Path

import pytest

from smartmem_tvm.cli import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_are_those_of_the_committed_file():
    figures = runpy.run_path(str(ROOT / "benchmarks" / "figures.py"))
    results = json.loads((ROOT / "benchmarks" / "figures.json").read_text(encoding="utf-8"))
    shown = README.partition("<!-- figures -->\n")[2].partition("\n<!-- /figures -->")[0]
    assert shown == figures["tables"](results)


def test_committed_figures_keep_the_promises():
    figures = runpy.run_path(str(ROOT / "benchmarks" / "figures.py"))
    results = json.loads((ROOT / "benchmarks" / "figures.json").read_text(encoding="utf-8"))["models"]
    for name, (_, _, bound) in figures["MODELS"].items():
        ours = results[name]["smartmem"]
        assert ours["launches"] == ours["kernels"] <= bound
        assert ours["layout_kernels"] == 0
        assert results[name]["error"] <= 1e-4


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^smartmem (\w+)", README, re.MULTILINE))))
def test_commands_shown_exist(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"smartmem {command}" in capsys.readouterr().out

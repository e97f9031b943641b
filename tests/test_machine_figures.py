# SPDX-License-Identifier: Apache-2.0
"""What was measured of a processor is plausible, and stands beside figures of schedule/cpu/machine.py."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "machine.py"))
KEPT = json.loads((ROOT / "benchmarks" / "machine_xeon.json").read_text(encoding="utf-8"))
FIGURES = {each["name"]: each for each in KEPT["figures"]}


def test_a_table_names_a_figure_and_its_value_in_the_machine_file():
    figure = SCRIPT["Figure"]("latency", 4.1234, "cycles", "FMA_LATENCY")
    assert SCRIPT["table"]([figure]).splitlines()[-1] == "| latency | 4.12 | cycles | `FMA_LATENCY` = 4 |"
    with pytest.raises(AttributeError):
        SCRIPT["table"]([SCRIPT["Figure"]("latency", 4.0, "cycles", "NO_SUCH_FIGURE")])


def test_what_was_measured_is_plausible():
    value = {name: each["value"] for name, each in FIGURES.items()}
    assert 1 < value["clock"] < 7, "GHz"
    assert value["multiply-adds of vectors per cycle"] <= 4
    assert value["read of 16 KiB"] > value["read of 256 KiB"] > value["read of 16384 KiB"] > value["read from memory"]
    assert value["weight from memory"] == pytest.approx(4 / value["read from memory"], rel=1e-3)

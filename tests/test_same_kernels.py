# SPDX-License-Identifier: Apache-2.0
"""`scripts/same_kernels.py` finds the differences that count, and none in an unchanged tree."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("same_kernels", ROOT / "scripts" / "same_kernels.py")
tool = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tool)


def kernel(hash_="1", rule="Matmul", **choices):
    return {"hash": hash_, "rule": rule, "choices": choices}


def side(launches=2, **kernels):
    return {"network": "n", "target": "t", "launches": launches, "kernels": kernels}


def test_equal_sides_do_not_differ():
    assert tool.differences(side(a=kernel(), b=kernel("2")), side(a=kernel(), b=kernel("2"))) == []


def test_another_name_is_no_difference():
    assert tool.differences(side(a=kernel(), b=kernel("2")), side(a1=kernel(), b=kernel("2"))) == []
    assert tool.differences(side(a=kernel(), b=kernel("2")), side(a=kernel("2"), b=kernel())) == []


def test_each_difference_is_named_with_both_sides():
    (line,) = tool.differences(side(a=kernel(rows=4)), side(a=kernel("2", "Slide", rows=8, columns=1)))
    assert line == "a: rule Matmul -> Slide, hash 1 -> 2, columns None -> 1, rows 4 -> 8"


def test_a_renamed_rule_is_compared_by_its_older_name():
    for new, old in tool.RENAMED.items():
        assert tool._older(new) == old and tool._older(f"Elementwise + {new}") == f"Elementwise + {old}"
        assert tool._older(f"{new}.height") == f"{old}.height" and tool._older(f"{new}s") == f"{new}s"


def test_kernels_come_and_go_and_launches_count():
    lines = tool.differences(side(a=kernel(), b=kernel("2")), side(launches=3, a=kernel(), c=kernel("3"), d=kernel()))
    assert lines == ["launches: 2 -> 3", "b: gone, Matmul 2", "c: new, Matmul 3", "d: new, Matmul 1"]


def test_hashes_of_rewritten_rules_are_not_compared_and_all_else_is():
    before, after = side(a=kernel(rows=4), b=kernel("2", "Slide")), side(a=kernel("3", rows=4), b=kernel("4", "Slide"))
    assert len(tool.differences(before, after)) == 2
    left = [tool.without_hashes(each, {"Matmul"}) for each in (before, after)]
    assert tool.differences(*left) == ["b: hash 2 -> 4"]
    other = tool.without_hashes(side(a=kernel("3", rows=8), b=kernel("2", "Slide")), {"Matmul"})
    assert tool.differences(left[0], other) == ["a: rows 4 -> 8"]


def test_a_refusal_is_compared():
    refused = {"network": "n", "target": "t", "error": "UserError: no"}
    assert tool.differences(refused, refused) == []
    assert "error: None -> UserError: no" in tool.differences(side(a=kernel()), refused)


def test_half_a_line_is_computed_again(tmp_path):
    path = tmp_path / "side.jsonl"
    path.write_text(json.dumps(side(a=kernel())) + '\n{"network": "n", "tar')
    assert set(tool.read(path)) == {("n", "t")}


def test_names_that_do_not_exist_are_refused():
    assert tool.chosen("gru,lstm", tool.NETWORKS) == ["gru", "lstm"]
    assert tool.chosen("", tool.TARGETS) == list(tool.TARGETS)
    with pytest.raises(SystemExit, match="nothing: not among"):
        tool.chosen("gru,nothing", tool.NETWORKS)


def test_the_networks_are_there():
    assert len(tool.NETWORKS) == 20
    assert all(name.startswith("(") or (ROOT / name).is_file() for name in tool.NETWORKS.values())


@pytest.mark.device
def test_a_network_has_the_same_hashes_in_two_processes(tmp_path):
    rows = []
    for number in range(2):
        into = tmp_path / f"{number}.jsonl"
        command = [
            sys.executable,
            tool.__file__,
            "--compute",
            "gru",
            "--targets",
            "haswell,opencl",
            "--into",
            str(into),
        ]
        subprocess.run(command, check=True)
        rows.append(tool.read(into))
    assert set(rows[0]) == {("gru", "haswell"), ("gru", "opencl")}
    for key, first in rows[0].items():
        assert first["kernels"] and all(each["rule"] != "-" for each in first["kernels"].values())
        assert any(each["choices"] for each in first["kernels"].values())
        assert tool.differences(first, rows[1][key]) == []

# SPDX-License-Identifier: Apache-2.0
"""docs/layouts.md shows the committed counts, commands that exist, and code that runs."""

import contextlib
import io
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from helpers import constant, legal, op
from smartmem_tvm.cli.model import TECHNIQUES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
PAGE = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
RENDER = runpy.run_path(str(ROOT / "benchmarks" / "pages" / "layouts.py"))
MEASURE = runpy.run_path(str(ROOT / "benchmarks" / "layouts.py"))
SPEED = runpy.run_path(str(ROOT / "benchmarks" / "layout_speed.py"))
SHARE = runpy.run_path(str(ROOT / "benchmarks" / "buffer_share.py"))
CONTENT = json.loads((ROOT / "benchmarks" / RENDER["RESULTS"]).read_text(encoding="utf-8"))
ROWS = {row["name"]: row for row in CONTENT["networks"]}
KEPT = ("an input of the model keeps the user's order", "a result of the model keeps the user's order")


def test_every_network_was_counted():
    assert {row["name"]: row["file"] for row in CONTENT["networks"]} == MEASURE["NETWORKS"]
    assert CONTENT["device"] == MEASURE["DEVICE"]


@pytest.mark.parametrize("name", ROWS)
def test_what_is_left_is_explained(name):
    row = ROWS[name]
    assert row["textures"] <= row["placed"] <= row["before"] < row["tvm"]
    for plan in RENDER["PLANS"]:
        assert sum(each["tensors"] for each in row["left"][plan]) == row[plan], (
            "no layout kernels, and all have a reason"
        )
        assert all(each["reason"] for each in row["left"][plan])
    assert {each["reason"] for each in row["left"]["textures"]} <= set(KEPT), "two dimensions serve all readers"


@pytest.mark.parametrize("name", ["Swin-T", "ViT-B/16", "ViT-S/16", "ConvNeXt-T"])
def test_textures_leave_none(name):
    assert ROWS[name]["textures"] == 0


def test_copies_of_values_do_not_pay():
    """The page says so for merged queries, keys and values."""
    for name in ("Swin-T", "ViT-B/16", "ViT-S/16", "BERT-base"):
        facts = ROWS[name]["copies"]
        assert facts["tensors"] == 12 and facts["lines_with_copies"] > facts["lines"]


def test_no_copy_saves_what_it_costs():
    """No copy saves memory traffic, nor cache requests, except for the one tensor that the page names."""

    def pays(what: str) -> list[str]:
        copies = {name: row["copies"] for name, row in ROWS.items()}
        return [name for name, each in copies.items() if each[f"{what}_with_copies"] + each["written"] < each[what]]

    assert pays("misses") == []
    assert pays("lines") == ["ResNeXt-50"] and ROWS["ResNeXt-50"]["copies"]["tensors"] == 1


def test_another_order_in_buffers_does_not_pay():
    """As the page says: no network is faster on GPUs, some are on CPUs, and none is slower by more than the noise."""
    rows = json.loads((ROOT / "benchmarks" / RENDER["SPEED"]).read_text(encoding="utf-8"))["rows"]
    assert {(row["name"], row["target"]) for row in rows} == {
        (name, target) for name in SPEED["NETWORKS"] for target in SPEED["TARGETS"]
    }
    ratios = {(row["name"], row["target"]): row["ms"][1] / row["ms"][0] for row in rows}
    assert all(after <= before for before, after in (row["transitions"] for row in rows))
    assert all(ratio > 0.99 for (_, target), ratio in ratios.items() if target != "cpu")
    on_cpu = [ratio for (_, target), ratio in ratios.items() if target == "cpu"]
    assert min(on_cpu) < 0.96 and max(on_cpu) < 1.03


def test_a_row_measured_again_takes_the_place_of_the_old_one():
    names, targets = SPEED["NETWORKS"], SPEED["TARGETS"]
    rows: list = []
    for target in reversed(targets):
        for name in reversed(names):
            rows = SPEED["put"](rows, {"name": name, "target": target, "ms": [1, 1]})
    again = SPEED["put"](rows, {"name": "Swin-T", "target": "cuda", "ms": [1, 2]})
    assert [(row["target"], row["name"]) for row in again] == [(target, name) for target in targets for name in names]
    assert [row["ms"] for row in again if row["ms"] != [1, 1]] == [[1, 2]]


def test_the_choice_by_the_estimate():
    """The more bandwidth buffers reach, the fewer textures are chosen; the choice is never slower than either."""
    rows = json.loads((ROOT / "benchmarks" / RENDER["SHARE"]).read_text(encoding="utf-8"))["networks"]
    assert {row["name"]: row["file"] for row in rows} == SHARE["NETWORKS"]
    for row in rows:
        assert tuple(each["share"] for each in row["choices"]) == SHARE["SHARES"]
        placed = [each["tensors"][0] for each in row["choices"]]
        assert placed == sorted(placed, reverse=True)
        for each in row["choices"]:
            assert each["ms"]["chosen"] <= min(each["ms"]["buffers"], each["ms"]["all"])


def test_a_choice_is_counted():
    before = legal(lambda x: op.matmul(op.nn.relu(op.matmul(x, constant(256, 256))), constant(256, 256)), (1024, 256))
    found = SHARE["choice"](before, MEASURE["parse_target"](MEASURE["DEVICE"]), 0.4)
    assert found["ms"]["chosen"] <= min(found["ms"]["buffers"], found["ms"]["all"])
    assert found["weights"][1] == 2 and 0 < found["tensors"][0] <= found["tensors"][1]


@pytest.mark.device
def test_a_network_counted_again():
    """The smallest network, counted again: the plan by cost depends on its model, the others do not."""
    row, _ = MEASURE["counts"](MEASURE["NETWORKS"]["ViT-S/16"], MEASURE["parse_target"](MEASURE["DEVICE"]))
    assert row == {key: ROWS["ViT-S/16"][key] for key in row}


def test_the_code_runs_and_prints_what_it_says():
    names: dict = {}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
            exec(compile(block, "docs/layouts.md", "exec"), names)
    assert shown.getvalue().splitlines() == ["2 1", "(4, 3, 8, 4)"]
    assert [each["action"] for each in _decisions(names["after"], "SelectLayout")] == ["stored in this order", "kept"]
    assert _decisions(names["placed"], "PlaceTextures")[0]["memory"] == "texture"


def _decisions(mod, name: str) -> list[dict]:
    from smartmem_tvm.graph_report import explain

    return [each for each in explain(mod)["decisions"] if each["pass"] == name]


@pytest.mark.parametrize("option", re.findall(r"^\| `--no-(\w+)`", PAGE, re.MULTILINE))
def test_options_shown_exist(option):
    assert option in TECHNIQUES


def test_another_page_quotes_the_file():
    text = " ".join((ROOT / "docs" / "design.md").read_text(encoding="utf-8").split())
    assert f"Swin-T's {ROWS['Swin-T']['tvm']} layout transitions" in text

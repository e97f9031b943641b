# SPDX-License-Identifier: Apache-2.0
"""ONNX files out of PyPI packages: the table, drawn inputs, files that fail, resumed runs, and the page."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from pages import wild as page  # noqa: E402
from wild import WildFile, chosen, described, files, line, tolerance  # noqa: E402
from wild_inputs import Drawn, drawn, sizes_of, spectrum, voice  # noqa: E402
from wild_inputs import page as paper  # noqa: E402

from script_here import run_here  # noqa: E402
from smartmem_tvm.errors import UserError  # noqa: E402

TABLE = files()


def test_the_table_names_at_least_25_packages_and_pins_each():
    assert len({each.package for each in TABLE}) >= 25
    assert all(re.fullmatch(r"[\w.]+", each.version) for each in TABLE)
    assert len({each.key for each in TABLE}) == len(TABLE)


def test_states_come_from_outputs_and_values_are_inputs():
    for each in TABLE:
        assert set(each.values) <= set(each.inputs), each.key
    assert sum("<-" in text for each in TABLE for text in each.inputs.values()) > 10


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("voice 1x16000", Drawn("voice", (1, 16000))),
        ("ids 2x40 < 60", Drawn("ids", (2, 40), 60.0)),
        ("full - = 16000", Drawn("full", (), 16000.0)),
        ("zeros 2x1x128 <- stateN", Drawn("zeros", (2, 1, 128), 0.0, "stateN")),
    ],
)
def test_inputs(text, want):
    assert drawn(text, "x") == want
    assert want.array(np.dtype("float32"), 0).shape == want.shape


@pytest.mark.parametrize("text", ["voice", "song 1x3", "voice 1 x 3", 3, "voice 1x3 <"])
def test_inputs_that_are_none(text):
    with pytest.raises(UserError, match="write KIND 1x16"):
        drawn(text, "x")


def test_lists_of_sizes():
    one, other = sizes_of({"x": "page 1x3x48x{64,96}", "n": "full - = 2", "m": "full 1x{3,4} = 1"}, "x")
    assert one == {"x": Drawn("page", (1, 3, 48, 64)), "n": Drawn("full", (), 2.0), "m": Drawn("full", (1, 3), 1.0)}
    assert other["x"].shape == (1, 3, 48, 96) and other["m"].shape == (1, 4)
    assert sizes_of({"x": "full 2 = 1"}, "x") == [{"x": Drawn("full", (2,), 1.0)}]
    with pytest.raises(UserError, match="have 2 and 3 numbers"):
        sizes_of({"x": "page 1x{1,2}", "y": "page 1x{1,2,3}"}, "x")


def test_what_is_drawn_looks_like_what_it_is_called():
    random = np.random.default_rng(0)
    sound = voice(16000, random)
    loud = np.abs(np.fft.rfft(sound))
    assert np.abs(sound).max() < 0.6 and 90 < loud[50:200].argmax() + 50 < 170, "its pitch, in Hz"
    assert abs(spectrum(20, 40, random).mean()) < 1e-6
    white = paper(96, 200, random)
    assert 0.5 < (white > 0.8).mean() < 0.95 and white.min() < -0.7, "mostly paper, some ink"
    letters = drawn("text 1x200 < 257", "x").array(np.dtype("int64"), 0)
    assert b"quick" in bytes(letters[0].astype(np.uint8))
    assert drawn("words 1x50 < 9", "x").array(np.dtype("int64"), 1).min() >= 1
    assert drawn("page 2x8x9x3", "x").array(np.dtype("float32"), 1).shape == (2, 8, 9, 3)
    one, other = (drawn("normal 3", "x").array(np.dtype("float32"), seed) for seed in (0, 1))
    assert (one != other).all()


@pytest.mark.parametrize("content", ["{}", '[{"package": "a"}]', "no JSON"])
def test_files_that_are_no_table(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"is no list of packages|cannot be read"):
        files(path)


def test_packages_that_are_not_there():
    with pytest.raises(UserError, match="has no package 'nowhere'"):
        chosen(TABLE, ["nowhere"])


def test_what_is_odd_about_a_file(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["?", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    save(helper.make_model(helper.make_graph([node], "g", [x], [y])), tmp_path / "a.onnx")
    assert described(tmp_path / "a.onnx")["odd"] == ["sizes without a name", "outputs without a shape"]
    assert tolerance(["quantised"]) > tolerance([])


@pytest.fixture
def workplace(tmp_path):
    """Return a cache with a package of three files, one good, one refused, one missing, and its table."""
    folder = tmp_path / "cache" / "a-1.0"
    folder.mkdir(parents=True)

    def model(name, nodes, inputs, outputs):
        tensors = [
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in e.items()] for e in (inputs, outputs)
        ]
        save(helper.make_model(helper.make_graph(nodes, "g", *tensors), ir_version=8), folder / name)

    step = [helper.make_node("Add", ["x", "h"], ["s"]), helper.make_node("Tanh", ["s"], ["n"])]
    model(
        "good.onnx",
        [*step, helper.make_node("Relu", ["n"], ["y"])],
        {"x": ["n", 4], "h": ["n", 4]},
        {"y": ["n", 4], "n": ["n", 4]},
    )
    model("strange.onnx", [helper.make_node("Blur", ["x"], ["y"], domain="here")], {"x": [1, 4]}, {"y": [1, 4]})
    entries = [
        {"file": "good.onnx", "inputs": {"x": "normal 2x4", "h": "zeros 2x4 <- n"}},
        {"file": "strange.onnx", "inputs": {"x": "normal 1x4"}},
    ]
    table = tmp_path / "table.json"
    table.write_text(
        json.dumps([{"package": "a", "version": "1.0", "what": "a test", "files": entries}]), encoding="utf-8"
    )
    common = ["--table", table, "-o", tmp_path / "wild.json", "--cache", tmp_path / "cache", "--no-times"]
    return tmp_path / "wild.json", lambda *more: run_here("wild", *common, *more)


def test_states_go_round_and_what_is_refused_is_a_row(workplace, monkeypatch):
    results, run = workplace
    done = run()
    found = {row["model"]: row for row in json.loads(results.read_text(encoding="utf-8"))["rows"]}
    good, strange = found["a/good.onnx"], found["a/strange.onnx"]
    assert (
        good["verdict"] == "right"
        and good["rounds"] == 10
        and good["deviation"] < 1e-5
        and good["odd"] == ["open sizes"]
    )
    assert strange["verdict"] == "refused" and "Blur" in strange["sentence"]
    assert done.returncode == 0 and "[1/2] a/good.onnx: right" in done.stdout, done.stderr
    assert run().stdout == "", "both are known"
    monkeypatch.setattr("wild.in_child", lambda *_: {"verdict": "refused", "sentence": "again"})
    assert "[1/1] a/strange.onnx: refused: again" in run("--failed").stdout


def test_inputs_that_the_reference_does_not_take_are_the_tables_fault(tmp_path):
    """An index is beyond a tensor's end, as in a table with two inputs in the wrong order."""
    folder = tmp_path / "cache" / "a-1.0"
    folder.mkdir(parents=True)
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [0.0] * 6)
    x, y = (helper.make_tensor_value_info(*each) for each in (("x", 7, [4]), ("y", 1, [4, 2])))
    graph = helper.make_graph([helper.make_node("Gather", ["w", "x"], ["y"])], "g", [x], [y], [weight])
    save(helper.make_model(graph, ir_version=8), folder / "g.onnx")
    entry = {
        "package": "a",
        "version": "1.0",
        "what": "a",
        "files": [{"file": "g.onnx", "inputs": {"x": "full 4 = 9"}}],
    }
    (tmp_path / "table.json").write_text(json.dumps([entry]), encoding="utf-8")
    folders = ("-o", tmp_path / "w.json", "--cache", tmp_path / "cache")
    done = run_here("wild", "--table", tmp_path / "table.json", *folders)
    (row,) = json.loads((tmp_path / "w.json").read_text(encoding="utf-8"))["rows"]
    assert row["verdict"] == "wrong input" and "indices element out of data bounds" in row["sentence"]
    assert done.returncode == 2 and row["processor_seconds"] > 0 and row["peak_mb"] > 10


def test_what_the_page_says():
    rows = {}
    for number, each in enumerate(TABLE[:3]):
        facts = {
            "bytes": 10**6,
            "opset": 17,
            "nodes": 5,
            "odd": [],
            "seconds": {"import": 1.0},
            "processor_seconds": 2.0,
            "kernels": 2,
            "layout_kernels": 0,
        }
        rows[each.key] = {
            "model": each.key,
            "name": each.key,
            "package": each.package,
            **facts,
            "verdict": "right",
            "deviation": 1e-6,
        }
        rows[each.key] |= {"date": "2026-11-27", "machine": MACHINE}
        rows[each.key]["latency"] = {"smartmem": {"median": 1.0 + number}, "onnxruntime": {"median": 2.0}}
    rows[TABLE[1].key] |= {"verdict": "wrong", "sentence": "a | b"}
    text = page.page(rows)
    assert "2 right, 1 wrong (67% right)" in text and "**wrong**" in text and "a \\| b" in text
    assert "1.0 s by the clock on average" in text and "of 3 files that say it, 2.0 s of the processor" in text
    assert f"Above 1.2x: {TABLE[2].key} 1.50x" in text and "0.50x" in text


MACHINE = {"cpu": "a CPU", "cores": 2, "os": "Linux", "apache-tvm": "0.27.0", "onnxruntime": "1.32.0"}


def test_a_row_for_people():
    each = WildFile("a", "1.0", "a test", "b/c.onnx", {})
    assert each.key == "a/c.onnx"
    assert line({"verdict": "hang", "sentence": "not done after 3 s"}) == "hang: not done after 3 s"

# SPDX-License-Identifier: Apache-2.0
"""``--shape`` with lists: what the commands that know several sizes do, and that the others refuse them."""

import json

import numpy as np
import onnx
import pytest

from open_models import drawn, layers, sentence
from open_models import expected as by_onnxruntime
from sized_model import expected, inputs, shapes, sized_model
from smartmem_tvm.cli import main
from smartmem_tvm.cli.several_sizes import parse_lists
from smartmem_tvm.tools.bench.plan_measurements import Plan

LISTS = "x:{1,3},4,8"
TIMES = ("compile_seconds", "compile_steps", "peak_mb")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, symbolic_path):
    """The attention model for batches of 1 and 3, which tests only read."""
    place = tmp_path_factory.mktemp("sizes") / "out"
    assert main(["compile", str(symbolic_path), "--shape", LISTS, "-o", str(place)]) == 0
    return place


def refused(outcome, *words):
    assert outcome.code == 2 and outcome.err.count("\n") == 1, outcome.err
    for word in words:
        assert word in outcome.err


def test_what_a_folder_says(folder, smartmem):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == 9
    assert [each["inputs"][0]["shape"] for each in manifest["sizes"]] == [[1, 4, 8], [3, 4, 8]]
    found = smartmem("inspect", folder)
    assert found.code == 0 and "float32 1x4x8" in found.out and "float32 3x4x8" in found.out
    assert smartmem("inspect", folder, "--json").data["sizes"] == manifest["sizes"]


def test_run_chooses_by_shape_by_input_or_the_first(folder, smartmem, tmp_path):
    def shape(*arguments):
        return smartmem("run", folder, "--repeat", "1", "--json", *arguments).data["outputs"]["y"]["shape"]

    np.save(tmp_path / "x.npy", np.ones((3, 4, 8), "float32"))
    assert shape() == [1, 4, 8]
    assert shape("--shape", "x:3,4,8") == shape("--input", tmp_path / "x.npy") == [3, 4, 8]
    refused(smartmem("run", folder, "--shape", "x:2,4,8"), "has no size of --shape x:2,4,8: give one of x 1x4x8; x 3x")
    np.save(tmp_path / "x.npy", np.ones((2, 4, 8), "float32"))
    refused(smartmem("run", folder, "--input", tmp_path / "x.npy"), "which holds x 2x4x8: give one of x 1x4x8")


def test_verify_compares_each_size(smartmem, symbolic_path):
    outcome = smartmem("verify", symbolic_path, "--shape", LISTS, "--json")
    assert outcome.code == 0, outcome.err
    assert list(outcome.data["outputs"]) == ["y of x 1x4x8", "y of x 3x4x8"]


def test_inputs_of_a_file_choose_the_size_of_a_model(smartmem, tmp_path):
    onnx.save(sized_model(), tmp_path / "m.onnx")
    arrays = inputs(shapes(3, 5, 4, 2))
    np.savez(tmp_path / "in.npz", **arrays)
    lists = ["--shape", "x:{1,3},3,5,4", "--shape", "row:{1,3},2,160"]
    files = ["--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz"]
    outcome = smartmem("run", tmp_path / "m.onnx", *lists, *files, "--repeat", "1")
    assert outcome.code == 0, outcome.err
    with np.load(tmp_path / "out.npz") as found:
        for name, wanted in zip(("image", "text", "same"), expected(arrays), strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-4)


def test_a_command_that_takes_one_size(folder, smartmem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = smartmem("export-graph", folder, "-o", "o.onnx")
    refused(outcome, "holds 2 sizes of a model, and this command takes a folder of one", "--shape x:1,4,8")


def test_a_list_for_a_command_that_takes_one_size(symbolic_path, smartmem, tmp_path):
    outcome = smartmem("profile", symbolic_path, "--shape", LISTS, "--profiles", tmp_path / "profiles.json")
    refused(outcome, "gives a list of sizes, and this command takes one")
    outcome = smartmem("plan", symbolic_path, "--shape", LISTS, "-o", tmp_path / "plan.svg")
    refused(outcome, "what is shown of one size")


@pytest.mark.parametrize("command", ["stats", "explain", "plan"])
def test_a_command_that_shows_each_size(symbolic_path, smartmem, command):
    alone = [smartmem(command, symbolic_path, "--shape", f"x:{batch},4,8", "--json").data for batch in (1, 3)]
    found = smartmem(command, symbolic_path, "--shape", LISTS, "--json").data["sizes"]
    assert [each["shapes"] for each in found] == [{"x": [1, 4, 8]}, {"x": [3, 4, 8]}]
    for one, each in zip(alone, found, strict=True):
        same = [key for key in one if key not in TIMES]
        assert same and {key: each[key] for key in same} == {key: one[key] for key in same}


def test_titles_of_sizes(symbolic_path, smartmem):
    found = smartmem("plan", symbolic_path, "--shape", LISTS)
    assert found.code == 0 and "x 1x4x8" in found.out and "x 3x4x8" in found.out, found.err


def test_the_plan_of_a_size_of_a_folder(folder, smartmem):
    plans = [smartmem("plan", folder, "--shape", f"x:{batch},4,8", "--json").data for batch in (1, 3)]
    assert [each["tensors"][0]["shape"][0] for each in plans] == [1, 3]
    assert 0 < plans[0]["live_bytes"] < plans[1]["live_bytes"]
    assert smartmem("plan", folder, "--json").data["live_bytes"] == plans[1]["live_bytes"]
    assert "Of 2 sizes this is the one" in smartmem("plan", folder).out
    refused(smartmem("plan", folder, "--shape", "x:2,4,8"), "has no size of --shape x:2,4,8")
    live = smartmem("inspect", folder, "--json").data["live_bytes"]
    assert list(live.values()) == [each["live_bytes"] for each in plans]
    assert smartmem("inspect", folder).out.count("in use at once)") == 2


def test_a_report_shows_the_first_size(folder, smartmem, tmp_path):
    found = smartmem("report", folder, "-o", tmp_path / "o.html")
    assert found.code == 0 and "x: float32 1x4x8; the first of 2 sizes" in " ".join(found.out.split()), found
    assert "the first of 2 sizes" in (tmp_path / "o.html").read_text()


def test_bench_has_a_row_for_each_size(symbolic_path, smartmem, monkeypatch, tmp_path):
    asked, file = [], tmp_path / "r.json"

    def measured(plan, network):
        asked.extend(plan.requests(network))
        return {"error": "No."}

    monkeypatch.setattr(Plan, "_measure", measured)
    outcome = smartmem("bench", symbolic_path, "--shape", LISTS, "--against", "none", "-o", file, "--json")
    assert outcome.code == 2, outcome.err
    assert [each["name"] for each in outcome.data["rows"]] == ["symbolic, x 1x4x8", "symbolic, x 3x4x8"]
    assert [each["shapes"] for each in asked] == [{"x": (1, 4, 8)}, {"x": (3, 4, 8)}]
    assert len(json.loads(file.read_text())["rows"]) == 2


def test_a_suite_takes_no_list(smartmem, tmp_path):
    outcome = smartmem("bench", "--suite", "smartmem18", "--models", tmp_path, "--shape", LISTS)
    refused(outcome, "gives a list of sizes, and this command takes one")


@pytest.mark.parametrize("apart", [["--shape", "x:1,4,8", "x:3,4,8"], ["--shape=x:1,4,8", "--shape=x:3,4,8"]])
def test_a_list_that_the_shell_took_apart(symbolic_path, smartmem, apart, tmp_path):
    outcome = smartmem("compile", symbolic_path, *apart, "-o", tmp_path / "out")
    refused(outcome, "takes a list in braces apart", f"--shape '{LISTS}'")


@pytest.mark.parametrize("wrong", ["x:{1,},4,8", "x:{},4,8", "x:{1,3,4,8", "x:{a},4,8", "x:{1}{3},4,8", "{1,3},4,8"])
def test_what_is_no_list(symbolic_path, smartmem, wrong, tmp_path):
    refused(smartmem("compile", symbolic_path, "--shape", wrong, "-o", tmp_path / "o"), "must be a name, a colon")


@pytest.fixture(scope="module")
def open_file(tmp_path_factory):
    place = tmp_path_factory.mktemp("open") / "m.onnx"
    onnx.save(layers(), place)
    return place


def test_an_open_size_from_the_command_line(open_file, smartmem, tmp_path):
    assert smartmem("compile", open_file, "--shape", "x:1..7,16", "-o", tmp_path / "out").code == 0
    np.save(tmp_path / "x.npy", drawn(layers(), 5))
    for chosen in (["--shape", "x:5,16"], ["--input", tmp_path / "x.npy"]):
        outcome = smartmem("run", tmp_path / "out", *chosen, "--repeat", "1", "--json")
        assert outcome.data["outputs"]["r1"]["shape"] == [5, 16]
    refused(
        smartmem("run", tmp_path / "out", "--shape", "x:8,16"),
        "does not take x 8x16: give shapes that it takes, x (1..7)x16",
    )
    found = smartmem("inspect", tmp_path / "out")
    assert "x: float32 (1..7)x16" in found.out, found.out


def test_verify_draws_sizes_of_an_open_one(open_file, smartmem):
    outcome = smartmem("verify", open_file, "--shape", "x:1..20,16", "--json")
    assert outcome.code == 0, outcome.err
    names = list(outcome.data["outputs"])
    assert len(names) == 6 and names[0] == "r1 of x 1x16" and names[-1] == "r1 of x 20x16"


def test_a_file_runs_with_the_items_of_an_input(open_file, smartmem, tmp_path):
    np.save(tmp_path / "x.npy", drawn(layers(), 5))
    outcome = smartmem(
        "run", open_file, "--shape", "x:1..7,16", "--input", tmp_path / "x.npy", "--repeat", "1", "--json"
    )
    assert outcome.data["outputs"]["r1"]["shape"] == [5, 16]


def test_bench_has_a_row_for_some_sizes_of_an_open_one(open_file, smartmem, monkeypatch):
    asked = []
    monkeypatch.setattr(Plan, "_measure", lambda plan, network: asked.extend(plan.requests(network)) or {"error": "No"})
    outcome = smartmem("bench", open_file, "--shape", "x:1..40,16", "--against", "onnxruntime,no-fuse", "--json")
    assert [each["name"] for each in outcome.data["rows"]] == [f"m, x {n}x16" for n in (1, 2, 8, 29, 32, 40)]
    ours, reference, plain = asked[:3]
    assert ours["shapes"] == reference["shapes"] == {"x": (1, 16)}
    assert ours["ranges"] == plain["ranges"] == {"x": ["1..40", (16,)]} and "ranges" not in reference
    outcome = smartmem("bench", open_file, "--shape", "x:1..40,16", "--sizes", "7,3", "--json")
    assert [each["name"] for each in outcome.data["rows"]] == ["m, x 7x16", "m, x 3x16"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shape", "x:1..4,16", "--sizes", "5"), "--sizes 5 names '5', and the model takes 1..4"),
        (("--shape", "x:1..4,16", "--sizes", "2x2"), "names '2x2'"),
        (("--shape", "x:4,16", "--sizes", "4"), "--sizes names numbers within a range"),
        (("--shape", "x:1..4,16", "--requests", "9"), "--requests does not go with a range"),
        (("--shape", "x:1..4,16", "--batch", "2"), "--batch does not go with a range"),
        (("--shape", "x:4..4,16"), "leaves a size open as 4..4"),
    ],
)
def test_what_bench_refuses_of_an_open_size(open_file, smartmem, options, said):
    refused(smartmem("bench", open_file, *options), said)


@pytest.mark.device
def test_bench_measures_an_open_size_beside_static_ones(open_file, smartmem):
    quick = ("--against", "onnxruntime", "--budget", "0.05", "--threads", "1", "--sizes", "2,5")
    outcome = smartmem("bench", open_file, "--shape", "x:1..7,16", *quick, "--json")
    assert outcome.code == 0, outcome.err
    for row in outcome.data["rows"]:
        ours = row["systems"]["smartmem"]
        assert ours["relative_error"] < 1e-5 and ours["kernels"] >= 2 and ours["latency_ms"]["median"] > 0
        assert ours["bytes_moved"]["weights"] > 0 == ours["layout_kernels"]


def test_a_runner_of_an_open_size_is_refused_before_it_is_compiled(open_file, smartmem, tmp_path):
    refused(
        smartmem("export", open_file, "--shape", "x:1..4,16", "--runner", "-o", tmp_path / "o"), "takes known sizes"
    )


def test_a_range_by_a_step(open_file, smartmem, tmp_path):
    assert smartmem("compile", open_file, "--shape", "x:4..12:4,16", "-o", tmp_path / "out").code == 0
    found = smartmem("inspect", tmp_path / "out")
    assert "x: float32 (1..3)*4x16" in found.out, found.out
    assert smartmem("run", tmp_path / "out", "--shape", "x:8,16", "--repeat", "1").code == 0
    refused(smartmem("run", tmp_path / "out", "--shape", "x:6,16"), "does not take x 6x16: give shapes that it takes")
    refused(smartmem("bench", open_file, "--shape", "x:4..12:4,16", "--sizes", "6"), "the model takes 4..12:4")
    refused(smartmem("plan", open_file, "--shape", "x:4..12:4,16"), "leaves a size open")
    refused(smartmem("verify", open_file, "--shape", "x:4..13:4,16"), "give both ends as multiples of the step")
    outcome = smartmem("verify", open_file, "--shape", "x:4..12:4,16", "--json")
    assert list(outcome.data["outputs"]) == [f"r1 of x {size}x16" for size in (4, 8, 12)], outcome.err


def test_a_name_with_a_colon_and_a_range_by_a_step():
    assert parse_lists(["in:0:1,8..24:4,{2,3}"]) == {"in:0": [(1,), "8..24:4", (2, 3)]}


@pytest.mark.parametrize("command", ["stats", "explain", "plan"])
def test_an_open_size_for_a_command_that_takes_one(open_file, smartmem, command):
    refused(smartmem(command, open_file, "--shape", "x:1..4,16"), "leaves a size open, and this command takes one size")


@pytest.fixture(scope="module")
def sentence_file(tmp_path_factory):
    proto = sentence()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    place = tmp_path_factory.mktemp("length") / "s.onnx"
    onnx.save(proto, place)
    return place


def test_an_open_length_from_the_command_line(sentence_file, smartmem, tmp_path):
    compiled = smartmem("compile", sentence_file, "--shape", "x:1..3,3..5", "-o", tmp_path / "out")
    assert compiled.code == 0 and "1 to 3 items of 3 to 5 positions, at capacities of 4, 5; " in compiled.out
    x = np.random.default_rng(0).integers(0, 11, (2, 5))
    np.save(tmp_path / "x.npy", x)
    chosen = ["--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz"]
    outcome = smartmem("run", tmp_path / "out", *chosen, "--repeat", "1", "--json")
    assert outcome.code == 0, outcome.err
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npz")["y"], by_onnxruntime(onnx.load(sentence_file), x), rtol=1e-4, atol=1e-5
    )
    outcome = smartmem("run", tmp_path / "out", "--shape", "x:3,4", "--repeat", "1", "--json")
    assert outcome.data["outputs"]["y"]["shape"] == [3, 8]
    refused(
        smartmem("run", tmp_path / "out", "--shape", "x:2,6"),
        "does not take x 2x6: give shapes that it takes, x (1..3)x(3..5)",
    )
    found = smartmem("inspect", tmp_path / "out")
    assert "x: int64 (1..3)x(3..5)" in found.out, found.out


def test_verify_draws_batches_and_lengths(sentence_file, smartmem):
    outcome = smartmem("verify", sentence_file, "--shape", "x:1..2,3..5", "--json")
    assert outcome.code == 0, outcome.err
    names = list(outcome.data["outputs"])
    assert names[0] == "y of x 1x3" and "y of x 2x5" in names

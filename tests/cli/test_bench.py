# SPDX-License-Identifier: Apache-2.0
"""``smartmem bench``: one tiny model measured for real, and what surrounds the measuring."""

import csv
import json
import sys
from pathlib import Path

import onnx
import pytest

from small_network import network
from smartmem_tvm.tables.suite import SUITES, Entry
from smartmem_tvm.tools.bench import plan_measurements
from smartmem_tvm.tools.bench.plan_measurements import Plan

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
from decoder_network import CONCAT, WHERE, Decoder

QUICK = ("--budget", "0.05", "--threads", "1")


@pytest.mark.device
def test_one_model_against_two_systems(smartmem, model_path, tmp_path):
    output, table = tmp_path / "r.json", tmp_path / "r.csv"
    outcome = smartmem("bench", model_path, *QUICK, "-o", output, "--csv", table, "--json")
    assert outcome.code == 0, outcome.err
    (row,) = outcome.data["rows"]
    assert json.loads(output.read_text())["rows"] == [row]
    assert (row["threads"], row["in_turns"], row["onnx_nodes"], row["onnx_layout_nodes"]) == (1, True, 7, 4)
    assert row["machine"]["cores"] >= 1
    ours, tvm, reference = (row["systems"][name] for name in ("smartmem", "tvm", "onnxruntime"))
    assert ours["kernels"] == ours["kernels_in_graph"] <= 3 < tvm["kernels"]
    assert ours["layout_kernels"] == 0 < tvm["layout_kernels"]
    assert ours["bytes_moved"]["activations"] < tvm["bytes_moved"]["activations"]
    assert 0 < ours["relative_error"] < 1e-6 and "relative_error" not in reference
    for facts in (ours, tvm, reference):
        assert 0 < facts["latency_ms"]["p10"] <= facts["latency_ms"]["median"] <= facts["latency_ms"]["p90"]
        assert facts["peak_mb"]["compile"] > 50 and facts["peak_mb"]["run"] > 50
    assert set(ours["seconds"]) == {"import", "passes", "codegen"}
    systems = [line["system"] for line in csv.DictReader(table.read_text().splitlines())]
    assert systems[:3] == ["smartmem", "tvm", "onnxruntime"]


@pytest.mark.device
def test_ablation_and_picture(smartmem, model_path, tmp_path):
    picture = tmp_path / "gains.png"
    outcome = smartmem(
        "bench", model_path, *QUICK, "--against", "none", "--ablation", "eliminate,fuse", "--plot", picture
    )
    assert outcome.code == 0, outcome.err
    assert "+ eliminate" in outcome.out and "on 1 threads" in outcome.out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.device
def test_a_suite_goes_on_after_a_failure_and_after_an_interruption(smartmem, model_path, tmp_path, monkeypatch):
    entries = tuple(Entry(name.upper(), name, None, None) for name in ("attention", "missing", "broken"))
    monkeypatch.setitem(SUITES, "smartmem18", entries)
    (tmp_path / "attention.onnx").write_bytes(model_path.read_bytes())
    (tmp_path / "broken.onnx").write_text("I am no model")
    command = ("bench", "--suite", "smartmem18", "--models", tmp_path, *QUICK, "-o", tmp_path / "r.json")
    outcome = smartmem(*command, "--json")
    assert outcome.code == 2
    good, missing, broken = outcome.data["rows"]
    assert good["systems"]["smartmem"]["kernels"] <= 3
    assert "missing.onnx" in missing["error"] and "--models" in missing["error"]
    assert "broken.onnx" in broken["error"] and broken["error"].endswith(".")
    assert [line.split(": ")[0] for line in outcome.err.splitlines()] == [
        "[1/3] ATTENTION",
        "[2/3] MISSING",
        "[3/3] BROKEN",
    ]

    measured = []
    monkeypatch.setattr(Plan, "_measure", lambda _self, target: measured.append(target.name) or {"error": "No."})
    again = smartmem(*command, "--json")
    assert again.code == 2 and measured == ["BROKEN"], "what was finished is kept"
    assert again.data["rows"][0] == good
    assert smartmem(*command, "attention", "--again", "--json").data["rows"][0]["error"] == "No."
    assert measured == ["BROKEN", "ATTENTION"]


def test_names_are_not_broken(monkeypatch, smartmem, model_path, tmp_path):
    """Long ones get a table each; figures stay whole as well."""
    facts = {"kernels": 123, "layout_kernels": 0, "latency_ms": {"median": 12345.678, "p10": 1.0, "p90": 2.0}}
    facts |= {"bytes_moved": {"activations": 10**10}, "peak_mb": {"compile": 1e4, "run": 1e4}, "slow_share": 0.5}
    found = {"systems": dict.fromkeys(["smartmem", "tvm-textures-matmul"], facts), "threads": 2, "in_turns": True}
    monkeypatch.setattr(Plan, "_measure", lambda self, network: {**found, "machine": {}})
    name = "a long name of a network.simplified.fp32 " * 2 + "end"
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(model_path.read_bytes())
    outcome = smartmem("bench", path, model_path, *QUICK)
    assert outcome.code == 0 and name in outcome.out and "smartmem bench: attention" in outcome.out
    lines = [line for line in outcome.out.splitlines() if "tvm-textures-matmul" in line and "12350.00" in line]
    assert len(lines) == 2 and all("10000.0" in line and "50.0%" in line for line in lines)
    assert name not in smartmem("bench", model_path, *QUICK).out


def test_ours_are_compiled_with_the_profile_store(smartmem, model_path, tmp_path, monkeypatch):
    """And measured again when something is in it that was not."""
    store, output = tmp_path / "store.jsonl", tmp_path / "r.json"
    store.touch()
    monkeypatch.setenv("SMARTMEM_PROFILES", str(store))
    asked = []
    monkeypatch.setattr(Plan, "_measure", lambda self, target: asked.append(self.requests(target)) or {})
    command = ("bench", model_path, "--against", "onnxruntime", "-o", output)
    for content in ("", "", "{}\n"):
        store.write_text(content)
        assert smartmem(*command).code == 0
    assert len(asked) == 2
    assert all(each["profiles"] == str(store) for each in asked[0])
    assert smartmem(*command, "--profiles", "").code == 0
    assert not any("profiles" in each for each in asked[2])
    missing = smartmem(*command, "--profiles", tmp_path / "none.jsonl")
    assert missing.code == 2 and "none.jsonl does not exist; `smartmem profile" in missing.err


@pytest.mark.device
@pytest.mark.parametrize(("form", "cache"), [(WHERE, "auto"), (CONCAT, "auto:16")])
def test_a_token_of_a_language_model(smartmem, tmp_path, form, cache):
    """Ours writes rows into caches, which are put back; the others take them, and ONNX Runtime those of the file."""
    onnx.save(Decoder(layers=1, form=form).model(), tmp_path / "model.onnx")
    outcome = smartmem("bench", tmp_path / "model.onnx", *QUICK, "--cache", cache, "--json")
    assert outcome.code == 0, outcome.err
    (row,) = outcome.data["rows"]
    for name in ("smartmem", "tvm"):
        assert 0 <= row["systems"][name]["relative_error"] < 1e-5
        assert row["systems"][name]["latency_ms"]["runs"] >= 3 and row["systems"][name]["kernels"] > 0
    written = [row["systems"][name]["bytes_moved"]["activations"] for name in ("smartmem", "tvm")]
    assert written[0] < written[1]


@pytest.mark.device
def test_one_model_on_opencl(smartmem, model_path, tmp_path):
    against = "smartmem@cpu,tvm,onnxruntime"
    output = tmp_path / "r.json"
    outcome = smartmem("bench", model_path, "--target", "opencl", "--against", against, *QUICK, "-o", output)
    assert outcome.code == 0, outcome.err
    assert "inputs and outputs on the device" in outcome.out
    (row,) = json.loads(output.read_text())["rows"]
    assert row["target"] == "opencl" and row["machine"]["devices"]["opencl"]["driver"]
    assert list(row["systems"]) == ["smartmem", *against.split(",")]
    ours, cpu, tvm, reference = row["systems"].values()
    assert "driver" in ours["seconds"] and "driver" not in cpu["seconds"]
    assert ours["kernels"] < tvm["kernels"]
    for facts in (ours, cpu, tvm):
        assert 0 < facts["relative_error"] < 1e-6 and facts["latency_ms"]["median"] > 0
    assert "latency_ms" not in reference


def test_the_sixteen_small_networks_and_the_two_large(monkeypatch):
    entries = SUITES["smartmem18"]
    networks = [entry for entry in entries if entry.paper]
    assert len(networks) == 18 and {entry.file for entry in networks if entry.large} == {"sd_unet", "pythia_1b"}
    assert len({entry.file for entry in entries}) == len(entries)


BAD = {
    "nothing": ((), "--suite"),
    "not in the suite": (("swin", "--suite", "figure8"), "vit_b16"),
    "picture without ablation": (("m.onnx", "--plot", "p.png"), "--ablation"),
    "technique": (("m.onnx", "--ablation", "magic"), "'magic'"),
    "place": (("m.onnx", "-o", "none/r.json"), "none/r.json"),
    "unknown target": (("m.onnx", "--target", "abacus"), "'abacus'"),
    "unknown target of another system": (("m.onnx", "--against", "tvm@abacus"), "'abacus'"),
    "target without a device": (("m.onnx", "--target", "cuda"), "cuda"),
    "other target without a device": (("m.onnx", "--against", "tvm@cuda"), "cuda"),
    "system": (("m.onnx", "--against", "magic"), "'magic'"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments(smartmem, monkeypatch, tmp_path, what):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_measurements, "prepare", None)
    arguments, word = BAD[what]
    outcome = smartmem("bench", *arguments)
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert outcome.err.startswith("smartmem: error: ") and word in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--budget", "0"), ("--suite", "all")])
def test_wrong_usage(smartmem, arguments):
    outcome = smartmem("bench", "m.onnx", *arguments)
    assert outcome.code == 2 and outcome.err.startswith("usage: smartmem bench")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--streams", "2"), "--streams says how many requests there are at a time; give --requests too."),
        (("--requests", "9", "--ablation"), "--ablation is for single runs"),
        (("--requests", "9", "--budget", "1"), "--budget is for single runs"),
        (("--requests", "9", "--settle", "1"), "--settle is for single runs"),
        (("--requests", "2", "--streams", "3"), "--requests 2 leaves some of --streams 3 idle"),
        (("--requests", "9", "--against", "tvm,iree"), "--requests does not measure iree, only "),
        (("--requests", "0"), "--requests"),
        (("--requests", "9999", "--streams", "9999"), "9999 streams on 1 threads each are too many for this machine"),
        (("--batch", "4", "--against", "tvm"), "--batch is checked with ONNX Runtime's results for each sample"),
    ],
)
def test_options_that_do_not_go_together(smartmem, model_path, options, sentence):
    outcome = smartmem("bench", model_path, *options)
    assert outcome.code == 2 and sentence in outcome.err and not outcome.out


@pytest.mark.device
def test_a_batch_that_mixes_its_samples_is_an_error(smartmem, tmp_path):
    """Found by ONNX Runtime, and no other system's figures are shown for it."""
    nodes = [onnx.helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "mixes", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, tmp_path / "mixes.onnx")
    command = ("bench", tmp_path / "mixes.onnx", *QUICK, "--batch", "2", "--against", "onnxruntime", "--json")
    outcome = smartmem(*command)
    (row,) = outcome.data["rows"]
    assert outcome.code == 2 and "is another one for a batch than for its samples" in row["error"]
    assert "systems" not in row


@pytest.mark.device
def test_requests_to_two_systems(smartmem, tmp_path):
    onnx.save(network(), tmp_path / "small.onnx")
    command = ("bench", tmp_path / "small.onnx", "--requests", "20", "--streams", "2", "--batch", "2", "--threads", "2")
    outcome = smartmem(*command, "-o", tmp_path / "r.json", "--json")
    assert outcome.code == 0, outcome.err
    (row,) = outcome.data["rows"]
    assert (row["streams"], row["batch"], list(row["systems"])) == (2, 2, ["smartmem", "tvm", "onnxruntime"])
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == [row]
    for facts in row["systems"].values():
        rates = facts["throughput"]
        assert rates["per_second"] > 0 and 0 < rates["p50"] <= rates["p90"] <= rates["p99"]
        assert rates["requests"] == 20 and len(rates["by_round"]) == 2
    assert 0 < row["systems"]["smartmem"]["relative_error"] < 1e-5

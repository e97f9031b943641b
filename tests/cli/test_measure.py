# SPDX-License-Identifier: Apache-2.0
"""``smartmem measure``: a compiled folder on a device of another process."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from matmul_model import matmuls
from open_models import sentence
from rpc_processes import device, tracker

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
from decoder_network import CONCAT, TENSOR, WHERE, Decoder

SMALL = ("--runs", 8, "--warm-up", 1, "--replays", 3)


def perceptron(path, seed=0):
    return matmuls(path, (32, 64), (64, 24), seed=seed)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("device")
    with tracker(folder) as started, device(folder, started, "here"):
        yield started.address


@pytest.fixture
def compiled(smartmem, tmp_path):
    """The model, and a function that compiles it for a target."""

    def for_target(target):
        outcome = smartmem("compile", model, "--target", target, "-o", tmp_path / "out", "--json")
        assert outcome.code == 0, outcome.err
        return tmp_path / "out"

    model = perceptron(tmp_path / "model.onnx")
    return for_target


@pytest.mark.parametrize(("target", "kind"), [("cpu", "cpu"), ("opencl", "opencl"), ("opencl-texture", "opencl")])
def test_latency_kernels_determinism_and_outputs(smartmem, compiled, address, target, kind):
    found = smartmem("measure", compiled(target), "--tracker", address, "--key", "here", *SMALL, "--layers", "--json")
    assert found.code == 0, found.err
    data = found.data
    assert data["device"]["kind"] == kind and data["device"]["name"] and data["device"]["server"]["tvm"]
    launches = None if kind == "cpu" else 2
    assert data["launches"] == launches and (data["host_us_per_launch"] or 0) * (launches or 0) == pytest.approx(
        (data["host_ms"] or 0) * 1e3
    )
    assert data["threads"] is None if kind == "opencl" else data["threads"] >= 1
    latency = data["latency_ms"]
    assert 0 < latency["min"] <= latency["p10"] <= latency["median"] <= latency["p99"] <= latency["max"]
    assert latency["runs"] == 8 and data["replays"] == 3 and data["deterministic"]
    assert sum(each["share"] for each in data["kernels"]) == pytest.approx(1) and data["layout_share"] == 0
    assert [each["launches"] for each in data["kernels"]] == [1, 1]
    assert data["correct"] and data["outputs"]["y1"]["max_rel_err"] < 1e-5
    assert len(data["layers"]) == 2 and not any(each["wrong"] for each in data["layers"])


@pytest.mark.device
@pytest.mark.parametrize("way", ["launches", "command-buffer"])
def test_what_the_host_takes_for_a_launch_by_each_way(smartmem, tmp_path, way):
    model, folder = matmuls(tmp_path / "deep.onnx", *[(64, 64)] * 6), tmp_path / "out"
    assert smartmem("compile", model, "--target", "opencl", "-o", folder).code == 0
    with tracker(tmp_path) as started, device(tmp_path, started, "here", SMARTMEM_OPENCL_REPLAY=way):
        command = ("measure", folder, "--tracker", started.address, "--key", "here", *SMALL)
        data, shown = smartmem(*command, "--json").data, smartmem(*command)
    assert (data["device"]["replay"], data["launches"]) == (way, 6) and data["correct"] and data["deterministic"]
    assert data["host_us_per_launch"] == pytest.approx(data["host_ms"] * 1e3 / 6)
    assert f"us each (recorded ones by {way})." in " ".join(shown.out.split())


def test_what_it_prints_and_other_weights_are_wrong(smartmem, compiled, address, tmp_path):
    where = ("--tracker", address, "--key", "here", *SMALL)
    shown = smartmem("measure", folder := compiled("cpu"), *where)
    assert shown.code == 0 and "Layout operators take 0.0%" in shown.out and "as ONNX Runtime's" in shown.out
    other = perceptron(tmp_path / "other.onnx", seed=1)
    wrong = smartmem("measure", folder, *where, "--model", other, "--json")
    assert wrong.code == 1 and not wrong.data["correct"] and wrong.data["outputs"]["y1"]["max_rel_err"] > 0.1


def test_a_row_for_each_size(smartmem, symbolic_path, address, tmp_path):
    where = ("--tracker", address, "--key", "here", *SMALL)
    assert smartmem("compile", symbolic_path, "--shape", "x:{1,3},4,8", "-o", tmp_path / "out").code == 0
    found = smartmem("measure", tmp_path / "out", *where, "--json")
    assert found.code == 0, found.err
    assert [each["size"] for each in found.data["sizes"]] == ["x 1x4x8", "x 3x4x8"]
    for each in found.data["sizes"]:
        assert each["correct"] and each["deterministic"] and each["latency_ms"]["runs"] == 8
        assert 0 < sum(kernel["launches"] for kernel in each["kernels"]) <= 3, "the kernels of one size"
    shown = smartmem("measure", tmp_path / "out", *where)
    assert shown.code == 0 and "x 1x4x8" in shown.out and "x 3x4x8" in shown.out
    arrays = ("--input", tmp_path / "x.npy")
    refused = smartmem("measure", tmp_path / "out", *where, *arrays)
    assert refused.code == 2 and "has arrays of one size" in refused.err


@pytest.mark.device
@pytest.mark.parametrize("target", ["cpu", "opencl"])
def test_some_sizes_of_an_open_batch_and_an_open_length(smartmem, address, tmp_path, target):
    proto = sentence()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(proto, tmp_path / "m.onnx")
    shape = ("--shape", "x:1..3,3..5", "--target", target)
    assert smartmem("compile", tmp_path / "m.onnx", *shape, "-o", tmp_path / "out").code == 0
    where = ("--tracker", address, "--key", "here", *SMALL)
    found = smartmem("measure", tmp_path / "out", *where, "--sizes", "1x3,3x5", "--json")
    assert found.code == 0, found.err
    one, three = found.data["sizes"]
    assert (one["size"], three["size"]) == ("x 1x3", "x 3x5")
    assert one["correct"] and three["correct"] and three["deterministic"] and three["latency_ms"]["runs"] == 8
    counts = [sum(kernel["launches"] for kernel in each["kernels"]) for each in (one, three)]
    assert counts[1] == 3 * counts[0] > 0, "an item after the other"
    np.save(tmp_path / "x.npy", np.ones((2, 4), "int64"))
    found = smartmem("measure", tmp_path / "out", *where, "--input", tmp_path / "x.npy", "--json")
    assert [each["size"] for each in found.data["sizes"]] == ["x 2x4"] and found.code == 0
    for wrong, said in ((("--sizes", "4x3"), "names '4x3'"), (("--layers",), "has an open dimension")):
        refused = smartmem("measure", tmp_path / "out", *where, *wrong)
        assert refused.code == 2 and said in refused.err and refused.err.count("\n") == 1


def test_kernels_that_take_longer_than_the_network(smartmem, compiled, address, monkeypatch):
    launch = "smartmem_tvm.remote.deployed.Deployed._launch_seconds"
    where = ("--tracker", address, "--key", "here", *SMALL)
    folder = compiled("cpu")
    for seconds, said in ((1.0, True), (1e-9, False)):
        monkeypatch.setattr(launch, lambda *_, seconds=seconds: seconds)
        shown = smartmem("measure", folder, *where)
        assert shown.code == 0
        assert ("Warning: kernels by themselves add up to 2000.00 ms, more than" in " ".join(shown.out.split())) is said


@pytest.mark.device
def test_refusals_name_the_remedy(smartmem, compiled, address, tmp_path):
    where = ("--tracker", address, "--key", "here")
    folder = compiled("cpu")
    (tmp_path / "model.onnx").rename(tmp_path / "moved.onnx")
    gone = smartmem("measure", folder, *where)
    assert gone.code == 2 and "--model FILE" in gone.err
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "host": "riscv64-linux-gnu", "cpu": ""}))
    foreign = smartmem("measure", folder, *where, "--model", tmp_path / "moved.onnx")
    assert foreign.code == 2 and "compiled for riscv64" in foreign.err and "use another key" in foreign.err
    (folder / "lib.so").write_bytes(b"changed")
    changed = smartmem("measure", folder, *where, "--model", tmp_path / "moved.onnx")
    assert changed.code == 2 and "not the one that was compiled" in changed.err
    empty = smartmem("measure", tmp_path, *where)
    assert empty.code == 2 and "holds no compiled model" in empty.err


@pytest.mark.parametrize(
    ("form", "target", "rows"), [(TENSOR, "cpu", ""), (WHERE, "opencl", ""), (CONCAT, "cpu", ":16")]
)
def test_caches_are_put_back(smartmem, address, tmp_path, form, target, rows):
    """Each inference finds them as they were, and gives them with its rows as the file does."""
    sizes = "{1,4}" if form == TENSOR else "1"
    onnx.save(Decoder(layers=1, tokens="tokens", form=form).model(), tmp_path / "model.onnx")
    shapes = [word for name in ("input_ids", "position_ids") for word in ("--shape", f"{name}:1,{sizes}")]
    plain = ("--no-schedule", "--no-fuse-attention") if target == "cpu" else ()
    folder, cache = tmp_path / "out", ("--cache", f"auto{rows}", "--target", target, *plain)
    outcome = smartmem("compile", tmp_path / "model.onnx", "-o", folder, *cache, *shapes)
    assert outcome.code == 0, outcome.err
    assert json.loads((folder / "manifest.json").read_text()).get("rows") == (16 if rows else None)
    found = smartmem("measure", folder, "--tracker", address, "--key", "here", *SMALL, "--json")
    assert found.code == 0, found.err
    measured = found.data.get("sizes", [found.data])
    assert len(measured) == (2 if form == TENSOR else 1)
    for each in measured:
        assert each["correct"] and each["deterministic"] and each["latency_ms"]["runs"] == 8
        assert {"logits", "present.0.key", "present.0.value"} == set(each["outputs"])

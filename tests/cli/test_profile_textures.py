# SPDX-License-Identifier: Apache-2.0
"""``smartmem profile`` for a device with textures: each kernel in buffers and in textures, and what becomes of that."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from at_once import AtOnce
from smartmem_tvm.deploy import texture_times, this_machine
from smartmem_tvm.deploy.texture_times import TextureTimes
from smartmem_tvm.tune import host

TARGET = ("--target", "opencl-texture")


@pytest.fixture
def network(tmp_path):
    """Two convolutions with a maximum between them: three kernels."""
    random = np.random.default_rng(1)
    shapes = {"first": (16, 8, 3, 3), "second": (8, 16, 1, 1)}
    weights = [numpy_helper.from_array(random.standard_normal(s).astype("float32"), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1], name="conv1"),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2], name="pool"),
        helper.make_node("Conv", ["b", "second"], ["y"], name="conv2"),
    ]
    values = {"x": [1, 8, 16, 16], "y": [1, 8, 8, 8]}
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in values.items())
    graph = helper.make_graph(nodes, "convs", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "c.onnx")
    return tmp_path / "c.onnx"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The store of all commands, which does not exist yet."""
    path = tmp_path / "gpu.jsonl"
    monkeypatch.setenv(host.STORE_VARIABLE, str(path))
    return path


@pytest.fixture
def times(monkeypatch):
    """Have a texture cost a kernel so many seconds, may it be negative, in place of what is measured."""

    def cost(each: float, after: int = 10**9):
        calls = []

        def measure(_self, kernel, _scheduled) -> float:
            calls.append(kernel)
            if len(calls) > after:
                raise KeyboardInterrupt
            return 1e-3 + each * sum("texture" in param.scope() for param in kernel.params)

        monkeypatch.setattr(TextureTimes, "_measure", measure)
        return calls

    return cost


def records(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def profile(smartmem, network, *more) -> dict:
    outcome = smartmem("profile", network, *TARGET, "--json", *more)
    assert outcome.code == 0, outcome.err
    return outcome.data


def memory(smartmem, network) -> dict[str, dict]:
    """Tensor -> where `explain` says it is, of those that kernels share and the weights."""
    found = smartmem("explain", network, *TARGET, "--json")
    assert found.code == 0, found.err
    return {each["tensor"]: each for each in found.data["decisions"] if each["pass"] == "PlaceTextures"}


@pytest.mark.device
def test_both_forms_are_measured_on_the_device_once(smartmem, network, store):
    data = profile(smartmem, network)
    textures, kept = data["textures"], records(store)
    assert (textures["failed"], textures["unanswered"]) == (0, 0)
    assert textures["measured_now"] == len(kept) == data["kernels_in_store"] > data["kernels"]["profile"]
    with_textures = [each for each in kept if "@texture" in each["operands"]]
    assert 0 < len(with_textures) < len(kept)
    assert all(each["device"] == data["device"] and "cpu" not in each for each in kept)
    assert all(0 < each["seconds"] < 10 for each in kept)

    again = profile(smartmem, network)
    assert again["textures"] == {**textures, "measured_now": 0}
    assert len(records(store)) == len(kept)

    found = list(memory(smartmem, network).values())
    for kind in ("texture", "buffer"):
        assert sum(each["memory"] == kind for each in found) == textures[kind]


def test_what_is_slower_in_a_texture_stays_in_a_buffer_and_the_plan_says_so(smartmem, network, store, times):
    times(+1e-4)
    textures = profile(smartmem, network)["textures"]
    assert textures["texture"] == 0
    found = memory(smartmem, network)
    reasons = [each["reason"] for each in found.values() if each["reason"].startswith("measured ")]
    assert len(reasons) == 4, "two tensors between kernels, two weights"
    assert all(" us in a texture, " in each and " us in a buffer: " in each for each in reasons)
    outcome = smartmem("explain", network, *TARGET)
    assert "measured 2200 us in a texture, 2000 us in a buffer" in " ".join(outcome.out.split())


def test_what_is_faster_in_a_texture_goes_there(smartmem, network, store, times):
    times(-1e-4)
    assert profile(smartmem, network)["textures"]["texture"] == 4
    assert sum(each["memory"] == "texture" for each in memory(smartmem, network).values()) == 4


def test_without_a_store_for_the_device_nothing_is_measured(smartmem, network, store, times):
    times(+1e-4)
    profile(smartmem, network)
    store.write_text(store.read_text().replace('"device": "', '"device": "another '))
    assert not any(each.get("reason", "").startswith("measured") for each in memory(smartmem, network).values())


def test_an_interrupted_run_keeps_what_it_measured(smartmem, network, store, times):
    times(+1e-4, after=3)
    assert smartmem("profile", network, *TARGET).code != 0
    assert len(records(store)) == 3
    calls = times(+1e-4)
    assert profile(smartmem, network)["textures"]["measured_now"] == len(calls) == len(records(store)) - 3 > 0


def test_a_budget_may_be_too_short(smartmem, network, store):
    outcome = smartmem("profile", network, *TARGET, "--budget", 1e-9)
    assert outcome.code == 0
    assert "run the command again to go on" in outcome.out
    assert not store.exists()


def test_a_kernel_that_cannot_be_measured_ends_nothing(smartmem, network, store, monkeypatch):
    monkeypatch.setattr(this_machine, "measuring_worker", lambda *_, **__: AtOnce())
    monkeypatch.setattr(texture_times, "kernel_seconds", lambda *_: 1 / 0)
    outcome = smartmem("profile", network, *TARGET, "--json")
    assert outcome.code == 0
    assert outcome.data["textures"]["failed"] > 0 and outcome.data["textures"]["texture"] > 0
    assert "a kernel could not be measured (ZeroDivisionError: division by zero)" in outcome.err


def test_targets_whose_device_is_elsewhere_cannot_be_measured_here(smartmem, network, store):
    outcome = smartmem("profile", network, "--target", "adreno-740")
    assert outcome.code == 2
    assert "is the device of another machine" in outcome.err

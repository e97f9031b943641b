# SPDX-License-Identifier: Apache-2.0
"""``smartmem profile --tracker``: measured on devices of other processes, found by compilations here."""

import json
import os
import signal
import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from at_once import AtOnce
from rpc_processes import device, tracker, until
from smartmem_tvm.deploy import kernel_latency
from smartmem_tvm.executor import workers
from smartmem_tvm.remote import tracked_devices, tuning
from smartmem_tvm.remote.keys import tracker_state
from smartmem_tvm.remote.tracked_devices import RemoteDevice
from smartmem_tvm.remote.wire import parse_address
from smartmem_tvm.tune import host
from smartmem_tvm.tune.profile_store import ProfileStore

GATES = (24, 32, 40, 48)


@pytest.fixture
def gates(tmp_path):
    """As many matmuls, each scaled row by row: as many questions, which are independent of each other."""
    random, nodes, weights, inputs, last, width = np.random.default_rng(1), [], [], {"x": [8, 16]}, "x", 16
    for number, columns in enumerate(GATES):
        weight = random.standard_normal((width, columns)).astype("float32")
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Mul", [f"m{number}", f"g{number}"], [f"y{number}"]))
        inputs[f"g{number}"], last, width = [8, 1], f"y{number}", columns
    return saved(nodes, inputs, {last: [8, width]}, weights, tmp_path / "gates.onnx")


@pytest.fixture
def convolutions(tmp_path):
    """Two with a maximum between them: three kernels."""
    random = np.random.default_rng(1)
    shapes = {"first": (16, 8, 3, 3), "second": (8, 16, 1, 1)}
    weights = [numpy_helper.from_array(random.standard_normal(s).astype("float32"), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["b", "second"], ["y"]),
    ]
    return saved(nodes, {"x": [1, 8, 16, 16]}, {"y": [1, 8, 8, 8]}, weights, tmp_path / "convolutions.onnx")


def saved(nodes, inputs, outputs, weights, path):
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in each.items()]
        for each in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "network", *values, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    with tracker(tmp_path_factory.mktemp("tracker")) as started:
        yield started


@pytest.fixture(scope="module")
def two(known, tmp_path_factory):
    """Options that name two devices of one key."""
    folder = tmp_path_factory.mktemp("two")
    with device(folder, known, "two"), device(folder, known, "two"):
        yield ("--tracker", known.address, "--key", "two")


@pytest.fixture
def mortal(known, tmp_path):
    """A function that starts devices of a key, and returns them and the options that name them."""
    with ExitStack() as running:

        def start(key, count):
            servers = [running.enter_context(device(tmp_path, known, key)) for _ in range(count)]
            return servers, ("--tracker", known.address, "--key", key, "--timeout", 20)

        yield start


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The store of all commands, which does not exist yet."""
    path = tmp_path / "store.jsonl"
    monkeypatch.setenv(host.STORE_VARIABLE, str(path))
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    return path


def records(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def profile(smartmem, *arguments) -> dict:
    outcome = smartmem("profile", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    return outcome.data


@pytest.mark.device
def test_two_devices_share_the_questions_and_compilations_here_find_the_answers(smartmem, gates, store, two):
    data = profile(smartmem, gates, *two, "--threads", 1)
    assert data["questions"] == data["measured_now"] == len(GATES) and data["failed"] == data["unanswered"] == 0
    assert len(data["servers"]) == 2 and sum(data["servers"].values()) == len(GATES)
    assert (data["device"], data["cpu"], data["threads"]) == (None, host.cpu_name(), 1)
    assert len(records(store)) == data["kernels_in_store"] == 3 * len(GATES)
    assert all(each["threads"] == 1 and 0 < each["seconds"] < 1 for each in records(store))

    # This machine is the device, too.
    assert profile(smartmem, gates)["measured_now"] == 0
    decided = [each["decided_by"] for each in smartmem("explain", gates, "--json").data["decisions"]]
    assert sum(by.startswith("profile: ") for by in decided) == len(GATES)


@pytest.fixture
def at_once(monkeypatch):
    """Workers do their jobs in this process, where a test can meddle with them."""
    monkeypatch.setattr(workers, "Workers", lambda count, *_, **__: AtOnce(count))


@pytest.mark.device
def test_a_question_has_all_its_kernels_on_one_device(smartmem, gates, store, two, at_once, monkeypatch):
    seen = []
    in_turns = kernel_latency.in_turns
    monkeypatch.setattr(
        kernel_latency, "in_turns", lambda clocks, how: seen.append(len(clocks)) or in_turns(clocks, how)
    )
    data = profile(smartmem, gates, *two, "--threads", 1)
    assert seen == [3] * len(GATES)
    sessions = [each["together"] for each in records(store)]
    assert sorted(sessions.count(each) for each in set(sessions)) == [3] * len(GATES) == [3] * data["questions"]


@pytest.mark.device
def test_textures_are_measured_there(smartmem, convolutions, store, two):
    arguments = (convolutions, "--target", "opencl-texture")
    data = profile(smartmem, *arguments, *two)
    textures, kept = data["textures"], records(store)
    assert (textures["failed"], textures["unanswered"]) == (0, 0)
    assert textures["measured_now"] == len(kept) == sum(data["servers"].values())
    assert len(data["servers"]) == 2
    assert 0 < len([each for each in kept if "@texture" in each["operands"]]) < len(kept)
    assert all(each["device"] == data["device"] and "cpu" not in each for each in kept)

    here = profile(smartmem, *arguments)
    assert here["textures"] == {**textures, "measured_now": 0} and here["device"] == data["device"]


@pytest.mark.device
def test_the_name_of_another_cpu_is_its_targets_and_compilations_find_it(
    smartmem, gates, store, two, tmp_path, monkeypatch
):
    """A CPU whose code every machine can run, and that none is."""
    monkeypatch.delenv(host.STORE_VARIABLE)
    monkeypatch.chdir(tmp_path)
    target = ("--target", '{"kind": "llvm", "mcpu": "x86-64"}')
    data = profile(smartmem, gates, *two, *target)
    assert data["store"] == "tuning_logs/x86_64.jsonl" and data["cpu"] == "x86-64" and data["threads"] >= 1
    assert {each["cpu"] for each in records(tmp_path / data["store"])} == {"x86-64"}
    decided = [each["decided_by"] for each in smartmem("explain", gates, *target, "--json").data["decisions"]]
    assert sum(by.startswith("profile: ") for by in decided) == len(GATES)


@pytest.mark.device
def test_a_device_that_ends_in_the_middle_costs_no_answer(smartmem, gates, store, mortal, at_once, monkeypatch):
    servers, where = mortal("dying", 2)
    by_address, clock, ended = {each.address: each for each in servers}, RemoteDevice.clock, []

    def dying(self, *given, **named):
        if not ended:
            ended.append(self.address)
            by_address[self.address].end(signal.SIGKILL)
        return clock(self, *given, **named)

    monkeypatch.setattr(RemoteDevice, "clock", dying)
    data = profile(smartmem, gates, *where, "--threads", 1)
    assert ended and ended[0] not in data["servers"]
    assert data["measured_now"] == len(GATES) and data["failed"] == 0
    assert data["damaged_lines"] == 0 and len(records(store)) == 3 * len(GATES)


@pytest.mark.device
def test_a_device_that_is_killed_while_workers_use_it_costs_no_answer(smartmem, gates, store, mortal):
    servers, where = mortal("killed", 2)

    def kill():
        until(store.exists)
        servers[0].end(signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    data = profile(smartmem, gates, *where, "--threads", 1)
    killing.join()
    assert data["measured_now"] == len(GATES) and data["failed"] == 0
    assert data["damaged_lines"] == 0 and len(records(store)) == 3 * len(GATES)


@pytest.mark.device
def test_without_any_device_left_it_ends_and_keeps_what_it_has(smartmem, gates, store, known, mortal, monkeypatch):
    (only,), where = mortal("last", 1)
    add, added = ProfileStore.add, []

    def end_after_one_question(self, *given, **named):
        add(self, *given, **named)
        added.append(given)
        if len(added) == 3:
            only.end(signal.SIGKILL)
            # TVM's tracker does not forget who has asked for a device.
            until(lambda: not getattr(tracker_state(parse_address(known.address)).get("last"), "total", 0))

    monkeypatch.setattr(ProfileStore, "add", end_after_one_question)
    outcome = smartmem("profile", gates, *where, "--threads", 1, "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "has the key last" in outcome.err
    assert 3 <= len(records(store)) < 3 * len(GATES)

    monkeypatch.setattr(ProfileStore, "add", add)
    count = len(records(store)) // 3
    _, where = mortal("last", 1)
    again = profile(smartmem, gates, *where, "--threads", 1)
    assert again["measured_now"] == len(GATES) - count and again["damaged_lines"] == 0


def test_kernels_that_crash_every_device_are_left_to_the_cost_model(
    smartmem, gates, store, mortal, at_once, monkeypatch
):
    (only,), where = mortal("crashing", 1)
    in_turns, crashed = kernel_latency.in_turns, []

    def crash(clocks, how):
        if len(crashed) < 2:
            crashed.extend(only.sessions())
            os.kill(crashed[-1], signal.SIGKILL)
        return in_turns(clocks, how)

    monkeypatch.setattr(kernel_latency, "in_turns", crash)
    devices = partial(tracked_devices.TrackedDevices, tries=2, cool_down=0.1)
    monkeypatch.setattr(tracked_devices, "TrackedDevices", devices)
    outcome = smartmem("profile", gates, *where, "--threads", 1, "--json")
    assert outcome.code == 0, outcome.err
    assert (outcome.data["failed"], outcome.data["measured_now"]) == (1, len(GATES) - 1)
    assert "what ran there crashed" in outcome.err and "the cost model decides about it" in outcome.err


@pytest.mark.device
def test_people_are_told_who_measured(smartmem, gates, store, two):
    outcome = smartmem("profile", gates, *two, "--threads", 1)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("Measured by 127.0.0.1:") == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tracker", "ADDRESS"], "Option --tracker needs --key"),
        (["--key", "two"], "Option --key needs --tracker"),
        (["--tracker", "ADDRESS", "--key", "two", "--target", "cuda"], "has no device cuda:0"),
        (["--tracker", "ADDRESS", "--key", "two", "--target", "adreno-740"], "compiled for aarch64"),
    ],
)
def test_bad_input(smartmem, gates, store, two, options, words):
    outcome = smartmem("profile", gates, *(two[1] if each == "ADDRESS" else each for each in options))
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err and outcome.err.count("\n") == 1
    assert not store.exists()


@pytest.mark.device
def test_a_cpu_that_tells_no_name_goes_by_its_key(smartmem, gates, store, two, monkeypatch):
    """As that of a server of TVM's own."""
    find = tuning.find
    monkeypatch.setattr(tuning, "find", lambda *given: replace(find(*given), name="cpu"))
    assert profile(smartmem, gates, *two)["cpu"] == "two"
    assert {each["cpu"] for each in records(store)} == {"two"}

# SPDX-License-Identifier: Apache-2.0
"""What is measured of a network: which systems, with which options, on which targets."""

from dataclasses import fields

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.pipeline import Options
from smartmem_tvm.tools.bench.names import parse_systems
from smartmem_tvm.tools.bench.plan_measurements import Network, Plan, techniques
from smartmem_tvm.tools.bench.turns import RunEffort


def plan(**changes) -> Plan:
    settings = {"target": "cpu", "ablation": None, "shapes": {}, "threads": 1, "seed": 0, "against": "tvm", **changes}
    settings["against"] = parse_systems(settings["against"], settings["target"])
    return Plan(**settings, effort=RunEffort(), patience=10)


def test_every_switch_of_the_pipeline_can_be_ablated(tmp_path):
    switches = [field.name for field in fields(Options) if field.default is True]
    assert set(techniques()) == set(switches) - {"schedule"}
    assert techniques(["schedule", "fuse"]) == ("schedule", "fuse")
    with pytest.raises(UserError, match=r"'magic'.*eliminate"):
        techniques(["magic"])


def test_systems_of_an_ablation(tmp_path):
    network = Network("M", "m", tmp_path / "m.onnx")
    requests = {each["system"]: each for each in plan(ablation=("eliminate", "fuse")).requests(network)}
    off = {"-eliminate -fuse": {"eliminate": False, "fuse": False}, "-fuse": {"fuse": False}, "smartmem": {}}
    assert list(requests)[:2] == ["smartmem", "tvm"], "ours first: it brings the inputs"
    assert {name: requests[name]["options"] for name in off} == off
    asked = [each["system"] for each in plan().requests(network)]
    assert asked == ["smartmem", "tvm"], "nothing that was not asked for"


def test_what_targets_ask_for(tmp_path):
    path = tmp_path / "m.onnx"
    assert [each["system"] for each in plan().requests(Network("M", "m", path, compile_only=True))] == ["smartmem"]
    systems = [each["system"] for each in plan().requests(Network("M", "m", path, unscheduled=True))]
    assert systems[:3] == ["smartmem", "tvm", "tvm-unscheduled"]


def test_what_a_gpu_is_asked_for(tmp_path):
    devices = {"cuda": {"name": "G"}, "opencl": {"name": "G"}}
    names = ["no-cuda-graph", "smartmem@opencl", "tvm", "tvm@opencl", "onnxruntime"]
    network = Network("M", "m", tmp_path / "m.onnx", unscheduled=True)
    found = plan(target="cuda", against=",".join(names), devices=devices).requests(network)
    assert [each["system"] for each in found] == ["smartmem", *names], "nothing is only counted"
    assert [each["target"] for each in found] == ["cuda", "cuda", "opencl", "cuda", "opencl", "cpu"]
    assert [each["kind"] for each in found] == ["smartmem", "smartmem", "smartmem", "tvm", "tvm", "onnxruntime"]
    assert [each["system"] for each in found if each.get("untimed")] == ["onnxruntime"]
    assert found[1]["options"] == {"cuda_graph": False}

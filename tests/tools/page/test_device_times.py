# SPDX-License-Identifier: Apache-2.0
"""Devices side by side: what measurements and benchmarks say, whichever fields they have."""

from smartmem_tvm.tools.page.device_times import ablations, comparison, kernel_times, machine_codes, winner_names

ROW = {
    "model": "net",
    "name": "Net",
    "machine": {"cpu": "A CPU", "cores": 4},
    "systems": {
        "smartmem": {"kernels": 3, "latency_ms": {"median": 2.0}, "bytes_moved": {"activations": 8}},
        "other": {"latency_ms": {"median": 4.0}, "device": "A GPU"},
        "broken": {"error": "it failed"},
        "-fuse": {"kernels": 5, "latency_ms": {"median": 3.0}},
    },
    "ablation": [{"added": None, "system": "-fuse"}, {"added": "fuse", "system": "smartmem"}],
}


def test_rows_of_a_benchmark():
    found = comparison([], [("b.json", ROW)])
    assert [(each["system"], each["device"], each["median"]) for each in found] == [
        ("smartmem", "A CPU, 4 threads", 2.0),
        ("other", "A GPU", 4.0),
    ]


def test_a_measurement():
    kernels = [{"kernel": "a", "seconds": 1.0, "launches": 2}, {"kernel": "b", "seconds": 3.0, "launches": 1}]
    told = {"model": "m/net.onnx", "key": "k", "device": {"name": "Phone"}, "latency_ms": {"p99": 9.0}}
    (found,) = comparison([("p.json", {**told, "kernels": kernels, "relative_error": 1e-3})], [])
    assert (found["model"], found["device"], found["p99"], found["kernels"]) == ("net", "Phone (k)", 9.0, 3)
    assert (found["relative_error"], found["deterministic"], found["median"]) == (1e-3, None, None)


def test_a_measurement_of_a_folder_is_one_of_its_network():
    outputs = {"y": {"max_rel_err": 0.5}, "z": {"max_rel_err": 0.25}}
    told = {"folder": "/elsewhere/out", "latency_ms": {}, "outputs": outputs, "correct": False, "deterministic": True}
    (found,) = comparison([("p.json", told)], [], [{"folder": "here/out", "name": "net"}])
    assert (found["model"], found["relative_error"], found["correct"]) == ("net", 0.5, False)
    (other,) = comparison([("p.json", told)], [], [])
    assert other["model"] == other["folder"] == "out" and (other["deterministic"], other["wrong"]) == (True, None)


def test_kernels_that_are_wrong_by_themselves_are_named():
    layers = [{"kernels": ["a"], "wrong": ""}, {"kernels": ["b", "c"], "wrong": "output 0 differs"}]
    for listed, expected in ((layers, ["b", "c"]), (layers[:1], [])):
        (found,) = comparison([("p.json", {"folder": "out", "latency_ms": {}, "layers": listed})], [])
        assert found["wrong"] == expected


def test_kernels_are_those_of_this_model_and_target():
    network = {"name": "net", "folder": "out", "kernels": [{"kernel": "a"}, {"kernel": "b"}]}
    mine = {"model": "net.onnx", "kernels": [{"kernel": "a", "seconds": 1.0}, {"kernel": "b", "seconds": 3.0}]}
    other = {"model": "net.onnx", "kernels": [{"kernel": "a", "seconds": 1.0}, {"kernel": "z", "seconds": 3.0}]}
    (found,) = kernel_times([("x", mine), ("y", other), ("z", {**mine, "model": "else.onnx"})], network)
    assert found["file"] == "x" and found["total"] == 4.0
    assert found["kernels"]["b"] == {"seconds": 3.0, "launches": None, "share": 0.75}


def test_kernels_bring_their_bounds():
    network = {"name": "net", "folder": "out", "kernels": [{"kernel": "a"}, {"kernel": "b"}]}
    bound = {"bound_seconds": 0.25, "bound_by": "memory", "of_roofline": 0.25, "off": None, "work": {}}
    kernels = [{"kernel": "a", "seconds": 1.0, **bound}, {"kernel": "b", "seconds": 3.0, "bound_seconds": None}]
    (found,) = kernel_times([("x", {"model": "net.onnx", "kernels": kernels})], network)
    times = {"seconds": 1.0, "launches": None, "share": 0.25}
    assert found["kernels"]["a"] == {**times, "bound": 0.25, "bound_by": "memory", "of_roofline": 0.25}
    assert found["kernels"]["b"] == {"seconds": 3.0, "launches": None, "share": 0.75}


def test_machine_code_is_that_of_this_model_and_target():
    network = {"name": "net", "folder": "out", "kernels": [{"kernel": "a"}, {"kernel": "b"}]}
    code = {
        "registers": 48,
        "waves": 4,
        "limited_by": "registers",
        "scratch": 0,
        "instructions": 9,
        "issue_seconds": 1.0,
    }
    kernels = [{"kernel": "a", "seconds": None, "machine_code": code}, {"kernel": "b", "seconds": None}]
    mine = {"model": "net.onnx", "mesa": "26.2", "kernels": kernels}
    other = {**mine, "kernels": [{**kernels[0], "kernel": "z"}]}
    found = machine_codes([("x", mine), ("y", other), ("z", {**mine, "model": "else.onnx"})], network)
    assert found == [{"file": "x", "mesa": "26.2", "kernels": {"a": code}}]
    assert kernel_times([("x", mine)], network) == []


def test_steps_of_an_ablation():
    (found,) = ablations([("b.json", ROW), ("c.json", {"model": "plain", "systems": {}})])
    assert found["model"] == "Net"
    assert [(each["added"], each["kernels"], each["median"]) for each in found["steps"]] == [
        (None, 5, 3.0),
        ("fuse", 3, 2.0),
    ]


def test_names_of_winners():
    tuned = {"tuning": {"gains": {"matmul": {"seconds": 1e-5, "gain": 2.0}}}}
    assert winner_names([("f", tuned, {}), ("g", {}, {})]) == {1e-5: "matmul"}

# SPDX-License-Identifier: Apache-2.0
"""Curves of tuning, from made-up records."""

from smartmem_tvm.tools.page.search_curves import curves


def run(name, device="gpu"):
    about = {"date": "", "command": "", "target": {}, "threads": None, "tvm": "", "schedules": 1, "strategy": "genetic"}
    return {"run": name, "device": device, **about}


def tried(number, seconds, name="r", workload="w"):
    arguments = [["TENSOR", "float32", [4, 8]], ["TENSOR", "float32", [8]]]
    return {"record": number, "workload": workload, "run": name, "seconds": seconds, "trace": 0, "arguments": arguments}


def winner(number, seconds, untuned, name="r", workload="w"):
    return {"winner": number, "workload": workload, "run": name, "seconds": seconds, "untuned": untuned}


def test_the_best_until_each_candidate():
    lines = [run("r"), tried("a", []), tried("b", [3.0, 1.0, 2.0]), tried("c", [5.0]), tried("d", [1.0])]
    (found,) = curves([("f", lines)], {})
    assert found["seconds"] == [None, 2.0, 5.0, 1.0]
    assert found["best"] == [None, 2.0, 2.0, 1.0]
    assert (found["kernel"], found["untuned"], found["gain"]) == ("4x8 -> 8", None, None)


def test_a_winner_is_known_by_its_seconds():
    lines = [run("r"), tried("a", [1.0]), winner("a", 1.5, 3.0)]
    (found,) = curves([("f", lines)], {1.5: "matmul"})
    assert (found["kernel"], found["winner"], found["untuned"], found["gain"]) == ("matmul", 1.5, 3.0, 2.0)


def test_wrong_candidates_are_failures():
    lines = [run("r"), tried("a", [1.0]), tried("b", [2.0]), {"wrong": "a", "workload": "w", "run": "r", "error": 1}]
    (found,) = curves([("f", [*lines, winner("a", 1.0, 3.0)])], {})
    assert found["seconds"] == [None, 2.0] and found["gain"] is None


def test_devices_apart_and_the_largest_loss_first():
    first = [run("r"), tried("a", [1.0]), winner("a", 1.0, 2.0)]
    second = [run("s", "cpu"), tried("b", [1.0], "s"), winner("b", 1.0, 9.0, "s")]
    found = curves([("f", [*first, *second])], {})
    assert [(each["device"], each["untuned"]) for each in found] == [("cpu", 9.0), ("gpu", 2.0)]


def test_one_search_in_two_runs_is_one_curve():
    lines = [run("r"), run("s"), tried("a", [2.0]), tried("b", [1.0], "s")]
    (found,) = curves([("f", lines)], {})
    assert found["best"] == [2.0, 1.0]

# SPDX-License-Identifier: Apache-2.0
"""Which lines count, which are of use, what merging and pruning leave."""

import pytest

from smartmem_tvm.tune.record_lines import (
    candidate_key,
    check,
    circumstances,
    is_faster,
    kind_of,
    merge,
    prune,
    selected,
    sift,
)

TARGET = {"kind": "llvm", "keys": ["cpu"]}


def run(name, **changes):
    return {"run": name, "date": "now", "command": "tune", **circumstances(TARGET, 2), **changes}


def kernel(key):
    return {"workload": key, "module": ["hash", key]}


def record(key, of, by, *seconds):
    return {"record": key, "workload": of, "run": by, "seconds": list(seconds), "arguments": [], "trace": [key]}


def winner(key, of, by, seconds=1.0, untuned=2.0):
    return {"winner": key, "workload": of, "run": by, "seconds": seconds, "untuned": untuned}


def wrong(key, of, by):
    return {"wrong": key, "workload": of, "run": by, "error": "differs"}


LINES = [
    run("r1"),
    kernel("k1"),
    record("a", "k1", "r1", 3.0, 1.0, 2.0),
    record("b", "k1", "r1"),
    record("c", "k1", "r1", 1.0),
    winner("a", "k1", "r1"),
    wrong("c", "k1", "r1"),
]


def test_lines_of_other_circumstances_do_not_count():
    others = [run("r2", threads=4), record("d", "k1", "r2", 1.0), run("r3", tvm="1"), winner("e", "k1", "r3")]
    found = selected([*LINES, *others], circumstances(TARGET, 2))
    assert list(found.records) == ["a", "b", "c"] and found.winners["k1"]["winner"] == "a" and found.wrong == {"c"}
    assert selected(LINES, circumstances({"kind": "cuda"}, None)).records == {}


def test_the_cores_of_a_target_do_not_matter_and_a_device_may():
    fewer = [run("r4", target={**TARGET, "num-cores": 2}, device="one"), record("e", "k1", "r4", 1.0)]
    where = circumstances({**TARGET, "num-cores": 8}, 2)
    assert list(selected([*LINES, *fewer], where).records) == ["a", "b", "c", "e"]
    assert list(selected([*LINES, *fewer], where, "two").records) == ["a", "b", "c"]


def test_a_kernel_is_settled_when_its_winner_was_chosen_among_all_records():
    where = circumstances(TARGET, 2)
    assert selected(LINES, where).settled == {"k1"} and selected(LINES[:5], where).settled == set()
    assert selected([*LINES, record("f", "k1", "r1", 1.0)], where).settled == set()


def test_the_last_winner_counts_unless_it_turned_out_wrong():
    assert selected([*LINES, winner("b", "k1", "r1")], circumstances(TARGET, 2)).winners["k1"]["winner"] == "b"
    assert selected([*LINES, wrong("a", "k1", "r1")], circumstances(TARGET, 2)).winners == {}
    assert is_faster(winner("a", "k", "r", 1.0, 1.02)) and not is_faster(winner("a", "k", "r", 1.0, 1.005))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"sum": 3}, "fields sum is no run, kernel, record or verdict"),
        ({"trace": [], "record": "x"}, "is no run"),
        (record("x", "k9", "r1"), "names workload k9"),
        (record("x", "k1", "r9"), "names run r9"),
        (winner("x", "k1", "r1"), "names record x"),
        (wrong("x", "k1", "r1"), "names record x"),
    ],
)
def test_lines_of_no_use_are_found_and_left_out(line, problem):
    found, kept = sift([*LINES, line])
    assert len(found.problems) == 1 and problem in found.problems[0] and kept == LINES
    assert found.counts == {"runs": 1, "kernels": 1, "candidates": 3, "failed": 1, "winners": 1, "wrong": 1}


def test_damaged_lines_are_problems(tmp_path):
    path = tmp_path / "file"
    path.write_text('7\n{"run')
    assert check(path).problems == ["Line 1 is no JSON object.", "Line 2 is torn."]


def test_what_several_files_have_is_in_the_merged_one_once():
    more = [run("r2"), kernel("k1"), record("d", "k1", "r2", 1.0)]
    merged = merge([LINES, more, LINES])
    assert merged == [*LINES, more[0], more[2]]
    assert sift(merged)[0].problems == []


def test_pruning_leaves_the_fastest_and_what_verdicts_name():
    lines = [*LINES, record("d", "k1", "r1", 0.5), record("e", "k1", "r1", 0.7), kernel("k2"), record("f", "k2", "r1")]
    kept = prune(lines, 1)
    assert [line["record"] for line in kept if kind_of(line) == "trace"] == ["a", "c", "d"]
    assert [line["workload"] for line in kept if kind_of(line) == "module"] == ["k1"]
    assert sift(kept)[0].problems == []


def test_a_candidate_has_the_same_key_whoever_tries_it():
    assert candidate_key("k", [1, ["a"]]) == candidate_key("k", [1, ["a"]]) != candidate_key("l", [1, ["a"]])

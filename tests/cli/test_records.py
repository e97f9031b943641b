# SPDX-License-Identifier: Apache-2.0
"""``smartmem records``."""

import json

import pytest

from matmul_model import matmuls

LINES = [
    {"run": "r", "date": "d", "command": "c", "target": {}, "threads": 1, "tvm": "0", "schedules": 1},
    {"workload": "k", "module": []},
    *(
        {"record": f"a{n}", "workload": "k", "run": "r", "seconds": [float(n)], "arguments": [], "trace": []}
        for n in range(1, 5)
    ),
    {"winner": "a4", "workload": "k", "run": "r", "seconds": 1.0, "untuned": 2.0},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_good_file_passes_and_a_damaged_one_does_not_until_it_is_repaired(file, smartmem):
    good = smartmem("records", "check", file)
    assert good.code == 0 and " 1 1 4 0 1 0 0" in " ".join(good.out.split())
    file.write_text(file.read_text() + '{"wrong": "b", "workload": "k", "run": "r", "error": ""}\n{"re')
    bad = smartmem("records", "check", file, "--json")
    assert bad.code == 1
    problems = bad.data["files"][str(file)]["problems"]
    assert f"{file}: Line 9 is torn." in smartmem("records", "check", file).out
    assert problems == ["Line 9 is torn.", "A wrong names record b, which no line before it describes."]
    repaired = smartmem("records", "repair", file)
    assert repaired.code == 0 and "2 of 9 lines removed" in repaired.out
    assert lines(file) == LINES and smartmem("records", "check", file).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ("records", "repair", "{path}"),
        ("records", "prune", "{path}"),
        ("records", "merge", "{file}", "-o", "{path}"),
        ("records", "export", "{path}", "-o", "{folder}"),
        ("tune", "{model}", "-o", "{path}"),
        ("compile", "{model}", "--records", "{path}", "-o", "{folder}"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_file_of_something_else_is_left_as_it_is(command, file, smartmem, tmp_path, tmp_path_factory):
    path, folder = tmp_path / "notes.md", tmp_path_factory.mktemp("other") / "new"
    path.write_text("# Notes\n")
    model = matmuls(folder.parent / "m.onnx", (8, 8))
    file = file.rename(folder.parent / "records.jsonl")
    result = smartmem(*(each.format(path=path, file=file, folder=folder, model=model) for each in command))
    assert result.code == 2 and f"{path} has no line of tuning records, and is left as it is" in result.err
    assert path.read_text() == "# Notes\n" and list(tmp_path.iterdir()) == [path]


def test_files_are_merged_each_line_once(file, smartmem, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({**LINES[0], "run": "s"}) + "\n" + json.dumps(LINES[1]) + "\n")
    result = smartmem("records", "merge", file, other, file, "-o", tmp_path / "all.jsonl", "--json")
    assert result.data["lines"] == 8
    assert lines(tmp_path / "all.jsonl") == [*LINES, {**LINES[0], "run": "s"}]


def test_pruning_keeps_the_fastest_and_the_winner(file, smartmem):
    result = smartmem("records", "prune", file, "--keep", 1)
    assert "2 of 7 lines removed" in result.out
    assert [line["record"] for line in lines(file) if "trace" in line] == ["a1", "a4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "missing.jsonl"], "Records missing.jsonl do not exist"),
        (["merge", "missing.jsonl"], "give --output"),
        (["export", "a", "b", "-o", "c"], "merge the files first"),
        (["prune", "missing.jsonl", "--keep", "0"], "0 is not a positive number"),
        (["burn", "missing.jsonl"], "invalid choice"),
    ],
)
def test_bad_usage_is_refused(arguments, message, smartmem):
    result = smartmem("records", *arguments)
    assert result.code == 2 and message in result.err

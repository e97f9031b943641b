# SPDX-License-Identifier: Apache-2.0
"""``smartmem plan``: where each tensor lies and when, of a file and of a folder, as a table, JSON and a picture."""

import json

import pytest

from smartmem_tvm.planner.arena import Arena, Block, check_arena


def test_a_file_and_its_folder_have_the_same_plan(smartmem, model_path, compiled_folder):
    first, second = smartmem("plan", model_path, "--json").data, smartmem("plan", compiled_folder, "--json").data
    assert {**first, "model": ""} == {**second, "model": ""}
    assert first["planned_bytes"] == sum(each["bytes"] for each in first["storages"]) >= first["live_bytes"] > 0
    assert [each["kind"] for each in first["tensors"]].count("result") == 1


def test_the_plan_is_sound(smartmem, model_path):
    found = smartmem("plan", model_path, "--json").data
    for number, storage in enumerate(found["storages"]):
        mine = [each for each in found["tensors"] if each["storage"] == number]
        blocks = [Block(each["bytes"], each["first"], each["last"]) for each in mine]
        check_arena(blocks, Arena(tuple(each["offset"] for each in mine), storage["bytes"], 0), 64)
        assert storage["tensors"] == len(mine) and storage["live_bytes"] <= storage["bytes"]


def test_tables(smartmem, compiled_folder):
    found = smartmem("plan", compiled_folder)
    kernels = json.loads((compiled_folder / "explain.json").read_text())["memory"]["steps"]
    assert found.code == 0 and all(name in found.out for name in kernels)
    assert "least possible" in found.out and "allocations for" in found.out and "(--all" not in found.out


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture(smartmem, compiled_folder, tmp_path, ending):
    pictures = [tmp_path / f"{name}.{ending}" for name in ("a", "b")]
    for path in pictures:
        outcome = smartmem("plan", compiled_folder, "-o", path)
        assert outcome.code == 0 and f"{path} shows it" in outcome.out
    first, second = (path.read_bytes() for path in pictures)
    assert first.startswith(b"\x89PNG" if ending == "png" else b"<?xml") and len(first) == len(second)


def test_bad_input(smartmem, compiled_folder, tmp_path):
    assert "must end with one of .png, .svg" in smartmem("plan", compiled_folder, "-o", tmp_path / "x.txt").err
    assert smartmem("plan", tmp_path / "nothing.onnx").code == 2


def test_a_folder_of_an_older_version(smartmem, compiled_folder, tmp_path):
    for name in ("manifest.json", "explain.json"):
        (tmp_path / name).write_text((compiled_folder / name).read_text().replace('"kind"', '"sort"'))
    found = smartmem("plan", tmp_path)
    assert found.code == 2 and "was compiled by an older version, without offsets" in found.err

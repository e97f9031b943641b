# SPDX-License-Identifier: Apache-2.0
"""``smartmem accesses``: what a network asks of a device that is not there."""

import pytest

COUNTS = {"loads", "stores", "texel_loads", "texel_stores", "load_lines", "store_lines", "l1_misses", "l2_misses"}


def test_json(smartmem, model_path):
    outcome = smartmem("accesses", model_path, "--target", "adreno-740", "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.data
    assert set(data) == {"model", "target", "device", "tvm_default", "smartmem"}
    assert data["device"]["name"] == "adreno-740" and "l2_bytes" in data["device"]["estimates"]
    for side in (data["tvm_default"], data["smartmem"]):
        assert set(side) == COUNTS | {"launches", "not_modelled", "kernels"}
        assert side["launches"] == sum(each["launches"] for each in side["kernels"]) and side["not_modelled"] == 0
        for key in COUNTS:
            assert side[key] == pytest.approx(sum(each[key] for each in side["kernels"]))
    assert data["smartmem"]["launches"] == 3 < data["tvm_default"]["launches"]
    assert 0 < data["smartmem"]["stores"] < data["tvm_default"]["stores"]


def test_table(smartmem, model_path):
    arguments = ("accesses", model_path, "--target", "mali-g57", "--kernels")
    outcome, data = smartmem(*arguments), smartmem(*arguments, "--json").data
    assert outcome.code == 0, outcome.err
    assert "lines from memory, M" in outcome.out and "estimates: " in outcome.out
    assert all(each["kernel"] in outcome.out for side in ("tvm_default", "smartmem") for each in data[side]["kernels"])


def test_this_machine_and_a_switch(smartmem, model_path):
    more = smartmem("accesses", model_path, "--no-eliminate", "--no-fuse", "--json").data["smartmem"]
    less = smartmem("accesses", model_path, "--json").data["smartmem"]
    assert less["launches"] < more["launches"] and less["stores"] < more["stores"]


def test_a_target_without_a_row(smartmem, model_path):
    outcome = smartmem("accesses", model_path, "--target", "metal")
    assert outcome.code == 2 and "metal" in outcome.err and outcome.err.count("\n") == 1

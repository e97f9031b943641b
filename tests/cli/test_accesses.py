# SPDX-License-Identifier: Apache-2.0
"""``smartmem accesses``: what a network asks of a device that is not there."""

import sys
from dataclasses import fields

import onnx
import pytest

from doc_blocks import ROOT
from smartmem_tvm.analysis.memory_access import Accesses

sys.path.insert(0, str(ROOT / "benchmarks"))
from decoder_network import CONCAT, ELEMENTS, Decoder

COUNTS = {field.name for field in fields(Accesses)}


def test_json(smartmem, model_path):
    outcome = smartmem("accesses", model_path, "--target", "adreno-740", "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.data
    assert set(data) == {"model", "target", "device", "sides", "left_out"} and data["left_out"] == {}
    assert data["device"]["name"] == "adreno-740" and "l2_bytes" in data["device"]["estimates"]
    sides = data["sides"]
    assert list(sides) == ["tvm_default", "tvm_textures", "elimination", "layout", "smartmem"]
    for side in sides.values():
        assert set(side) == COUNTS | {"label", "launches", "not_modelled", "kernels"}
        assert side["launches"] == sum(each["launches"] for each in side["kernels"]) and side["not_modelled"] == 0
        for key in COUNTS:
            assert side[key] == pytest.approx(sum(each[key] for each in side["kernels"]))
    assert sides["smartmem"]["launches"] == 3 < sides["tvm_default"]["launches"]
    assert 0 < sides["smartmem"]["stores"] < sides["tvm_default"]["stores"]
    for name in ("elimination", "layout"):
        assert sides[name]["launches"] == 3 and sides[name]["texel_loads"] == sides[name]["texel_stores"] == 0


def test_table(smartmem, model_path):
    arguments = ("accesses", model_path, "--target", "mali-g57", "--kernels")
    outcome, data = smartmem(*arguments), smartmem(*arguments, "--json").data
    assert outcome.code == 0, outcome.err
    assert "lines from memory, M" in outcome.out and "estimates: " in outcome.out
    assert "tvm_textures" not in data["sides"]  # that pipeline is for Adreno
    for side in data["sides"].values():
        assert side["label"] in outcome.out and all(each["kernel"] in outcome.out for each in side["kernels"])


def test_this_machine_and_a_switch(smartmem, model_path):
    more = smartmem("accesses", model_path, "--no-eliminate", "--no-fuse", "--json").data["sides"]
    less = smartmem("accesses", model_path, "--json").data["sides"]
    assert list(more) == list(less) == ["tvm_default", "smartmem"]
    assert less["smartmem"]["launches"] < more["smartmem"]["launches"]
    assert less["smartmem"]["stores"] < more["smartmem"]["stores"]


@pytest.mark.parametrize(
    ("switches", "steps"),
    [(("--no-textures",), ["elimination", "smartmem"]), (("--no-textures", "--no-layout"), ["smartmem"])],
)
def test_a_step_that_is_switched_off_is_no_column(smartmem, model_path, switches, steps):
    data = smartmem("accesses", model_path, "--target", "adreno-740", *switches, "--json").data
    assert list(data["sides"]) == ["tvm_default", "tvm_textures", *steps]
    assert data["sides"]["smartmem"]["texel_loads"] == 0


def test_a_model_that_keeps_its_caches(smartmem, tmp_path):
    """Kernels that write rows, and attention up to a length, are counted; TVM's schedules for Adreno know neither."""
    onnx.save(Decoder(layers=1, form=CONCAT).model(), tmp_path / "model.onnx")
    arguments = ("accesses", tmp_path / "model.onnx", "--target", "adreno-740", "--cache", "auto:64")
    outcome = smartmem(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    ours = outcome.data["sides"]["smartmem"]
    assert ours["not_modelled"] == 0 and list(outcome.data["left_out"]) == ["TVM textures"]
    names = [each["kernel"] for each in ours["kernels"]]
    assert sum(name.startswith("write_rows") for name in names) == 1  # keys and values of the layer
    (attention,) = [each for each in ours["kernels"] if "matmul_multiply_add" in each["kernel"]]  # scores and a mask
    rows = 2 * 2 * 64 * 4  # both caches: heads, rows, numbers
    assert attention["loads"] >= rows / 4
    assert "TVM textures is left out" in smartmem(*arguments).out


def test_each_size_of_a_list(smartmem, tmp_path):
    onnx.save(Decoder(layers=1, tokens="tokens", form=ELEMENTS, capacity=32).model(), tmp_path / "model.onnx")
    shapes = [word for name in ("input_ids", "position_ids") for word in ("--shape", f"{name}:1,{{1,4}}")]
    outcome = smartmem("accesses", tmp_path / "model.onnx", "--cache", "auto", *shapes, "--json")
    assert outcome.code == 0, outcome.err
    one, four = outcome.data["sizes"]
    assert one["sides"]["smartmem"]["stores"] < four["sides"]["smartmem"]["stores"]


def test_a_target_without_a_row(smartmem, model_path):
    outcome = smartmem("accesses", model_path, "--target", "metal")
    assert outcome.code == 2 and "metal" in outcome.err and outcome.err.count("\n") == 1

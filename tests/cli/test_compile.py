# SPDX-License-Identifier: Apache-2.0
"""``smartmem compile``: what the folder holds."""

import json
from dataclasses import fields

import pytest
from tvm import tirx

from smartmem_tvm import options, pipeline
from smartmem_tvm.cli.model import CHECKS, PLANNERS, PRECISIONS, TECHNIQUES
from smartmem_tvm.deploy import gpu_build
from smartmem_tvm.deploy.manifest import checksum
from smartmem_tvm.ir.strength_reduction import Simplifier
from smartmem_tvm.pipeline import Options
from smartmem_tvm.planner import layout_problem


def test_folder(compiled_folder):
    assert sorted(path.name for path in compiled_folder.iterdir()) == [
        "explain.json",
        "lib.so",
        "manifest.json",
        "weights.bin",
    ]
    manifest = json.loads((compiled_folder / "manifest.json").read_text())
    assert manifest["inputs"] == [{"name": "x", "shape": [2, 4, 8], "dtype": "float32", "ids_below": None}]
    assert manifest["outputs"] == ["y"]
    assert manifest["layout_kernels"] == 0 < manifest["kernels"] and manifest["precision"] == "float32"
    assert manifest["sha256"] == {
        name: checksum(compiled_folder / name) for name in ("lib.so", "weights.bin", "explain.json")
    }
    assert manifest["memory_bytes"]["activations"] > 0 <= manifest["memory_bytes"]["weights"]
    explanation = json.loads((compiled_folder / "explain.json").read_text())
    assert len(explanation["kernels"]) == manifest["kernels"]


def test_json_and_options(smartmem, symbolic_path, tmp_path):
    folder, dump = tmp_path / "deep" / "out", tmp_path / "dump"
    outcome = smartmem(
        "compile", symbolic_path, "-o", folder, "--shape", "x:3,4,8", "--no-eliminate", "--dump-dir", dump, "--json"
    )
    assert outcome.code == 0, outcome.err
    assert outcome.data["folder"] == str(folder)
    assert outcome.data["compile_seconds"] > 0
    manifest = outcome.data["manifest"]
    assert manifest == json.loads((folder / "manifest.json").read_text())
    assert manifest["inputs"][0]["shape"] == [3, 4, 8]
    assert not any("eliminate" in path.name for path in dump.iterdir())
    assert any("fuse" in path.name for path in dump.iterdir())


def test_text_says_what_to_do_next(smartmem, model_path, tmp_path):
    outcome = smartmem("compile", model_path, "-o", tmp_path / "out")
    assert outcome.code == 0
    assert f"smartmem run {tmp_path / 'out'}" in outcome.out


def test_a_compiled_folder_is_replaced(smartmem, model_path, symbolic_path, tmp_path):
    folder = tmp_path / "out"
    assert smartmem("compile", model_path, "-o", folder).code == 0
    assert smartmem("compile", symbolic_path, "-o", folder, "--shape", "x:1,4,8").code == 0
    assert json.loads((folder / "manifest.json").read_text())["inputs"][0]["shape"] == [1, 4, 8]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_every_technique_has_a_switch():
    switches = {field.name for field in fields(Options) if field.default is True}
    assert set(TECHNIQUES) == switches
    assert CHECKS == options.CHECKS
    assert tuple(pipeline.PRECISIONS) == PRECISIONS and Options().precision == PRECISIONS[0]
    assert layout_problem.PLANNERS == PLANNERS


def test_opencl_kernels_are_checked(smartmem, model_path, tmp_path):
    outcome = smartmem("compile", model_path, "-o", tmp_path / "phone", "--target", "adreno-740")
    assert outcome.code == 0, outcome.err
    found = json.loads((tmp_path / "phone" / "manifest.json").read_text())["opencl"]
    assert found["checked"] > 0 and found["whole_texel_reads"] > 0
    assert f"{found['checked']} OpenCL kernels checked" in " ".join(outcome.out.split())
    assert f"{found['whole_texel_reads']} use all four numbers" in " ".join(outcome.out.split())


def test_a_kernel_that_breaks_a_rule(smartmem, model_path, tmp_path, monkeypatch):
    lower = gpu_build._lower
    # The pipeline without textures indexes them as if they were buffers.
    monkeypatch.setattr(gpu_build, "_lower", lambda mod, target, pipeline: lower(mod, target, "default"))
    outcome = smartmem("compile", model_path, "-o", tmp_path / "phone", "--target", "adreno-740")
    assert outcome.code == 0, outcome.err
    found = json.loads((tmp_path / "phone" / "manifest.json").read_text())["opencl"]
    assert found["checked"] > 0 and found["whole_texel_reads"] == 0  # its tensors are in buffers


def test_other_targets_have_no_opencl_kernels(compiled_folder):
    assert json.loads((compiled_folder / "manifest.json").read_text())["opencl"] is None


def test_a_precision_that_the_target_lacks(smartmem, model_path, tmp_path):
    outcome = smartmem("compile", model_path, "-o", tmp_path / "out", "--precision", "half-storage")
    assert outcome.code == 2 and "needs a target that stores half numbers" in outcome.err
    assert not (tmp_path / "out").exists()


def test_the_precision_is_in_the_manifest(smartmem, model_path, tmp_path):
    command = ("compile", model_path, "-o", tmp_path / "out", "--target", "adreno-740", "--precision", "half", "--json")
    outcome = smartmem(*command)
    assert outcome.code == 0, outcome.err
    assert outcome.data["manifest"]["precision"] == "half"


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_finds_something_ends_the_command(smartmem, model_path, tmp_path, monkeypatch, check):
    right = Simplifier.index
    monkeypatch.setattr(Simplifier, "index", lambda self, expr: without_offset(right(self, expr)))
    outcome = smartmem("compile", model_path, "-o", tmp_path / "out", "--check", check)
    assert outcome.code == 2 and outcome.out == "" and not (tmp_path / "out").exists()
    assert outcome.err.startswith("smartmem: error: Check of ") and outcome.err.count("\n") == 1


def without_offset(expr):
    """As after a wrong simplification."""
    return expr.b if isinstance(expr, tirx.Add) else expr

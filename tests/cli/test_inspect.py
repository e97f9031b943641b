# SPDX-License-Identifier: Apache-2.0
"""``smartmem inspect``: the memory of a compiled model, before it is run, also of one for another device."""

import json


def test_memory_of_a_folder(smartmem, compiled_folder):
    found = smartmem("inspect", compiled_folder, "--json").data
    manifest = json.loads((compiled_folder / "manifest.json").read_text())
    assert found["memory"]["planned_bytes"] == manifest["memory_bytes"]["activations"] > 0
    assert found["memory"]["weight_bytes"] == manifest["memory_bytes"]["weights"]
    assert found["inputs"] == manifest["inputs"] and found["kernels"] == manifest["kernels"]
    assert found["files"] == {path.name: path.stat().st_size for path in compiled_folder.iterdir()}


def test_the_same_in_words(smartmem, compiled_folder):
    found = smartmem("inspect", compiled_folder)
    assert found.code == 0 and "An inference takes 0.000768 MB in 2 allocations" in found.out
    assert "float32 2x4x8" in found.out


def test_a_model_for_a_phone(smartmem, model_path, tmp_path):
    assert smartmem("compile", model_path, "-o", tmp_path / "phone", "--target", "adreno-740").code == 0
    found = smartmem("inspect", tmp_path / "phone")
    assert found.code == 0 and "adreno-740" in found.out and "An inference takes" in found.out


def test_what_is_no_compiled_model(smartmem, tmp_path):
    found = smartmem("inspect", tmp_path)
    assert found.code == 2 and "holds no compiled model" in found.err

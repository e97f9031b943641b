# SPDX-License-Identifier: Apache-2.0
"""Folders of compiled models that are replaced, and such as were changed by hand."""

import json

import numpy as np
import pytest

import smartmem_tvm
from helpers import module, op
from smartmem_tvm import UserError
from smartmem_tvm.deploy import export, manifest

MANIFEST = {"inputs": [{"name": "x", "shape": [4], "dtype": "float32"}], "outputs": ["y"]}
X = np.arange(4, dtype="float32")


def save(folder, function):
    export.save(smartmem_tvm.compile(module(function, (4,))), folder, MANIFEST, {})


def test_a_folder_that_is_written_again_is_loaded_again(tmp_path):
    """While what was in it before is still in use."""
    save(tmp_path / "out", lambda x: op.add(x, x))
    first = export.load(tmp_path / "out")
    save(tmp_path / "out", lambda x: op.multiply(x, x))
    assert export.load(tmp_path / "out").run(X)[0].tolist() == (X * X).tolist()
    assert first.run(X)[0].tolist() == (X + X).tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_where_names_cannot_be_exchanged_the_folder_is_replaced_too(tmp_path, monkeypatch):
    monkeypatch.setattr("smartmem_tvm.whole_folder._exchanged", lambda *_: False)
    for function in (op.exp, op.abs):
        save(tmp_path / "out", function)
    assert export.load(tmp_path / "out").run(X)[0].tolist() == X.tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


CHANGES = {
    "library": "../lib.so",
    "target": "no target",
    "weights": [{"offset": 2**62, "shape": [2**40], "dtype": "float32", "scope": "global"}],
    "inputs": [{"name": "x", "shape": [-1], "dtype": "float32"}],
    "sha256": [],
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_manifest_is_refused(field, tmp_path):
    save(tmp_path / "out", op.exp)
    path = tmp_path / "out" / manifest.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), field: CHANGES[field]}))
    with pytest.raises(UserError, match="compile the model again"):
        export.load(tmp_path / "out")

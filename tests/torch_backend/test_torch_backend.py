# SPDX-License-Identifier: Apache-2.0
"""The way from torch to this package, as far as it goes without torch."""

import sys

import pytest

from opencl_package import declared, python
from smartmem_tvm import UserError, torch_backend

LOADED = """
import sys
from importlib.metadata import entry_points
(found,) = {each.value: each for each in entry_points(group="torch_dynamo_backends", name="smartmem")}.values()
backend = found.load()
print(callable(backend), backend.__module__, backend.__name__)
print(sorted({"torch", "tvm", "numpy"} & set(sys.modules)))
"""


def test_torch_finds_the_backend_and_nothing_large_is_imported_for_it(tmp_path):
    assert declared()["entry_points"]["torch_dynamo_backends"] == ["smartmem = smartmem_tvm.torch_backend:smartmem"]
    assert python(tmp_path, LOADED) == ["True smartmem_tvm.torch_backend smartmem", "[]"]


def test_without_torch_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"pip install smartmem-tvm\[torch\]"):
        torch_backend.smartmem(object(), [])

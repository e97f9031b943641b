# SPDX-License-Identifier: Apache-2.0
"""How torch's exporter is called."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from smartmem_tvm.frontend import torch_exporter
from torch_stand_in import Program, install


@pytest.fixture
def translate(monkeypatch, relu_model):
    torch_exporter._table.cache_clear()
    yield install(monkeypatch, relu_model)
    torch_exporter._table.cache_clear()


def test_its_table_of_operators_is_made_once(translate, monkeypatch):
    tables, calls = [], []

    def from_torchlib(opset_version):
        tables.append(opset_version)
        return f"table {len(tables)}"

    exporter, torch_onnx = ModuleType("torch.onnx._internal.exporter"), sys.modules["torch.onnx"]
    torch_onnx._constants = SimpleNamespace(ONNX_DEFAULT_OPSET=20)
    exporter._registration = SimpleNamespace(ONNXRegistry=SimpleNamespace(from_torchlib=from_torchlib))
    exporter._core = SimpleNamespace(export=lambda program, **given: calls.append(given) or SimpleNamespace(model="m"))
    monkeypatch.setitem(sys.modules, "torch.onnx._internal", ModuleType("torch.onnx._internal"))
    monkeypatch.setitem(sys.modules, exporter.__name__, exporter)
    for _ in range(2):
        torch_exporter.export(Program())
    given = {"registry": "table 1", "opset_version": 20, "verbose": False, "optimize": False}
    assert calls == [given, given] and tables == [20] and not translate.exports
    assert translate.optimized == [("m", {"num_iterations": 1})] * 2


def test_a_torch_that_keeps_it_elsewhere_is_asked_as_anyone_does(translate):
    program = Program()
    torch_exporter.export(program)
    assert translate.exports == [(program, {"dynamo": True, "verbose": False, "optimize": False})]

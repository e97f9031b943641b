# SPDX-License-Identifier: Apache-2.0
"""`from_torch` against stand-ins for torch and TVM's translator: torch is too large to install for a test."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, from_torch, input_spec, output_names


class Program:
    """What is used of torch.export.ExportedProgram."""

    def __init__(self, range_constraints=None):
        self.range_constraints = range_constraints or {}
        self.graph_signature = SimpleNamespace(user_inputs=("image",), user_outputs=("softmax",))


@pytest.fixture
def translate(monkeypatch, relu_model):
    """Install the stand-ins; return the list of calls, and of errors to raise instead."""
    state = SimpleNamespace(calls=[], error=None)

    def from_exported_program(program, **options):
        state.calls.append((program, options))
        if state.error:
            raise state.error
        return from_onnx(relu_model)

    modules = {
        "torch": ModuleType("torch"),
        "torch.export": ModuleType("torch.export"),
        "tvm.relax.frontend.torch": ModuleType("tvm.relax.frontend.torch"),
    }
    modules["torch.export"].ExportedProgram = Program
    modules["tvm.relax.frontend.torch"].from_exported_program = from_exported_program
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return state


def test_names_come_from_the_program(translate):
    program = Program()
    mod = from_torch(program)
    assert input_spec(mod) == {"image": ((2, 3), "float32")}
    assert output_names(mod) == ["softmax"]
    # Weights become constants unless the translator is asked for parameters.
    assert translate.calls == [(program, {"unwrap_unit_return_tuple": True})]


def test_dynamic_sizes_are_refused_before_translation(translate):
    with pytest.raises(UserError, match=r"dynamic sizes \(s77\)"):
        from_torch(Program({"s77": None}))
    assert translate.calls == []


def test_something_else_is_refused(translate):
    with pytest.raises(UserError, match=r"torch\.export\.export returns, not SimpleNamespace"):
        from_torch(SimpleNamespace())


def test_what_the_translator_says_is_passed_on_in_one_line(translate):
    translate.error = AssertionError("Unsupported function types\n['det.default']")
    with pytest.raises(UserError, match=r"Unsupported function types \['det\.default'\]; "):
        from_torch(Program())


def test_without_torch_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.export", None)
    with pytest.raises(UserError, match="pip install torch"):
        from_torch(object())

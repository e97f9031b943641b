# SPDX-License-Identifier: Apache-2.0
"""`from_torch` against stand-ins for torch and what translates its programs: it is too large to install for a test."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import onnx
import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, from_torch, input_spec, output_names


class Program:
    """What is used of torch.export.ExportedProgram."""

    def __init__(self, range_constraints=None):
        self.range_constraints = range_constraints or {}
        self.graph_signature = SimpleNamespace(user_inputs=("image",), user_outputs=("softmax",))
        self.decompositions = None

    def run_decompositions(self, table):
        new = Program(self.range_constraints)
        new.decompositions = table
        return new


@pytest.fixture
def translate(monkeypatch, relu_model):
    """Install the stand-ins; return what was called, and errors to raise instead."""
    state = SimpleNamespace(calls=[], exports=[], error=None, refusal=None, refused_always=True, onnxscript=True)

    def from_exported_program(program, **options):
        state.calls.append((program, options))
        if state.error:
            raise state.error
        return from_onnx(relu_model)

    def export(program, **options):
        state.exports.append((program, options))
        if state.refusal and (state.refused_always or program.decompositions is None):
            raise state.refusal
        return SimpleNamespace(save=lambda path, external_data: onnx.save(relu_model, path))

    names = ("torch", "torch.export", "torch.onnx", "tvm.relax.frontend.torch")
    modules = {name: ModuleType(name) for name in names}
    attention = SimpleNamespace(default="attention")
    modules["torch"].ops = SimpleNamespace(
        aten=SimpleNamespace(
            scaled_dot_product_attention=attention, _scaled_dot_product_attention_math=lambda *given: (given, "weights")
        )
    )
    modules["torch"].onnx, modules["torch"].export = modules["torch.onnx"], modules["torch.export"]
    modules["torch.export"].default_decompositions = lambda: {"other": "rule"}
    modules["torch.onnx"].export = export
    modules["torch.export"].ExportedProgram = Program
    modules["tvm.relax.frontend.torch"].from_exported_program = from_exported_program
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    known = importlib.util.find_spec

    def find_spec(name, *more):
        return (True if state.onnxscript else None) if name == "onnxscript" else known(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return state


def test_a_program_becomes_what_its_onnx_file_becomes(translate, relu_model):
    program = Program()
    mod = from_torch(program)
    assert mod.script() == from_onnx(relu_model).script()
    assert (input_spec(mod), output_names(mod)) == (input_spec(from_onnx(relu_model)), ["y"])
    assert translate.exports == [(program, {"dynamo": True, "verbose": False})] and not translate.calls


@pytest.mark.parametrize("missing", ["onnxscript", "operator"])
def test_what_torch_does_not_export_goes_through_tvm_with_the_names_of_the_program(translate, missing):
    translate.onnxscript = missing != "onnxscript"
    translate.refusal = RuntimeError("No decompositions registered for 'det'")
    program = Program()
    mod = from_torch(program)
    assert input_spec(mod) == {"image": ((2, 3), "float32")}
    assert output_names(mod) == ["softmax"]
    # Weights become constants unless the translator is asked for parameters.
    assert translate.calls == [(program, {"unwrap_unit_return_tuple": True})]
    assert len(translate.exports) == 2 * (missing == "operator")


def test_attention_that_torch_does_not_export_is_taken_apart(translate, relu_model):
    translate.refusal, translate.refused_always = AssertionError("only 4D query, key, and value are supported"), False
    program = Program()
    assert from_torch(program).script() == from_onnx(relu_model).script()
    first, second = (given for given, _ in translate.exports)
    assert first is program and second.decompositions.keys() == {"other", "attention"} and not translate.calls
    assert second.decompositions["attention"]("q", "k", "v") == ("q", "k", "v")


def test_without_onnxscript_the_command_that_installs_it_is_named(translate, caplog):
    translate.onnxscript = False
    from_torch(Program())
    assert "pip install onnxscript" in caplog.text


def test_dynamic_sizes_are_refused_before_translation(translate):
    with pytest.raises(UserError, match=r"dynamic sizes \(s77\)"):
        from_torch(Program({"s77": None}))
    assert translate.calls == translate.exports == []


def test_something_else_is_refused(translate):
    with pytest.raises(UserError, match=r"torch\.export\.export returns, not SimpleNamespace"):
        from_torch(SimpleNamespace())


def test_what_the_translators_say_is_passed_on_in_one_line(translate):
    translate.refusal = RuntimeError("No decompositions registered for 'det'")
    translate.error = AssertionError("Unsupported function types\n['det.default']")
    with pytest.raises(UserError, match=r"Unsupported function types \['det\.default'\]; "):
        from_torch(Program())


def test_without_torch_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.export", None)
    with pytest.raises(UserError, match="pip install torch"):
        from_torch(object())

# SPDX-License-Identifier: Apache-2.0
"""`from_torch` against stand-ins for torch and what translates its programs."""

import sys
from types import SimpleNamespace

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, from_torch, input_spec, output_names
from torch_stand_in import Program, install


@pytest.fixture
def translate(monkeypatch, relu_model):
    return install(monkeypatch, relu_model)


def test_a_program_becomes_what_its_onnx_file_becomes(translate, relu_model):
    program = Program()
    mod = from_torch(program)
    assert mod.script() == from_onnx(relu_model).script()
    assert (input_spec(mod), output_names(mod)) == (input_spec(from_onnx(relu_model)), ["y"])
    assert translate.exports == [(program, {"dynamo": True, "verbose": False, "optimize": False})]
    assert [options for _, options in translate.optimized] == [{"num_iterations": 1}] and not translate.calls


@pytest.mark.parametrize("missing", ["onnxscript", "operator"])
def test_what_torch_does_not_export_goes_through_tvm_with_the_names_of_the_program(translate, missing):
    translate.missing = missing
    translate.refusal = RuntimeError("No decompositions registered for 'det'")
    program = Program()
    mod = from_torch(program)
    assert input_spec(mod) == {"image": ((2, 3), "float32")}
    assert output_names(mod) == ["softmax"]
    # Weights become constants unless the translator is asked for parameters.
    ((given, options),) = translate.calls
    assert given.decompositions == () and options["unwrap_unit_return_tuple"]
    assert not options["keep_params_as_input"]
    assert len(translate.exports) == 2 * (missing == "operator")


def test_without_onnxscript_the_command_that_installs_it_is_named(translate, caplog):
    translate.missing = "onnxscript"
    from_torch(Program())
    assert "pip install onnxscript" in caplog.text


def test_sizes_that_are_computed_are_refused(translate):
    translate.missing = "onnxscript"
    with pytest.raises(UserError, match=r"sizes that depend on the numbers that it computes \(u0\)"):
        from_torch(Program(range_constraints={"u0": None}))
    assert translate.calls == translate.exports == []


def test_something_else_is_refused(translate):
    with pytest.raises(UserError, match=r"torch\.export\.export returns, not SimpleNamespace"):
        from_torch(SimpleNamespace())


def test_what_the_translators_say_is_passed_on_in_one_line(translate):
    translate.refusal = RuntimeError("No decompositions registered for 'det'")
    translate.error = AssertionError("Unsupported function types\n['det.default']")
    with pytest.raises(UserError, match=r"Unsupported function types \['det\.default'\]; "):
        from_torch(Program())


def test_without_torch_the_command_that_installs_it_is_named(translate, monkeypatch):
    translate.missing = "torch"
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r'needs torch: run `pip install "smartmem-tvm\[torch\]"`'):
        from_torch(object())

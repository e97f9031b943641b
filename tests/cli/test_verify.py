# SPDX-License-Identifier: Apache-2.0
"""``smartmem verify``: agrees with ONNX Runtime, and notices when it does not."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper

from smartmem_tvm import light
from smartmem_tvm.cli.verify import usual_tolerance
from smartmem_tvm.deploy.compiled import Compiled
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import read_model, run_onnxruntime
from torch_stand_in import SAVED, Program, Tensor, install

KEYS = {"model", "reference", "ok", "max_abs_err", "max_rel_err", "rtol", "rtol_reason", "atol", "peak_mb", "outputs"}


def test_agrees(smartmem, model_path):
    outcome = smartmem("verify", model_path, "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.data
    assert set(data) == KEYS
    assert data["reference"] == "ONNX Runtime" and data["ok"] is True and data["rtol"] == 1e-4 and data["atol"] == 0
    assert "24 bits" in data["rtol_reason"]
    assert data["max_abs_err"] > 0 and data["max_rel_err"] < 1e-4
    assert data["outputs"]["y"]["max_abs_err"] == data["max_abs_err"]


def test_table(smartmem, model_path):
    outcome = smartmem("verify", model_path)
    assert outcome.code == 0
    assert "2x4x8" in outcome.out and "The same within rtol 0.0001" in outcome.out
    assert "a float32 has 24 bits" in " ".join(outcome.out.split())


@pytest.mark.parametrize(("factor", "code"), [(1, 0), (1.001, 1)])
def test_a_program_of_torch_is_compared_with_torch(smartmem, model_path, tmp_path, monkeypatch, factor, code):
    def compute(x, none):
        (y,) = run_onnxruntime(read_model(model_path), {"x": x.array})
        return Tensor(y * np.float32(factor))

    install(monkeypatch, model_path).program = Program(compute=compute)
    (tmp_path / "m.pt2").write_bytes(SAVED)
    outcome = smartmem("verify", tmp_path / "m.pt2", "--json")
    assert outcome.code == code, outcome.err
    assert outcome.data["reference"] == "torch"


@pytest.mark.parametrize("flag", ["--rtol", "--tolerance"])
def test_out_of_tolerance(smartmem, model_path, flag):
    outcome = smartmem("verify", model_path, flag, "0", "--json")
    assert outcome.code == 1
    assert outcome.data["ok"] is False and outcome.data["max_abs_err"] > 0
    assert smartmem("verify", model_path, flag, "0", "--atol", "1e-3").code == 0


@pytest.mark.parametrize("wrong", [lambda y: y * 1.001, lambda y: np.where(y == y.max(), np.nan, y)])
def test_wrong_results_are_noticed(smartmem, model_path, monkeypatch, wrong):
    run = Compiled.run
    monkeypatch.setattr(Compiled, "run", lambda self, *inputs: [wrong(y).astype(y.dtype) for y in run(self, *inputs)])
    outcome = smartmem("verify", model_path)
    assert outcome.code == 1
    assert "NOT the same" in outcome.out


def test_a_light_model_is_filled_for_both(smartmem, model_path, tmp_path):
    model = onnx.load(model_path)
    weight = next(each for each in model.graph.initializer if each.name == "weight")
    recipe = light.Recipe.of(onnx.numpy_helper.to_array(weight), "weight")
    onnx.save(light.strip(model, {"weight": recipe}), tmp_path / "light.onnx")
    outcome = smartmem("verify", tmp_path / "light.onnx", "--json")
    assert outcome.code == 0, outcome.err


def test_external_data_is_read_by_both(smartmem, model_path, tmp_path):
    onnx.save(
        onnx.load(model_path), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    assert smartmem("verify", tmp_path / "m.onnx").code == 0


def test_model_that_onnxruntime_refuses(smartmem, model_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    monkeypatch.setattr("smartmem_tvm.frontend.helper.serving", True)  # a fork of this process has what was set
    outcome = smartmem("verify", model_path)
    assert outcome.code == 2
    assert f"ONNX Runtime cannot run {model_path}" in outcome.err and "NOT_IMPLEMENTED" in outcome.err


def test_products_in_bfloat16_may_err_most(smartmem, model_path):
    from smartmem_tvm.cpu_features import has_tiles
    from smartmem_tvm.target import host_target

    outcome = smartmem("verify", model_path, "--precision", "bfloat16", "--json")
    if has_tiles(host_target()):
        assert outcome.code == 0, outcome.err
        assert outcome.data["rtol"] == 5e-2 > outcome.data["max_rel_err"]
    else:
        assert outcome.code == 2 and "needs a CPU that multiplies bfloat16 numbers (AMX, on Linux)" in outcome.err


def test_half_precision_may_err_more(smartmem, tmp_path):
    value = helper.make_tensor_value_info
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((64, 64)).astype("float16"), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "half", [value("x", 10, [4, 64])], [value("y", 10, [4, 64])], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "h.onnx")
    outcome = smartmem("verify", tmp_path / "h.onnx", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.data["rtol"] == 1e-2 > outcome.data["max_rel_err"] > 1e-5
    assert outcome.data["rtol_reason"] == "the model computes in halves, of 11 bits"
    strict = smartmem("verify", tmp_path / "h.onnx", "--rtol", "0", "--json").data
    assert strict["rtol"] == 0 and strict["rtol_reason"] == "as --rtol says"


def test_the_coarsest_numbers_say_what_is_allowed(model_path):
    proto = read_model(model_path).proto

    def allowed(precision, rtol=None):
        return usual_tolerance(SimpleNamespace(precision=precision, rtol=rtol), proto)[0]

    found = [allowed(each) for each in ("float32", "half-storage", "half", "bfloat16", "tf32")]
    assert found == [1e-4, 3e-3, 1e-2, 5e-2, 5e-3] and allowed("bfloat16", 0.0) == 0


def test_several_outputs(smartmem, tmp_path):
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Softmax", ["x"], ["p"]), helper.make_node("ArgMax", ["x"], ["/top/id"], axis=1)]
    graph = helper.make_graph(
        nodes, "two", [value("x", 1, [2, 9])], [value("p", 1, [2, 9]), value("/top/id", 7, [2, 1])]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "two.onnx"
    )
    outcome = smartmem("verify", tmp_path / "two.onnx", "--json")
    assert outcome.code == 0, outcome.err
    assert list(outcome.data["outputs"]) == ["p", "/top/id"]
    assert outcome.data["outputs"]["/top/id"]["max_abs_err"] == 0


def test_infinite_errors_are_null_in_json(smartmem, model_path, monkeypatch):
    monkeypatch.setattr(Compiled, "run", lambda self, *inputs: [np.full((2, 4, 8), np.nan, "float32")])
    outcome = smartmem("verify", model_path, "--json")
    assert outcome.code == 1
    assert outcome.data["max_abs_err"] is None and outcome.data["outputs"]["y"]["max_rel_err"] is None


def cancelling(path):
    """A sum whose terms are 100,000 times as large as it is: float32 loses four digits, in any order."""
    random = np.random.default_rng(3)
    weight = random.standard_normal((1, 2048)).astype("float32") * 1e5
    weight = np.concatenate([weight, -weight + random.standard_normal((1, 2048)).astype("float32")], axis=1)
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["xx"], axis=1),
        helper.make_node("Mul", ["xx", "w"], ["p"]),
        helper.make_node("ReduceSum", ["p", "axes"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    kept = [onnx.numpy_helper.from_array(each, name) for each, name in ((weight, "w"), (np.array([1]), "axes"))]
    graph = helper.make_graph(nodes, "g", [value("x", 1, [8, 2048])], [value("y", 1, [8, 1])], kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_digits_that_any_order_of_a_sum_loses_are_named(smartmem, tmp_path):
    path = cancelling(tmp_path / "m.onnx")
    outcome = smartmem("verify", path, "--json")
    assert outcome.code == 0, outcome.out
    exact = outcome.data["outputs"]["y"]["exact"]
    assert exact["output"] > 1e-4 and exact["output"] <= 2 * exact["reference"] and exact["digits_lost"] > 3
    outcome = smartmem("verify", path)
    text = " ".join(outcome.out.split())
    assert outcome.code == 0 and "no worse" in text and "of 7.2 digits lost" in text and "Right within" in text


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.01, 1)])
def test_a_reference_that_saturates_is_not_believed(smartmem, model_path, monkeypatch, factor, code):
    """It is off by 1 %: what is right passes, and what is off otherwise does not."""
    import smartmem_tvm.frontend as frontend

    def saturated(model, arrays):
        return [y * np.float32(0.99) for y in run_onnxruntime(model, arrays)]

    run = Compiled.run
    monkeypatch.setattr(frontend, "run_reference", saturated)
    monkeypatch.setattr(Compiled, "run", lambda self, *inputs: [y * np.float32(factor) for y in run(self, *inputs)])
    outcome = smartmem("verify", model_path, "--json")
    assert outcome.code == code, outcome.out
    assert ("exact" in outcome.data["outputs"]["y"]) == (code == 0)


def test_a_quantized_product_is_right_as_onnx_rounds_it(smartmem, tmp_path, monkeypatch):
    """In float64 other numbers may be halfway between two whole ones."""
    import smartmem_tvm.frontend as frontend

    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["c"], to=1),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ]
    value, random = helper.make_tensor_value_info, np.random.default_rng(0)
    kept = [onnx.numpy_helper.from_array(random.integers(-128, 128, (64, 32)).astype("int8"), "w")]
    graph = helper.make_graph(nodes, "g", [value("x", 1, [2, 9, 64])], [value("y", 1, [2, 9, 32])], kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    assert smartmem("verify", tmp_path / "m.onnx").code == 0
    monkeypatch.setattr(
        frontend, "run_reference", lambda *given: [y * np.float32(0.8) for y in run_onnxruntime(*given)]
    )
    outcome = smartmem("verify", tmp_path / "m.onnx", "--json")
    assert outcome.code == 0 and outcome.data["outputs"]["y"]["reason"].startswith("right"), outcome.out


def test_a_crash_of_onnxruntime_is_a_refusal(smartmem, tmp_path):
    """A division that overflows is a signal to its process."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Div", ["a", "b"], ["y"])],
        "g",
        [value("a", 7, [2]), value("b", 7, [2])],
        [value("y", 7, [2])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    np.savez(tmp_path / "i.npz", a=np.full(2, -(2**63)), b=np.full(2, -1))
    outcome = smartmem("verify", tmp_path / "m.onnx", "--input", tmp_path / "i.npz")
    assert outcome.code == 2 and "ONNX Runtime cannot run" in outcome.err and "it ended with -8" in outcome.err


def test_a_branch_that_does_not_fit_is_left_to_the_users_file(tmp_path):
    """With its sizes fixed ONNX Runtime refuses the graph, of which it would never take that branch."""
    value = helper.make_tensor_value_info

    def branch(weight):
        node = helper.make_node("MatMul", ["x", weight], [weight + "y"])
        return helper.make_graph([node], weight, [], [value(weight + "y", 1, ["n", 2])])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("three"), else_branch=branch("five"))
    kept = [onnx.numpy_helper.from_array(np.ones((n, 2), "float32"), name) for n, name in ((3, "three"), (5, "five"))]
    graph = helper.make_graph(
        [node], "g", [value("x", 1, ["n", "k"]), value("c", 9, [])], [value("y", 1, ["n", 2])], kept
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    arrays = {"x": np.ones((4, 3), "float32"), "c": np.array(True)}
    (found,) = run_onnxruntime(read_model(tmp_path / "m.onnx", {"x": (4, 3)}), arrays)
    assert np.array_equal(found, np.full((4, 2), 3))
    with pytest.raises(UserError, match="ONNX Runtime cannot run"):  # a model in memory has no file
        run_onnxruntime(read_model(model, {"x": (4, 3)}), arrays)

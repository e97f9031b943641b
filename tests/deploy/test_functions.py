# SPDX-License-Identifier: Apache-2.0
"""Modules without ``main``, with several functions, and of other names, compiled and run."""

import re
from pathlib import Path

import numpy as np
import pytest
import tvm

import smartmem_tvm
from functions import called_and_caller, linear, with_weights
from helpers import constant, module, op, random
from smartmem_tvm import Options, UserError, compile_baseline, graph_cost
from smartmem_tvm.deploy.export import save
from smartmem_tvm.deploy.weights import lift_weights

SIZE = 160  # its weight is lifted


def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["llvm", "cpu", "opencl", "opencl-texture"])
@pytest.mark.parametrize("length", [5, "n"])
def test_two_functions_with_parameters_for_inputs(target, length):
    mod, weight, bias = linear({"prefill": (1, length, SIZE), "decode": (1, 1, SIZE)})
    compiled = smartmem_tvm.compile(mod, target)
    assert list(compiled.functions) == ["decode", "prefill"] and compiled.weights == []
    (x,) = random((1, 5, SIZE), seed=1)
    assert_close(compiled.run(x, weight, bias, function="prefill")[0], x @ weight.T + bias)
    other = weight + 1
    (got,) = compiled.run(x[:, :1], other, bias, function="decode")
    assert_close(got, np.maximum(x[:, :1] @ other.T + bias, 0))


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_two_functions_share_their_weights(target):
    mod, weight, bias = linear({"prefill": (1, 5, SIZE), "decode": (1, 5, SIZE)})
    compiled = smartmem_tvm.compile(with_weights(mod, weight, bias), target)
    # On OpenCL small constants are weights too.
    (held,) = (each for each in compiled.weights if each.tensor.numpy().size >= SIZE * SIZE)
    assert SIZE * SIZE <= held.tensor.numpy().size < 2 * SIZE * SIZE, "in panels of a tile's width"
    (x,) = random((1, 5, SIZE), seed=1)
    expected = x @ weight.T + bias
    assert_close(compiled.run(x, function="prefill")[0], expected)
    assert_close(compiled.run(x=x, function="decode")[0], np.maximum(expected, 0))


def test_the_only_function_is_the_default():
    mod, weight, bias = linear({"forward": (5, SIZE)})
    compiled = smartmem_tvm.compile(with_weights(mod, weight, bias))
    (x,) = random((5, SIZE), seed=1)
    assert_close(compiled.run(x)[0], x @ weight.T + bias)
    assert compiled.memory["steps"]
    assert graph_cost(compiled.graph).kernels == 1


def test_the_cost_of_one_of_several():
    graph = smartmem_tvm.optimize(linear({"prefill": (1, 5, 8), "decode": (1, 1, 8)})[0])
    costs = [graph_cost(graph, name) for name in ("prefill", "decode")]
    assert [cost.kernels for cost in costs] == [1, 1]
    assert costs[0].bytes_moved["activations"] > costs[1].bytes_moved["activations"]
    for name in (None, "main"):
        with pytest.raises(UserError, match="functions are 'decode', 'prefill'"):
            graph_cost(graph, name)


def test_the_example_of_the_documentation():
    text = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text("utf-8")
    (example,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "export_tvm" in each]
    found: dict = {}
    exec(example, found)  # the annotations of its functions have to be types of `nn`
    np.testing.assert_array_equal(found["out"], np.ones((1, 7, 256), "float32"))


def test_the_baseline_has_functions_too():
    mod, weight, bias = linear({"prefill": (1, 5, SIZE), "decode": (1, 1, SIZE)})
    (x,) = random((1, 5, SIZE), seed=1)
    (got,) = compile_baseline(with_weights(mod, weight, bias)).run(x, function="prefill")
    assert_close(got, x @ weight.T + bias)


@pytest.mark.parametrize("function", ["forward", None])
def test_one_that_does_not_exist_and_none_named(function):
    mod = linear({"prefill": (1, 5, 8), "decode": (1, 1, 8)})[0]
    with pytest.raises(UserError, match="'decode', 'prefill'"):
        smartmem_tvm.compile(mod).run(np.zeros((1, 1, 8), "float32"), function=function)


def test_a_public_function_that_another_calls():
    compiled = smartmem_tvm.compile(called_and_caller(SIZE))
    (x,), weight = random((2, SIZE)), constant(SIZE, SIZE).value.numpy()
    x /= 100
    twice = 2 * x @ weight
    assert_close(compiled.run(x, function="twice")[0], twice)
    np.testing.assert_allclose(compiled.run(x)[0], np.exp(twice) @ weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("params", ["plain", "packed"])
@pytest.mark.parametrize("effects", ["plain", "packed"])
def test_effects_and_packed_parameters(params, effects):
    mod, weight, bias = linear({"forward": (5, 8)}, param_mode=params, effect_mode=effects)
    compiled = smartmem_tvm.compile(mod)
    effect = compiled.run(function="_initialize_effect")
    given = [(weight, bias)] if params == "packed" else [weight, bias]
    (x,) = random((5, 8), seed=1)
    got = compiled.run(x, *([effect] if effects == "packed" else effect), *given, function="forward")
    assert_close(got[0], x @ weight.T + bias)


def test_parameters_are_inputs_and_may_change_from_call_to_call():
    """TVM's CUDA graphs keep the addresses of what comes after ``num_input``."""
    mod = linear({"forward": (5, 8)})[0]
    assert int(mod["forward"].attrs["num_input"]) == 1
    assert int(lift_weights(mod)[0]["forward"].attrs["num_input"]) == 3


def test_equal_weights_of_two_functions_are_one():
    mod, weight, bias = linear({"prefill": (1, 5, SIZE), "decode": (1, 1, SIZE)})
    both = with_weights(mod, weight, bias)
    for name in ("prefill", "decode"):
        lifted, values = lift_weights(both)
        assert len(values) == 1 and len(lifted[name].params) == 2
    other = with_weights(tvm.IRModule({"decode": mod["decode"]}), weight + 1, bias)
    both.update_func(both.get_global_var("decode"), other["decode"])
    assert len(lift_weights(both)[1]) == 2


@pytest.mark.parametrize("options", [Options(memory_budget="1MB"), Options(check="outputs")])
def test_what_main_alone_has(options):
    with pytest.raises(UserError, match="'main'"):
        smartmem_tvm.compile(linear({"prefill": (1, 5, 8)})[0], options=options)


def test_a_folder_holds_main_alone(tmp_path):
    compiled = smartmem_tvm.compile(linear({"prefill": (1, 5, 8)})[0])
    with pytest.raises(UserError, match="'main', and this one has 'prefill'"):
        save(compiled, tmp_path / "out", {"inputs": [], "outputs": []}, {})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["llvm", "cuda", "opencl", "adreno-740", "mali-g57"])
def test_targets_by_name(target):
    assert smartmem_tvm.compile(module(op.exp, (2, 3)), target).target.kind.name in (target, "opencl")


@pytest.mark.parametrize("target", ["nonsense", ""])
def test_a_target_that_does_not_exist(target):
    for verb in (smartmem_tvm.compile, compile_baseline):
        with pytest.raises(UserError, match=r"is not known .* use 'cpu'"):
            verb(module(op.exp, (2, 3)), target)


@pytest.mark.parametrize("mod, reason", [(3, "not int"), (tvm.IRModule(), "no public Relax function")])
def test_what_is_no_module_of_functions(mod, reason):
    for verb in (smartmem_tvm.compile, compile_baseline, smartmem_tvm.optimize):
        with pytest.raises(UserError, match=reason):
            verb(mod)

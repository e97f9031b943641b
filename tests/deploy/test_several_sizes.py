# SPDX-License-Identifier: Apache-2.0
"""A model of several sizes: right at each, one set of weights, one arena, and a sentence for any other size."""

import json

import numpy as np
import pytest
import tvm_ffi
from tvm import ir

import smartmem_tvm
from helpers import constant, module, op
from sized_model import WIDE, expected, inputs, shapes, sized_model
from smartmem_tvm import Options, UserError
from smartmem_tvm.deploy import export, manifest
from smartmem_tvm.frontend import from_onnx, input_spec, output_names
from smartmem_tvm.ir.graph import CALL_TIR
from smartmem_tvm.ir.several_sizes import with_sizes
from smartmem_tvm.ir.walk import collect

PRIMES = (1, 2, 3, 5, 7, 11, 13)


def assert_right(model, size, seed=0):
    arrays = inputs(size, seed)
    for got, wanted in zip(model.run(arrays), expected(arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def drawn(seed, count=3):
    random = np.random.default_rng(seed)
    return [shapes(*map(int, random.choice(PRIMES, 4))) for _ in range(count)]


def saved(compiled, mod, folder):
    """Write it as `smartmem compile` does."""

    def described(name):
        spec = input_spec(mod, name).items()
        found = [{"name": each, "shape": list(shape), "dtype": dtype} for each, (shape, dtype) in spec]
        return {"function": name, "inputs": found, "outputs": output_names(mod, name)}

    sizes = [described(name) for name in compiled.sizes]
    export.save(compiled, folder, {**sizes[0], "sizes": sizes}, {})
    return export.load(folder)


@pytest.mark.parametrize("seed", range(3))
def test_drawn_sizes_are_right(seed, tmp_path):
    sizes = [*drawn(seed), shapes(1, 1, 1, 1)]
    mod = from_onnx(sized_model(), sizes)
    compiled = smartmem_tvm.compile(mod)
    loaded = saved(compiled, mod, tmp_path / "out")
    for model in (compiled, loaded):
        for turn in range(2):  # the second time by the direct call
            for size in sizes:
                assert_right(model, size, turn)


@pytest.mark.device
@pytest.mark.each_value
@pytest.mark.parametrize("target", ["opencl", "opencl-texture"])
def test_drawn_sizes_on_a_gpu(target):
    sizes = drawn(9, count=2)
    compiled = smartmem_tvm.compile(from_onnx(sized_model(), sizes), target)
    for size in (*sizes, sizes[0]):
        assert_right(compiled, size)


def several(*sizes, target="cpu"):
    return smartmem_tvm.compile(from_onnx(sized_model(), [shapes(*each) for each in sizes]), target)


def test_weights_are_there_once():
    one, three = several((1, 4, 4, 8)), several((1, 4, 4, 8), (1, 8, 4, 8), (1, 3, 3, 8))
    whole = sum(each.nbytes for each in one.weights)
    assert sum(each.nbytes for each in three.weights) == whole >= 4 * WIDE * WIDE
    assert set(three.size_weights.values()) == {whole} and one.size_weights == {}


def test_equal_kernels_are_there_once():
    """Of the three kernels of a size, the convolution's differs; that of ``fixed`` is the same in all of them."""
    assert len(several((1, 4, 4, 8), (1, 5, 4, 8)).rules) == len(several((1, 4, 4, 8)).rules) + 1


def test_the_arena_is_as_large_as_the_largest():
    def arena(*sizes):
        return max(each["bytes"] for each in several(*sizes).memory["storages"])

    large, small = (2, 64, 64, 512), (1, 4, 4, 1)
    assert arena(small, large, (1, 8, 8, 2)) == arena(large) > arena(small)


def test_a_size_that_there_is_not():
    compiled = several((1, 4, 4, 8), (2, 4, 4, 8))
    with pytest.raises(UserError, match=r"No size of this model takes 'x' 3x3x4x4, .*; it has 'x' 1x3x4x4, .*; 'x' 2x"):
        compiled.run(inputs(shapes(3, 4, 4, 8)))


def test_another_mistake_has_its_own_sentence():
    compiled, arrays = several((1, 4, 4, 8), (2, 4, 4, 8)), inputs(shapes(2, 4, 4, 8))
    with pytest.raises(UserError, match="'row' is missing"):
        compiled.run({name: array for name, array in arrays.items() if name != "row"})
    with pytest.raises(UserError, match=r"takes 3 inputs .* and 4 were given"):
        compiled.run(*arrays.values(), arrays["x"])
    with pytest.raises(UserError, match="has dtype float64"):
        compiled.run({**arrays, "x": arrays["x"].astype("float64")})


def test_by_place_by_name_bound_and_in_another_session():
    compiled, size = several((1, 4, 4, 8), (2, 5, 4, 8)), shapes(2, 5, 4, 8)
    arrays = inputs(size)
    wanted = expected(arrays)[1]
    session = compiled.session()
    bound = session.bind(arrays)
    assert compiled.function_of(arrays) == "main_1"
    for found in (compiled.run(*arrays.values()), compiled.run(**arrays), session.run(arrays), bound.run()):
        np.testing.assert_allclose(found[1], wanted, rtol=1e-4, atol=1e-4)


def layers(rows):
    """A network of six layers that read 256 kB each, too much for one kernel."""

    def chained(x):
        for weight in WEIGHTS:
            x = op.nn.gelu(op.add(op.matmul(x, weight), BIAS))
        return x

    return module(chained, (rows, 256))


WEIGHTS, BIAS = [constant(256, 256, seed=seed) for seed in range(6)], constant(256)
BUDGET = 600_000
"""Bytes: two weights fit, six do not."""


def test_a_budget_holds_for_each_size(tmp_path):
    mod = with_sizes([layers(rows) for rows in (1, 7, 32)])
    plain = smartmem_tvm.compile(mod)
    compiled = smartmem_tvm.compile(mod, options=Options(memory_budget=BUDGET))
    forms = sum(each.nbytes for each in compiled.weights) / sum(each.value.numpy().nbytes for each in WEIGHTS)
    assert 1 <= forms < 2.2, "one row may read another form than several; equal ones are there once"
    model = saved(compiled, mod, tmp_path / "out")
    for turn, (each, budget) in enumerate(((compiled, BUDGET), (model, BUDGET), (model, None))):
        if budget is None:
            assert model.set_memory_budget(None).bytes > BUDGET
        for name, rows in (("main_0", 1), ("main_2", 32), ("main_1", 7), ("main_1", 7), ("main_0", 1)):
            x = np.random.default_rng(turn).standard_normal((rows, 256)).astype("float32")
            (got,), (wanted,) = each.run(x), plain.run(x)
            assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()
            assert each.function_of([x]) == name
            assert (each.vm.memory_plan.bytes <= BUDGET) == (budget is not None)


def test_a_budget_must_hold_the_largest_size():
    mod = with_sizes([layers(rows) for rows in (1, 512)])
    with pytest.raises(UserError, match="the least that it runs within is") as why:
        smartmem_tvm.compile(mod, options=Options(memory_budget=500_000))
    assert why.value.least > 512 * 256 * 4  # bytes between two layers of the large one
    machine = smartmem_tvm.compile(mod, options=Options(memory_budget=3 * 10**6)).machine()
    assert machine.least_memory_budget > 512 * 256 * 4
    with pytest.raises(UserError, match="is too small"):
        machine.set_memory_budget(500_000)


def test_an_open_dimension_has_no_budget():
    mod = from_onnx(sized_model(), {"x": ("1..4", 3, 4, 4), "row": ("1..4", 2, WIDE), "fixed": (4, WIDE)})
    with pytest.raises(UserError, match="A memory budget is for sizes that are known"):
        smartmem_tvm.compile(mod, options=Options(memory_budget=1_000_000))


def test_a_folder_of_format_5_is_loaded(tmp_path):
    mod = from_onnx(sized_model(), shapes(2, 4, 4, 8))
    compiled = smartmem_tvm.compile(mod)
    spec = [{"name": n, "shape": list(shape), "dtype": dtype} for n, (shape, dtype) in input_spec(mod).items()]
    written = export.save(compiled, tmp_path / "out", {"inputs": spec, "outputs": output_names(mod)}, {})
    assert written["format"] == 9
    (tmp_path / "out" / manifest.MANIFEST).write_text(json.dumps({**written, "format": 5}))
    assert_right(export.load(tmp_path / "out"), shapes(2, 4, 4, 8))


def test_each_size_has_the_kernels_of_a_model_of_that_size_alone():
    """Nothing about a size depends on the others, so that it is as fast as alone."""

    def kernels(compiled, name):
        calls = [call for call in collect(compiled.graph[name], ir.Call) if call.op == CALL_TIR]
        return [tvm_ffi.structural_hash(compiled.graph[call.args[0]].without_attr("global_symbol")) for call in calls]

    sizes = drawn(4)
    compiled = smartmem_tvm.compile(from_onnx(sized_model(), sizes))
    for name, size in zip(compiled.sizes, sizes, strict=True):
        alone = smartmem_tvm.compile(from_onnx(sized_model(), size))
        assert kernels(compiled, name) == kernels(alone, "main") != []

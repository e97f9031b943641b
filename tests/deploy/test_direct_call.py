# SPDX-License-Identifier: Apache-2.0
"""Calls that copy nothing: the numbers of the general way, memory of their own, and its refusals."""

import gc
import time

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import helper

from helpers import constant, module, op
from smartmem_tvm import UserError, compile, from_onnx
from smartmem_tvm.deploy.export import load, save
from tensor_buffers import Foreign, aligned, floats

RANDOM = np.random.default_rng(7)


@pytest.fixture(scope="module")
def add():
    return compile(module(lambda x, y: op.multiply(op.add(x, y), constant(3, 4)), (3, 4), (3, 4)))


@pytest.fixture(scope="module")
def expected(add):
    weight = np.asarray(constant(3, 4).value.numpy())
    return lambda x, y: (x + y) * weight


WAYS = {
    "as numpy makes them": lambda x: x,
    "aligned": lambda x: np.copyto(a := aligned(x.shape), x) or a,
    "begins anywhere": lambda x: np.copyto(a := aligned(x.shape, off=12), x) or a,
    "transposed": lambda x: np.asfortranarray(x),
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "read-only": lambda x: (lambda y: (y.setflags(write=False), y)[1])(x.copy()),
    "of TVM": tvm.runtime.tensor,
    "of another library": Foreign,
    "of another library, anywhere": lambda x: Foreign(np.copyto(a := aligned(x.shape, off=4), x) or a),
    "a subclass": lambda x: x.view(np.matrix),
}


@pytest.mark.parametrize("how", WAYS)
def test_any_memory_gives_the_same_numbers(add, expected, how):
    for _ in range(3):  # the first is the general way
        x, y = floats(3, 4), floats(3, 4)
        given = WAYS[how](x), WAYS[how](y)
        for found in (add.run(*given), add.run({"x0": given[0], "x1": given[1]}), add.run(x1=given[1], x0=given[0])):
            np.testing.assert_allclose(found[0], expected(x, y), rtol=1e-6)


def test_results_stay_when_other_calls_follow(add, expected):
    pairs = [(floats(3, 4), floats(3, 4)) for _ in range(50)]
    found = [add.run(*pair)[0] for pair in pairs]
    gc.collect()
    for array, pair in zip(found, pairs, strict=True):
        np.testing.assert_allclose(array, expected(*pair), rtol=1e-6)
    assert len({array.ctypes.data for array in found}) == len(found)
    found[0][:] = 0  # is the caller's


def test_outputs_that_go_back_in_are_not_copied(add):
    x, y = floats(3, 4), floats(3, 4)
    add.run(x, y)
    (found,) = add.run(x, y)
    assert found.ctypes.data % 64 == 0
    direct = next(iter(add._first._direct.values()))
    assert direct.tensor(0, found).data_ptr() == found.ctypes.data


def test_what_is_passed_through_is_a_copy(tmp_path):
    """An input, a reshaped input, a constant and one result twice: a caller may write into each."""

    def network(x):
        return op.reshape(x, (4, 3)), x, constant(3, 4), op.exp(x), op.exp(x)

    compiled = compile(module(network, (3, 4)))
    manifest = {"inputs": [{"name": "x0", "shape": [3, 4], "dtype": "float32"}], "outputs": list("abcde")}
    save(compiled, tmp_path / "m", manifest, {})
    for model in (compiled, load(tmp_path / "m")):
        x = aligned((3, 4))
        x[:] = floats(3, 4)
        want = [np.array(each) for each in model.run(x.copy())]
        for _ in range(3):
            found = model.run(x)
            for array, right in zip(found, want, strict=True):
                np.testing.assert_array_equal(array, right)
                array[:] = -7  # must change neither x, nor the constant, nor another output
        np.testing.assert_array_equal(x.reshape(4, 3), want[0])


REFUSED = {
    "shape": (lambda: (floats(4, 3), floats(3, 4)), "Input 'x0' of function 'main' has shape 4x3, and it takes 3x4"),
    "rank": (lambda: (floats(3, 4, 1), floats(3, 4)), "has shape 3x4x1"),
    "dtype": (lambda: (floats(3, 4), floats(3, 4).astype("float64")), "Input 'x1' .* has dtype float64"),
    "order": (lambda: (floats(3, 4).astype(">f4"), floats(3, 4)), "has dtype >f4"),
    "missing": (lambda: (floats(3, 4),), "'x1' is missing"),
    "more": (lambda: (floats(3, 4),) * 3, "3 were given"),
    "name": (lambda: ({"x0": floats(3, 4), "z": floats(3, 4)},), "'z' is none of them"),
    "text": (lambda: ("a", floats(3, 4)), "'x0' .* is a tensor, not str"),
    "tensor": (lambda: (tvm.runtime.tensor(floats(4, 3)), floats(3, 4)), "has shape 4x3"),
    "foreign": (lambda: (Foreign(floats(4, 3)), floats(3, 4)), "has shape 4x3"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_refused_by_name_on_the_fast_path_too(add, what):
    make, message = REFUSED[what]
    add.run(floats(3, 4), floats(3, 4))
    assert add._first._direct
    with pytest.raises(UserError, match=message):
        add.run(*make())


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint8", "int64", "bool"])
def test_other_types(dtype):
    compiled = compile(module(lambda x: op.concat([x, x], 0), (3, 4), dtype=dtype))
    x = (RANDOM.standard_normal((3, 4)) * 3).astype(dtype)
    for _ in range(3):
        (found,) = compiled.run(x)
        assert found.dtype == x.dtype and np.array_equal(found, np.concatenate([x, x]))


def test_bfloat16_goes_the_general_way():
    compiled = compile(module(lambda x: op.concat([x, x], 0), (3, 4), dtype="bfloat16"))
    x = floats(3, 4).astype(ml_dtypes.bfloat16)
    for _ in range(2):
        (found,) = compiled.run(x)
        assert found.dtype == x.dtype and np.array_equal(found, np.concatenate([x, x]))
    assert not compiled._first._direct


def test_scalars_and_no_elements():
    compiled = compile(module(lambda x, y: op.add(x, y), (), (2, 1)))
    for _ in range(3):
        x, y = np.float32(2), floats(2, 1)
        for value in (np.asarray(x), x):
            np.testing.assert_allclose(compiled.run(value, y)[0], x + y, rtol=1e-6)
    none = compile(module(lambda x: op.add(x, x), (0, 3)))
    for _ in range(3):
        assert none.run(floats(0, 3))[0].shape == (0, 3)


def test_a_call_takes_about_as_long_as_one_of_onnxruntime():
    """One Relu of 1,000 numbers; in turns, medians, with room for other work on the machine."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [1000])],
        [helper.make_tensor_value_info("y", 1, [1000])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled, x = compile(from_onnx(model)), floats(1000)
    calls = {"ours": lambda: compiled.run(x), "theirs": lambda: session.run(None, {"x": x})}
    times = {name: [] for name in calls}
    for _ in range(3000):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    ours, theirs = (sorted(each)[len(each) // 2] for each in times.values())
    assert ours < 1.5 * theirs, f"{ours * 1e6:.1f} us beside {theirs * 1e6:.1f}"

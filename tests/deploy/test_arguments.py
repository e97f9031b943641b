# SPDX-License-Identifier: Apache-2.0
"""Inputs by place and by name, tuples and shapes, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import smartmem_tvm
from helpers import constant, module, op, random
from smartmem_tvm.deploy.arguments import arguments, parameter_of_file
from smartmem_tvm.deploy.export import load, save
from smartmem_tvm.errors import UserError

X, Y = random((5, 200), (5, 300))
WEIGHT = constant(200, 300)


@pytest.fixture(scope="module")
def compiled():
    """Return x0 w + x1, of which w is a parameter that the caller does not see."""
    found = smartmem_tvm.compile(module(lambda x, y: op.add(op.matmul(x, WEIGHT), y), X.shape, Y.shape))
    assert len(found.weights) == 1
    return found


@pytest.fixture(scope="module")
def nested():
    """Return a + pair[0] + pair[1][0], of n rows each, and a shape of n."""
    rows = tvm.tirx.Var("n", "int64")
    matrix, row = relax.TensorType((rows, 4), "float32"), relax.TensorType((4,), "float32")
    pair = relax.Var("pair", relax.TupleType([matrix, relax.TupleType([row])]))
    a, shape = relax.Var("a", matrix), relax.Var("shape", relax.ShapeType([rows]))
    builder = relax.BlockBuilder()
    with builder.function("main", [a, pair, shape]):
        with builder.dataflow():
            item = relax.TupleGetItem(relax.TupleGetItem(pair, 1), 0)
            out = builder.emit_output(op.add(op.add(a, relax.TupleGetItem(pair, 0)), item))
        builder.emit_func_output(out)
    return smartmem_tvm.compile(builder.get())


CALLS = {
    "by place": ((X, Y), {}),
    "by name": ((), {"x1": Y, "x0": X}),
    "both": ((X,), {"x1": Y}),
    "a mapping": (({"x1": Y, "x0": X},), {}),
    "a mapping and a name": (({"x1": Y},), {"x0": X}),
    "tensors of TVM": ((tvm.runtime.tensor(X), tvm.runtime.tensor(Y)), {}),
    "rows in another order": ((np.asfortranarray(X), Y[:, ::-1][:, ::-1]), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_ways_to_give_inputs(compiled, call):
    inputs, named = CALLS[call]
    (got,) = compiled.run(*inputs, **named)
    np.testing.assert_allclose(got, X @ WEIGHT.value.numpy() + Y, rtol=1e-4, atol=1e-4)


REFUSED = {
    "too few": ((X,), {}, r"takes 2 inputs \('x0' 5x200 float32, 'x1' 5x300 float32\), and 1 came: 'x1' is missing"),
    "none": ((), {}, "and 0 came: 'x0' is missing"),
    "too many": ((X, Y, Y), {}, "takes 2 inputs .* and 3 were given: leave 1 out"),
    "twice": ((X, Y), {"x0": X}, "'x0' of function 'main' was given twice"),
    "twice in a mapping": (({"x0": X, "x1": Y},), {"x0": X}, "'x0' of function 'main' was given twice"),
    "an unknown name": ((), {"x0": X, "x2": Y}, "'x2' is none of them"),
    "the name of a weight": ((X, Y), {"weight_0": X}, "'weight_0' is none of them"),
    "another dtype": ((X.astype("float64"), Y), {}, r"'x0' .* has dtype float64, and it takes float32"),
    "another order of bytes": ((X.astype(">f4"), Y), {}, "'x0' .* has dtype >f4, and it takes float32"),
    "another dtype in a tensor": ((X, tvm.runtime.tensor(Y.astype("float16"))), {}, "'x1' .* dtype float16"),
    "another shape": ((Y, X), {}, "'x0' of function 'main' has shape 5x300, and it takes 5x200"),
    "another rank": ((X[0], Y), {}, "has shape 200, and it takes 5x200"),
    "a scalar": ((np.float32(1), Y), {}, "has shape scalar, and it takes 5x200"),
    "nothing": ((None, Y), {}, "is a tensor, not NoneType"),
    "a text": (("x", Y), {}, "is a tensor, not str"),
    "rows of several lengths": (([[1.0], [1.0, 2.0]], Y), {}, "is no array to numpy"),
    "a tuple": (((X, X), Y), {}, "has shape 2x5x200"),
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_is_refused(compiled, call):
    inputs, named, reason = REFUSED[call]
    with pytest.raises(UserError, match=reason) as error:
        compiled.run(*inputs, **named)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rows", [1, 3])
def test_tuples_and_shapes(nested, rows):
    a, b, c = random((rows, 4), (rows, 4), (4,))
    for got in (nested.run(a, (b, [c]), (rows,)), nested.run({"a": a, "pair": [b, (c,)], "shape": [np.int64(rows)]})):
        np.testing.assert_allclose(got[0], a + b + c, rtol=1e-6)


A, C = np.ones((3, 4), "float32"), np.ones(4, "float32")
REFUSED_NESTED = {
    "another n": ((A, (A[:2], [C]), (3,)), "item 0 of input 'pair' .* nx4 with n = 3 of input 'a'"),
    "another n in the shape": ((A, (A, [C]), (2,)), "'shape' .* has shape 2, and it takes n with n = 3"),
    "an item of another shape": ((A, (A, [A]), (3,)), "item 0 of item 1 of input 'pair' .* has shape 3x4"),
    "a tuple too short": ((A, (A,), (3,)), "'pair' .* is a tuple of 2, not 1"),
    "an array for a tuple": ((A, A, (3,)), "'pair' .* is a tuple of 2, not ndarray"),
    "a text for a shape": ((A, (A, [C]), "n"), "'shape' .* is a shape, not str"),
    "a number for a shape": ((A, (A, [C]), 3), "'shape' .* is a shape, not int"),
    "a float in a shape": ((A, (A, [C]), (3.0,)), "'shape' .* is a shape, not tuple"),
}


@pytest.mark.parametrize("call", REFUSED_NESTED)
def test_what_is_refused_in_tuples(nested, call):
    inputs, reason = REFUSED_NESTED[call]
    with pytest.raises(UserError, match=f"(?i){reason}"):
        nested.run(*inputs)


def test_a_loaded_model_counts_its_inputs_too(compiled, tmp_path):
    inputs = [{"name": name, "shape": [*a.shape], "dtype": "float32"} for name, a in (("a.1", X), ("b", Y))]
    save(compiled, tmp_path / "out", {"inputs": inputs, "outputs": ["sum"]}, {})
    loaded = load(tmp_path / "out")
    (expected,) = compiled.run(X, Y)
    np.testing.assert_array_equal(loaded.run({"a.1": X, "b": Y})[0], expected)
    np.testing.assert_array_equal(loaded.run(X, b=Y)[0], expected)
    with pytest.raises(UserError, match=r"takes 2 inputs .* and 3 were given"):
        loaded.run(X, Y, Y)


@pytest.mark.parametrize("dtype", ["uint8", "float8_e4m3fn"])
def test_a_narrow_type_is_given_as_itself_or_as_bytes(dtype):
    param = parameter_of_file("x", [2], "float8_e4m3fn")
    arrays: list = []
    arguments("main", [param], [np.zeros(2, dtype)], {}, tvm.cpu(), arrays.append)
    assert [str(array.dtype) for array in arrays] == [dtype]


def test_a_narrow_type_is_no_other_one():
    param = parameter_of_file("x", [2], "float8_e4m3fn")
    with pytest.raises(UserError, match="has dtype float8_e5m2, and it takes float8_e4m3fn"):
        arguments("main", [param], [np.zeros(2, ml_dtypes.float8_e5m2)], {}, tvm.cpu(), tvm.runtime.tensor)


def test_of_hundreds_of_inputs_an_error_names_a_few():
    params = [parameter_of_file(f"p{number}", [1], "float32") for number in range(300)]
    with pytest.raises(UserError, match=r"'p5' 1 float32, \.\.\. 294 more\), and 0 came: 'p0' is missing"):
        arguments("main", params, [], {}, tvm.cpu(), tvm.runtime.tensor)

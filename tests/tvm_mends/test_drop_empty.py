# SPDX-License-Identifier: Apache-2.0
"""DropEmpty: tensors without elements, and what is made of them."""

import numpy as np
import pytest
from tvm import relax

import smartmem_tvm
from helpers import bindings, module, op
from smartmem_tvm.errors import UserError
from smartmem_tvm.tvm_mends import DropEmpty


def results(build, *arrays):
    mod = module(build, *((each.shape, str(each.dtype)) for each in arrays))
    return smartmem_tvm.compile(mod).run(*arrays)


def arrays(*shapes):
    return [np.arange(np.prod(shape), dtype="float32").reshape(shape) for shape in shapes]


def empty_slice(x):
    return op.strided_slice(x, [1], [5], [9])


def test_before_and_after():
    before = module(lambda x: op.concat([op.tanh(x), empty_slice(x)], 1), (3, 4))
    values = [each.value for each in bindings(DropEmpty()(before)) if isinstance(each.value, relax.Call)]
    assert [value.op.name for value in values if "alloc" not in value.op.name] == ["relax.tanh"]


CASES = {
    "a result": (empty_slice, [(3, 4)], lambda x: x[:, 5:9]),
    "its shape": (lambda x: op.shape_to_tensor(op.shape_of(x)), [(3, 0)], lambda x: np.array([3, 0])),
    "an input": (lambda x: op.tanh(x), [(2, 0)], lambda x: x),
    "concat": (lambda x: op.concat([x, empty_slice(x), x], 1), [(3, 4)], lambda x: np.concatenate([x, x], 1)),
    "sum": (lambda x: op.sum(x, 1), [(3, 0)], lambda x: x.sum(1)),
    "product": (lambda x: op.prod(x, 1), [(3, 0)], lambda x: x.prod(1)),
    "mean": (lambda x: op.mean(x, 1), [(3, 0)], lambda x: np.full(3, np.nan, "float32")),
    "matmul of no depth": (op.matmul, [(3, 0), (0, 5)], lambda a, b: a @ b),
    "matmul of no rows": (op.matmul, [(0, 4), (4, 5)], lambda a, b: a @ b),
    "padding": (lambda x: op.nn.pad(x, [0, 0, 1, 1], pad_value=7), [(3, 0)], lambda x: np.full((3, 2), 7, "float32")),
    "permuted": (lambda x: op.exp(op.permute_dims(x)), [(3, 0)], lambda x: x.T),
    "an empty part": (lambda x: op.split(x, [2, 2], 1)[1], [(3, 4)], lambda x: x[:, 2:2]),
    "beside an empty part": (lambda x: op.split(x, [2, 2], 1)[2], [(3, 4)], lambda x: x[:, 2:]),
    "broadcast": (op.add, [(3, 1), (3, 0)], lambda a, b: a + b),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results(case):
    build, shapes, reference = case
    given = arrays(*shapes)
    (got,) = results(build, *given)
    want = reference(*given)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_a_maximum_of_nothing_is_refused():
    with pytest.raises(UserError, match=r"Operator max makes a tensor of shape \(3\) of one without elements"):
        DropEmpty()(module(lambda x: op.max(x, 1), (3, 0)))


def test_what_has_elements_stays():
    mod = module(lambda x: op.sum(op.concat([x, x], 1), 1), (3, 4))
    assert DropEmpty()(mod).same_as(mod)

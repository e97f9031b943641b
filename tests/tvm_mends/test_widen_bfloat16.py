# SPDX-License-Identifier: Apache-2.0
"""WidenBfloat16: operators that TVM refuses in bfloat16, or gets wrong."""

import ml_dtypes
import numpy as np
import pytest
from tvm import ir, relax

import smartmem_tvm
from helpers import bindings, module, op
from smartmem_tvm.tvm_mends import WidenBfloat16

RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.uniform(0.1, 0.9, (4, 33)).astype(ml_dtypes.bfloat16) for _ in range(2))
SCALE, SHIFT = (RANDOM.standard_normal(33).astype(ml_dtypes.bfloat16) for _ in range(2))
IMAGE = RANDOM.standard_normal((2, 3, 5, 5)).astype(ml_dtypes.bfloat16)


def normal(x, *axes):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def both(x):
    largest = op.topk(x, 3, 1)
    return largest[0], largest[1]


def places(x):
    return np.argsort(-x, 1, kind="stable")[:, :3]


CASES = {
    "layer norm": (
        lambda x, s, b: op.nn.layer_norm(x, s, b, [-1]),
        [X, SCALE, SHIFT],
        lambda x, s, b: normal(x, -1) * s + b,
    ),
    "instance norm": (
        lambda x, s, b: op.nn.instance_norm(x, s, b, 1, [2, 3]),
        [IMAGE, SCALE[:3], SHIFT[:3]],
        lambda x, s, b: normal(x, 2, 3) * s.reshape(3, 1, 1) + b.reshape(3, 1, 1),
    ),
    "topk": (both, [X], lambda x: [np.take_along_axis(x, places(x), 1), places(x)]),
    "sort": (lambda x: op.sort(x, 1), [X], lambda x: np.sort(x, 1)),
    "argsort": (lambda x: op.argsort(x, 1), [X], lambda x: np.argsort(x, 1, kind="stable")),
    "isnan": (op.isnan, [X], np.isnan),
    "power": (op.power, [X, Y], np.power),
    "mod": (op.mod, [X, Y], np.fmod),
    "log_add_exp": (op.log_add_exp, [X, Y], np.logaddexp),
    "atan2": (op.atan2, [X, Y], np.arctan2),
    "sinh": (op.sinh, [X], np.sinh),
}


@pytest.mark.parametrize("build, arrays, right", CASES.values(), ids=CASES)
def test_results_are_right_and_of_their_types(build, arrays, right):
    compiled = smartmem_tvm.compile(module(build, *((each.shape, "bfloat16") for each in arrays)))
    wanted = right(*(each.astype("float64") for each in arrays))
    for got, want in zip(compiled.run(*arrays), wanted if isinstance(wanted, list) else [wanted], strict=True):
        assert got.dtype == (ml_dtypes.bfloat16 if want.dtype == np.float64 else got.dtype)
        largest = np.abs(want).max()
        np.testing.assert_allclose(got.astype("float64"), want, rtol=0, atol=largest * 2**-8)


def kinds(mod) -> list[str]:
    return [str(each.value.op.name) for each in bindings(mod) if isinstance(each.value, ir.Call)]


def test_casts_are_around_the_operator():
    mod = WidenBfloat16()(module(op.power, *[((3, 4), "bfloat16")] * 2))
    assert kinds(mod) == ["relax.astype", "relax.astype", "relax.power", "relax.astype"]
    assert str(bindings(mod)[-1].var.ty.dtype.dtype) == "bfloat16"


@pytest.mark.parametrize(("build", "dtype"), [(op.isnan, "float16"), (op.isnan, "float32"), (op.exp, "bfloat16")])
def test_what_stays(build, dtype):
    assert len(kinds(WidenBfloat16()(module(build, ((3, 4), dtype))))) == 1


def test_constants_are_not_folded_in_bfloat16():
    """TVM's own sort, when it folds, would order the bits."""
    mod = module(lambda x: op.add(x, op.sort(relax.const(SHIFT, "bfloat16"))), (X.shape, "bfloat16"))
    (got,) = smartmem_tvm.compile(mod).run(X)
    want = X.astype("float64") + np.sort(SHIFT.astype("float64"))
    np.testing.assert_allclose(got.astype("float64"), want, rtol=2**-7, atol=2**-9)

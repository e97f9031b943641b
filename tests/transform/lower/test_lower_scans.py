# SPDX-License-Identifier: Apache-2.0
"""Running sums as sums: the same numbers, no operator left for TVM to dispatch."""

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, tirx

from helpers import bindings, module, op, random, run
from module_lines import assert_lines
from smartmem_tvm.transform.lower.lower_scans import LowerScans


def lowered(build, *shapes, dtype="float32"):
    """The module after the pass, its operators as they were for all others."""
    mod = LowerScans()(module(build, *shapes, dtype=dtype))
    names = {b.value.op.name for b in bindings(mod) if isinstance(b.value, relax.Call)}
    assert not names & {"relax.cumsum", "relax.cumprod"} and "relax.call_tir" in names
    return relax.transform.LegalizeOps()(mod)


def test_before_and_after():
    assert_lines(
        LowerScans()(module(lambda x: op.cumsum(x, 1, exclusive=True), (3, 7))),
        """
        for i0, i1, j in grid(3, 7, 7):
            running[i0, i1] = 0.0
            running[i0, i1] = running[i0, i1] + Select(j < i1, lv[i0, j], 0.0)
        lv = permute_dims(x0, axes=[0, 1])
        lv1 = call running(lv)
        lv2 = permute_dims(lv1, axes=[0, 1])
        """,
    )


@pytest.mark.each_value
@pytest.mark.parametrize("axis", [-1, 0, 1, None])
@pytest.mark.parametrize("exclusive", [False, True])
def test_along_each_axis(axis, exclusive):
    (x,) = random((2, 3, 5))
    expected = np.cumsum(x, axis)
    if exclusive:
        expected -= x if axis is not None else x.ravel()
    (got,) = run(lowered(lambda x: op.cumsum(x, axis, exclusive=exclusive), x.shape), x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [7, 256, 300])
@pytest.mark.parametrize("exclusive", [False, True])
def test_products(length, exclusive):
    x = np.random.default_rng(0).choice([-1, 1], (length, 3)).astype("float32")
    x[length // 2, 0] = 2
    expected = np.cumprod(x, 0)
    if exclusive:
        expected = np.concatenate([np.ones((1, 3), "float32"), expected[:-1]])
    (got,) = run(lowered(lambda x: op.cumprod(x, 0, exclusive=exclusive), x.shape), x)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.each_value
@pytest.mark.parametrize("length", [1, 256, 257, 512, 1021, 256 * 256 + 1])
@pytest.mark.parametrize("exclusive", [False, True])
def test_long_sums_of_whole_numbers_are_exact(length, exclusive):
    x = np.random.default_rng(0).integers(-9, 9, (2, length)).astype("int32")
    expected = np.cumsum(x, 1, dtype="int32") - (x if exclusive else 0)
    mod = lowered(lambda x: op.cumsum(x, -1, exclusive=exclusive), x.shape, dtype="int32")
    np.testing.assert_array_equal(run(mod, x)[0], expected)


def test_the_type_of_the_sum():
    x = np.full((3, 700), 2**30, "int32")
    (got,) = run(lowered(lambda x: op.cumsum(x, 1, dtype="int64"), x.shape, dtype="int32"), x)
    np.testing.assert_array_equal(got, np.cumsum(x, 1, dtype="int64"))
    assert got.dtype == "int64"


def test_an_infinity_reaches_what_comes_after_it_only():
    x = np.ones((1, 600), "float32")
    x[0, 300] = np.inf
    (got,) = run(lowered(lambda x: op.cumsum(x, -1), x.shape), x)
    np.testing.assert_array_equal(got, np.cumsum(x, 1))


def test_other_operators_and_unknown_sizes_stay():
    mod = module(lambda x: op.sum(x, [1]), (2, 3))
    assert tvm_ffi.structural_equal(LowerScans()(mod), mod)
    symbolic = module(lambda x: op.cumsum(x, 1), (2, tirx.Var("n", "int64")))
    assert tvm_ffi.structural_equal(LowerScans()(symbolic), symbolic)

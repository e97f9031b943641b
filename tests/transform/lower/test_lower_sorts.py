# SPDX-License-Identifier: Apache-2.0
"""Sorting by counting: the same elements and places as numpy's stable sort, no operator left for TVM to dispatch."""

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, tirx

from helpers import bindings, module, op, random, run
from smartmem_tvm.transform.lower.lower_sorts import LowerSorts


def lowered(build, *shapes, dtype="float32"):
    """The module after the pass, its operators as they were for all others."""
    mod = LowerSorts()(module(build, *shapes, dtype=dtype))
    names = {b.value.op.name for b in bindings(mod) if isinstance(b.value, relax.Call)}
    assert not names & {"relax.topk", "relax.sort", "relax.argsort"} and "relax.call_tir" in names
    return relax.transform.LegalizeOps()(mod)


def few(*shape):
    """Small whole numbers, so that many are equal."""
    return np.random.default_rng(0).integers(0, 4, shape).astype("float32")


def order(x, axis, descending):
    """Indices of a stable sort; like numpy, and unlike its negative, with NaN as the largest."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    back = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return x.shape[axis] - 1 - back


@pytest.mark.pairwise
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, -1])
def test_topk(axis, largest, k):
    (x,) = random((5, 4, 7))
    values, indices = run(lowered(lambda x: op.topk(x, k, axis, "both", largest, "int64"), x.shape), x)
    found = order(x, axis, largest)
    found = found if k < 0 else np.take(found, np.arange(k), axis)
    np.testing.assert_array_equal(indices, found)
    np.testing.assert_array_equal(values, np.take_along_axis(x, found, axis))
    assert indices.dtype == "int64"


@pytest.mark.parametrize("wanted", ["values", "indices"])
def test_one_result_of_topk(wanted):
    (x,) = random((3, 11))
    (got,) = run(lowered(lambda x: op.topk(x, 2, 1, wanted), x.shape), x)
    found = order(x, 1, descending=True)[:, :2]
    np.testing.assert_array_equal(got, found if wanted == "indices" else np.take_along_axis(x, found, 1))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(3, 37), (1, 1), (64, 2)])
def test_equal_elements_keep_their_order(shape, descending):
    x = few(*shape)
    (got,) = run(lowered(lambda x: op.argsort(x, 1, descending), x.shape), x)
    np.testing.assert_array_equal(got, order(x, 1, descending))


@pytest.mark.parametrize("descending", [False, True])
def test_sorted_elements(descending):
    x = few(13, 3)
    (got,) = run(lowered(lambda x: op.sort(x, 0, descending), x.shape), x)
    np.testing.assert_array_equal(got, np.sort(x, 0)[:: -1 if descending else 1])


@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_largest_and_infinities_are_kept(descending):
    x = few(4, 17)
    x[x == 3] = np.nan
    x[0] = np.nan
    x[1, 4], x[2, 9] = np.inf, -np.inf
    places, values = (
        run(lowered(each, x.shape), x)[0]
        for each in (lambda x: op.argsort(x, 1, descending), lambda x: op.sort(x, 1, descending))
    )
    np.testing.assert_array_equal(places, order(x, 1, descending))
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, 1))


def test_whole_numbers():
    x = np.array([[7, -(2**31), 2**31 - 1, 7, 0]], "int32")
    mod = lowered(lambda x: op.argsort(x, 1, True), x.shape, dtype="int32")
    np.testing.assert_array_equal(run(mod, x)[0], [[2, 0, 3, 4, 1]])


@pytest.mark.parametrize("shape", [(2, tirx.Var("n", "int64")), (17000, 17000)])
def test_what_stays(shape):
    mod = module(lambda x: op.sort(x, 1), shape)
    assert tvm_ffi.structural_equal(LowerSorts()(mod), mod)
    other = module(op.exp, (2, 3))
    assert tvm_ffi.structural_equal(LowerSorts()(other), other)

# SPDX-License-Identifier: Apache-2.0
"""The place of an extreme as two reductions: what numpy finds, no pair left."""

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, tirx

from helpers import bindings, module, op, random, run
from module_lines import assert_lines
from smartmem_tvm.transform.lower.lower_argmax import LowerArgmax

KINDS = {"argmax": (op.argmax, np.argmax), "argmin": (op.argmin, np.argmin)}


def lowered(build, *shapes, dtype="float32"):
    """The module after the pass, its operators as they were for all others."""
    mod = LowerArgmax()(module(build, *shapes, dtype=dtype))
    names = {b.value.op.name for b in bindings(mod) if isinstance(b.value, relax.Call)}
    assert not names & {"relax.argmax", "relax.argmin"} and "relax.call_tir" in names
    return relax.transform.LegalizeOps()(mod)


def test_before_and_after():
    assert_lines(
        LowerArgmax()(module(lambda x: op.argmax(x, 1), (3, 7))),
        """
        for i0, i1, j in grid(3, 1, 7):
            first_place[i0, i1] = 9223372036854775807
            first_place[i0, i1] = min(first_place[i0, i1], Select(lv[i0, i1] <= x0[i0, j], j, 7))
        for i0, i1 in grid(3, 1):
            place[i0, i1] = Select(first_place[i0, i1] < 7, first_place[i0, i1], 0)
        lv = max(x0, axis=[1], keepdims=True)
        lv1 = call first_place(x0, lv)
        lv2 = reshape(lv1, shape([3]))
        """,
    )


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("keepdims", [True, False])
def test_along_each_axis(kind, axis, keepdims):
    ours, reference = KINDS[kind]
    (x,) = random((3, 7, 11))
    (got,) = run(lowered(lambda x: ours(x, axis, keepdims), x.shape), x)
    np.testing.assert_array_equal(got, reference(x, axis, keepdims=keepdims))
    assert got.dtype == "int64" and got.shape == reference(x, axis, keepdims=keepdims).shape


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_of_equal_elements(kind):
    ours, reference = KINDS[kind]
    x = np.random.default_rng(0).integers(-2, 2, (50, 9)).astype("int32")
    mod = lowered(lambda x: ours(x, 1), x.shape, dtype="int32")
    np.testing.assert_array_equal(run(mod, x)[0], reference(x, 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.finfo("float32").min, np.finfo("float32").max])
def test_rows_of_an_extreme_of_the_type(kind, value):
    x = np.full((2, 5), value, "float32")
    np.testing.assert_array_equal(run(lowered(lambda x: KINDS[kind][0](x, 1), x.shape), x)[0], [0, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_nan_leads_to_no_place_outside_of_the_row(kind):
    x = np.full((2, 5), np.nan, "float32")
    x[1, 2] = 3
    (got,) = run(lowered(lambda x: KINDS[kind][0](x, 1), x.shape), x)
    assert ((got >= 0) & (got < 5)).all()


@pytest.mark.parametrize("shape", [((2, tirx.Var("n", "int64")), "float32"), ((2, 3), "bool")])
def test_what_stays(shape):
    mod = module(lambda x: op.argmax(x, 1), shape)
    assert tvm_ffi.structural_equal(LowerArgmax()(mod), mod)

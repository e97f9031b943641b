# SPDX-License-Identifier: Apache-2.0
"""What is written to a box of a tensor: numpy's assignment to a slice, and nothing that scatters is left."""

import numpy as np
import pytest
from tvm import relax

from helpers import bindings, module, op, random, run
from module_lines import assert_lines
from smartmem_tvm.transform.lower.lower_scatters import LowerScatters


def places(*ranges):
    """The index of each place of a box, as ONNX's exporters make it of a slice: one row for each."""
    return np.stack(np.meshgrid(*ranges, indexing="ij"), -1).astype("int64")


def written(shape, indices, updates, reduction="update"):
    """The module before the pass, and after it."""
    before = module(lambda x, u: op.scatter_nd(x, relax.const(indices), u, reduction), shape, updates)
    return before, LowerScatters()(before)


def scatters(mod) -> bool:
    names = [b.value.op.name for b in bindings(mod) if isinstance(b.value, relax.Call)]
    return "relax.scatter_nd" in names


def compare(shape, slices, lead=None, negative=False):
    """``x[slices] = u``; `lead` is the shape that indices have before their last dimension."""
    ranges = [range(*each.indices(size)) for each, size in zip(slices, shape, strict=False)]
    indices = places(*ranges)
    indices = indices if lead is None else indices.reshape(*lead, len(ranges))
    if negative:
        indices = indices - np.array(shape[: len(ranges)])
    x, u = random(shape, (*indices.shape[:-1], *shape[len(ranges) :]))
    before, after = written(x.shape, indices, u.shape)
    assert scatters(before) and not scatters(after)
    expected = x.copy()
    expected[tuple(slices)] = u.reshape(expected[tuple(slices)].shape)
    (got,) = run(relax.transform.LegalizeOps()(after), x, u)
    np.testing.assert_array_equal(got, expected)


def test_before_and_after():
    assert_lines(
        written((3, 7), places(range(3), range(1, 7)), (3, 6))[1],
        """
        for i0, i1 in grid(3, 7):
            scatter[i0, i1] = if_then_else(1 <= i1, x1[i0, i1 - 1], x0[i0, i1])
        lv = call scatter(x0, x1)
        """,
    )


S = slice
SLICES = [
    ((5, 7), [S(None), S(1, None)]),
    ((5, 7), [S(2, 3), S(0, 5)]),
    ((5, 7), [S(1, 4)]),
    ((4, 6, 9), [S(None), S(1, 6, 2), S(None, None, 4)]),
    ((4, 4, 4), [S(3, 4), S(3, 4), S(3, 4)]),
    ((1, 3, 8, 8), [S(None)] * 4),
]


@pytest.mark.parametrize(("shape", "slices"), SLICES, ids=str)
@pytest.mark.parametrize("negative", [False, True])
def test_slices(shape, slices, negative):
    compare(shape, slices, negative=negative)


@pytest.mark.parametrize("lead", [(12,), (1, 12), (2, 6), (3, 4), (3, 1, 2, 2)])
def test_indices_of_another_shape(lead):
    """Rows of indices in order are the box, whatever their dimensions are."""
    compare((5, 7), [S(1, 4), S(2, 6)], lead)


@pytest.mark.parametrize(
    "indices",
    [
        [[0, 0], [0, 2], [0, 3]],  # no step
        [[0, 1], [0, 0]],  # not in order
        [[0, 0], [1, 1]],  # a diagonal
        [[1, 1], [1, 1]],  # twice the same
    ],
)
def test_no_box(indices):
    indices = np.array(indices, "int64")
    _, after = written((3, 4), indices, (len(indices),))
    assert scatters(after)


def test_what_is_added_is_left_alone():
    assert scatters(written((3, 4), places(range(3), range(2)), (3, 2), "add")[1])


def test_indices_that_are_computed_are_left_alone():
    def build(x, i, u):
        return op.scatter_nd(x, op.astype(i, "int64"), u)

    assert scatters(LowerScatters()(module(build, (3, 4), (2, 2), (2,))))

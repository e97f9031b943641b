# SPDX-License-Identifier: Apache-2.0
"""Running sums along the last axis get another last axis."""

import pytest
import tvm_ffi
from tvm import relax

from helpers import assert_same_results, bindings, module, op, random
from smartmem_tvm.transform.mend_scans import MendScans


def axes(mod) -> list[tuple[int, int]]:
    """The axis of each sum, and the dimensions of what is summed."""
    calls = [b.value for b in bindings(mod) if isinstance(b.value, relax.Call)]
    return [(int(c.attrs.axis), c.args[0].ty.ndim) for c in calls if c.op.name == "relax.cumsum"]


@pytest.mark.parametrize("axis", [-1, 2])
@pytest.mark.parametrize("exclusive", [False, True])
def test_the_last_axis(axis, exclusive):
    mod = module(lambda x: op.cumsum(x, axis, exclusive=exclusive), (2, 3, 5))
    mended = MendScans()(mod)
    assert axes(mended) == [(2, 4)]
    assert_same_results(mod, mended, *random((2, 3, 5)))


def test_the_type_of_the_sum_stays():
    mod = module(lambda x: op.cumsum(x, -1, dtype="int64"), (4, 6), dtype="int32")
    mended = MendScans()(mod)
    assert tvm_ffi.structural_equal(mended["main"].ret_ty, mod["main"].ret_ty)


@pytest.mark.parametrize("axis", [0, 1, -2, None])
def test_other_sums_stay(axis):
    mod = module(lambda x: op.cumsum(x, axis), (2, 3, 5))
    assert tvm_ffi.structural_equal(MendScans()(mod), mod)

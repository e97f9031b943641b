# SPDX-License-Identifier: Apache-2.0
"""WrapCasts: casts of numbers that do not fit."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx, topi

from helpers import legal, op
from smartmem_tvm.tvm_mends import WrapCasts


def places(wrap: bool) -> np.ndarray:
    """Where the least of some numbers is, cut to 32 bits, as the kernel of a reduction to pairs finds it."""
    x = te.placeholder((2, 4), "int64", name="x")
    rest = te.compute(x.shape, lambda *i: tirx.floormod(x(*i), tirx.const(1 << 32, "int64")))

    def wrapped(*i):
        negative = rest(*i) >= tirx.const(1 << 31, "int64")
        return tirx.Select(negative, rest(*i) - tirx.const(1 << 32, "int64"), rest(*i)).astype("int32")

    cut = te.compute(x.shape, wrapped)
    func = te.create_prim_func([x, topi.argmin(cut, 1)]).with_attr("global_symbol", "main")
    schedule = s_tir.Schedule(func)
    for block in schedule.get_child_blocks(schedule.get_sblock("root"))[:2]:
        schedule.compute_inline(block)
    mod = WrapCasts()(schedule.mod) if wrap else schedule.mod
    out = tvm.runtime.tensor(np.zeros(2, "int32"))
    tvm.compile(mod, target="llvm")["main"](tvm.runtime.tensor(NUMBERS), out)
    return out.numpy()


NUMBERS = np.array([[5, -3, 1 << 33, 7], [9, -8, -7, -6]], "int64")


def test_the_place_of_an_extreme_of_cast_numbers():
    want = NUMBERS.astype("int32").argmin(1)
    np.testing.assert_array_equal(places(True), want)


def test_tvm_ends_where_a_bound_does_not_fit():
    with pytest.raises(ValueError, match="exceeds range"):
        places(False)
        pytest.fail("TVM is right by now: remove WrapCasts")


@pytest.mark.parametrize("dtypes", [("int32", "int64"), ("int64", "int32"), ("float32", "int32")])
def test_what_stays(dtypes):
    """Numbers that fit, that nothing is known of, or that are no integers."""
    mod = legal(lambda x: op.astype(x, dtypes[1]), (2, 4), dtype=dtypes[0])
    assert WrapCasts()(mod).same_as(mod)

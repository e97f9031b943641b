# SPDX-License-Identifier: Apache-2.0
"""ClampIndices: places of indices from the end."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from smartmem_tvm.ir.walk import collect
from smartmem_tvm.tvm_mends import ClampIndices


def take(dtype: str) -> tvm.IRModule:
    x, i = te.placeholder((2, 10), "float32", name="x"), te.placeholder((5,), dtype, name="i")
    func = te.create_prim_func([x, i, topi.take(x, i, 1, mode="wrap")])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_indices_count_from_both_ends_and_stay_inside(dtype):
    mod = ClampIndices()(take(dtype))
    assert collect(mod["main"].body, tirx.Select) and not collect(mod["main"].body, tirx.Mod)
    x, index = np.arange(20, dtype="float32").reshape(2, 10), np.array([0, 9, -1, -10, 3], dtype)
    out = tvm.runtime.tensor(np.zeros((2, 5), "float32"))
    kernel = tvm.compile(mod, target="llvm")["main"]
    kernel(*map(tvm.runtime.tensor, (x, index)), out)
    np.testing.assert_array_equal(out.numpy(), x[:, index])
    kernel(*map(tvm.runtime.tensor, (x, np.array([10, 99, -11, -99, 0], dtype))), out)
    np.testing.assert_array_equal(out.numpy(), x[:, [9, 9, 0, 0, 0]])


def test_other_remainders_stay():
    x = te.placeholder((10,), "int64", name="x")
    func = te.create_prim_func([x, te.compute((10,), lambda i: tirx.truncmod(x[i] + 3, 10))])
    mod = tvm.IRModule({"main": func})
    assert ClampIndices()(mod).same_as(mod)

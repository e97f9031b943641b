# SPDX-License-Identifier: Apache-2.0
"""LowerConcats: long lists in groups, which are not put together again."""

import numpy as np
import pytest
from tvm import ir, tirx

import smartmem_tvm
from helpers import bindings, module, op
from smartmem_tvm.tables.fusion_policy import MOST_INPUTS
from smartmem_tvm.transform import LowerConcats


def lists(mod) -> list[int]:
    values = [b.value for b in bindings(mod)]
    return [len(v.args[0].fields) for v in values if isinstance(v, ir.Call) and v.op.name == "relax.concat"]


@pytest.mark.parametrize(("count", "groups"), [(65, [32, 32, 3]), (97, [32, 32, 32, 4])])
def test_before_and_after(count, groups):
    mod = LowerConcats()(module(lambda *xs: op.concat(list(xs), 0), *[(1, 2)] * count))
    assert sorted(lists(mod), reverse=True) == sorted(groups, reverse=True)


def test_short_lists_stay():
    assert lists(LowerConcats()(module(lambda *xs: op.concat(list(xs), 0), *[(1, 2)] * MOST_INPUTS))) == [MOST_INPUTS]


@pytest.mark.parametrize("build", [lambda y: y, op.tanh, lambda y: op.sum(y, 0)])
def test_no_kernel_reads_more_tensors_than_kernels_take(build):
    xs = [np.full((1 + n % 2, 3), n, "float32") / 100 for n in range(130)]
    compiled = smartmem_tvm.compile(module(lambda *xs: build(op.concat(list(xs), 0)), *[x.shape for x in xs]))
    kernels = [f for f in compiled.graph.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert max(len(f.params) for f in kernels) <= MOST_INPUTS + 1
    whole = np.concatenate(xs)
    want = {(195, 3): whole, (3,): whole.sum(0)}
    (got,) = compiled.run(*xs)
    reference = want[got.shape] if build is not op.tanh else np.tanh(whole)
    np.testing.assert_allclose(got, reference, rtol=1e-5, atol=1e-6)

# SPDX-License-Identifier: Apache-2.0
"""LowerSingleTerms: reductions over one element."""

import numpy as np
import pytest

from helpers import legal, op, random, run
from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.transform import LowerSingleTerms


def reductions(mod) -> int:
    kernels = [parse(func) for name, func in mod.functions_items() if name.name_hint != "main"]
    return sum(bool(stage.reduction) for kernel in kernels for stage in kernel.stages)


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (op.matmul, [(5, 1), (1, 3)]),
        (lambda x: op.max(x, 1), [(4, 1, 3)]),
        (lambda x: op.nn.avg_pool2d(x, (1, 1)), [(1, 2, 3, 3)]),
    ],
)
def test_one_term_is_no_reduction(build, shapes):
    mod = legal(build, *shapes)
    lowered = LowerSingleTerms()(mod)
    assert reductions(mod) > 0 and reductions(lowered) == 0
    inputs = random(*shapes)
    for got, wanted in zip(run(lowered, *inputs), run(mod, *inputs), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_longer_ones_and_places_are_left_alone():
    for build, shapes in ((op.matmul, [(5, 2), (2, 3)]), (lambda x: op.argmax(x, 1), [(4, 1)])):
        mod = legal(build, *shapes)
        assert LowerSingleTerms()(mod).same_as(mod) or reductions(LowerSingleTerms()(mod)) == reductions(mod)

# SPDX-License-Identifier: Apache-2.0
"""SplitWindows: the same results, in parts that multiply by less padding."""

import numpy as np
import pytest
from tvm import ir, relax

from helpers import assert_same_results, bindings, constant, module, op, random
from smartmem_tvm.ir.block import shape_of
from smartmem_tvm.transform import SplitWindows


def convolutions(mod) -> list[tuple[int, ...]]:
    """Windows and results of the convolutions, in order."""
    values = [b.value for b in bindings(mod)]
    found = [v for v in values if isinstance(v, ir.Call) and v.op.name.startswith("relax.nn.conv")]
    return [(*shape_of(v.args[1])[2:], *shape_of(v)[2:]) for v in found]


def split(build, *shapes) -> list[tuple[int, ...]]:
    """Run the pass, compare results; returns what convolutions there are."""
    before = module(build, *shapes)
    after = SplitWindows()(before)
    assert_same_results(before, after, *random(*shapes), tolerance=2e-3)
    return convolutions(after)


def dilated(size, kernel=(3, 3), channels=64, filters=64, batch=1, **attrs):
    shape = (batch, channels, *size)
    return split(lambda x: op.nn.conv2d(x, constant(filters, channels, *kernel), **attrs), shape)


def test_nine_parts():
    found = dilated((29, 31), dilation=(24, 27), padding=(24, 27))
    assert [each[:2] for each in found] == [(2, 2), (2, 1), (2, 2), (1, 2), (1, 1), (1, 2), (2, 2), (2, 1), (2, 2)]
    assert found[0] == (2, 2, 5, 4) and found[4] == (1, 1, 19, 23)


def test_along_one_dimension():
    lines = dilated((29, 40), kernel=(3, 1), dilation=(26, 1), padding=(26, 0), batch=2)
    columns = dilated((40, 29), dilation=(1, 26), padding=(1, 26))
    assert lines == [(2, 1, 3, 40), (1, 1, 23, 40), (2, 1, 3, 40)]
    assert columns == [(3, 2, 40, 3), (3, 1, 40, 23), (3, 2, 40, 3)]


UNEVEN = {
    "strides": ((61, 61), {"strides": (2, 3), "dilation": 54, "padding": 54}),
    "padding on one side": ((32, 32), {"dilation": 29, "padding": (58, 30, 0, 28)}),
    "more padding than a window": ((30, 30), {"dilation": 25, "padding": 26}),
}


@pytest.mark.parametrize("case", UNEVEN)
def test_other_windows(case):
    size, attrs = UNEVEN[case]
    dilated(size, **attrs)


def test_lines_and_frames():
    line = split(lambda x: op.nn.conv1d(x, constant(64, 64, 3), padding=900, dilation=900), (1, 64, 1000))
    frames = split(
        lambda x: op.nn.conv3d(x, constant(64, 64, 3, 1, 1), padding=(4, 0, 0), dilation=(4, 1, 1)), (1, 64, 5, 20, 20)
    )
    assert line == [(2, 100), (1, 800), (2, 100)]
    assert frames == [(2, 1, 1, 1, 20, 20), (1, 1, 1, 3, 20, 20), (2, 1, 1, 1, 20, 20)]


def test_before_a_reader():
    def build(x):
        y = op.nn.conv2d(x, constant(64, 64, 3, 3), padding=26, dilation=26)
        return op.nn.relu(op.add(y, constant(1, 64, 1, 1))), op.nn.max_pool2d(y, (2, 2))

    assert len(split(build, (1, 64, 29, 29))) == 9


def _conv(*kernel, **attrs):
    return lambda x: op.nn.conv2d(x, constant(64, *kernel), **attrs)


def _unbounded(x):
    return op.nn.conv2d(x, relax.const(np.full((64, 64, 3, 3), np.inf, "float32")), padding=26, dilation=26)


REFUSED = {
    "hardly any padding": _conv(64, 3, 3, padding=1),
    "many groups of results": _conv(64, 21, 21, padding=10),
    "groups": _conv(1, 3, 3, padding=26, dilation=26, groups=64),
    "weights that are not finite": _unbounded,
    "results that see nothing": _conv(64, 3, 3, padding=60, dilation=26),
    "more weights than work": _conv(64, 3, 3, padding=(1, 1, 0, 0), strides=(28, 28)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    before = module(REFUSED[case], (1, 64, 29, 29))
    assert convolutions(SplitWindows()(before)) == convolutions(before)


def test_computed_weights_stay():
    before = module(lambda x, w: op.nn.conv2d(x, w, padding=26, dilation=26), (1, 64, 29, 29), (64, 64, 3, 3))
    assert convolutions(SplitWindows()(before)) == convolutions(before)


def test_nothing_is_split_where_kernels_are_dear():
    before = module(_conv(64, 3, 3, padding=26, dilation=26), (1, 64, 29, 29))
    assert convolutions(SplitWindows(float("inf"))(before)) == convolutions(before)
    assert len(convolutions(SplitWindows()(before))) == 9

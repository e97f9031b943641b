# SPDX-License-Identifier: Apache-2.0
"""TrimWindows: the same results, without the places of windows that only see padding."""

import numpy as np
import pytest
from tvm import ir, relax

from helpers import assert_same_results, bindings, constant, module, op, random
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.transform import TrimWindows


def windows(mod) -> list[tuple[int, ...]]:
    """The windows of the convolutions, in order."""
    values = [b.value for b in bindings(mod)]
    found = [v for v in values if isinstance(v, ir.Call) and v.op.name.startswith("relax.nn.conv")]
    return [tuple(int(dim) for dim in v.args[1].ty.shape)[2:] for v in found]


def trimmed(build, *shapes) -> list[tuple[int, ...]]:
    """Run the pass, compare results; returns the windows afterwards."""
    before = module(build, *shapes)
    after = TrimWindows()(before)
    assert_same_results(before, after, *random(*shapes), tolerance=1e-4)
    done = [entry for entry in read_log(after) if entry["pass"] == "TrimWindows"]
    assert bool(done) == (windows(before) != windows(after))
    assert all(entry["flops_saved"] > 0 for entry in done)
    return windows(after)


TWO = {
    "only the middle": ((7, 5), (3, 3), {"padding": 8, "dilation": 8}, (1, 1)),
    "lines only": ((3, 9), (3, 3), {"padding": 4, "dilation": 4}, (1, 3)),
    "one side": ((5, 5), (3, 3), {"padding": (6, 1, 0, 1), "dilation": (3, 1)}, (2, 3)),
    "both sides": ((1, 1), (5, 7), {"padding": (2, 3)}, (1, 1)),
    "strides": ((7, 1), (3, 3), {"padding": (1, 1), "strides": (2, 2)}, (3, 1)),
    "strides over the picture": ((2, 2), (5, 5), {"padding": 2, "strides": 3}, (2, 2)),
    "even window": ((6, 6), (2, 4), {"padding": (0, 7, 6, 14), "dilation": (6, 7)}, (1, 1)),
    "padding left over": ((3, 3), (3, 3), {"padding": 5, "dilation": 4}, (1, 1)),
    "less padding than a step": ((3, 3), (2, 1), {"padding": (5, 0, 0, 0), "dilation": (7, 1)}, (2, 1)),
}


@pytest.mark.parametrize("case", TWO)
def test_pictures(case):
    size, kernel, attrs, expected = TWO[case]
    found = trimmed(lambda x: op.nn.conv2d(x, constant(5, 4, *kernel), **attrs), (2, 4, *size))
    assert found == [expected]


def test_groups_and_a_reader():
    def build(x):
        return op.nn.relu(op.nn.conv2d(x, constant(6, 1, 3, 3), padding=9, dilation=9, groups=6))

    assert trimmed(build, (1, 6, 8, 8)) == [(1, 1)]


def test_lines_and_frames():
    line = trimmed(lambda x: op.nn.conv1d(x, constant(3, 4, 5), padding=4, dilation=2), (1, 4, 3))
    frame = trimmed(lambda x: op.nn.conv3d(x, constant(3, 4, 3, 3, 3), padding=1), (1, 4, 1, 5, 5))
    assert line == [(3,)] and frame == [(1, 3, 3)]


def _kept(x):
    return op.nn.conv2d(x, constant(5, 4, 3, 3), padding=5, dilation=5)


def _unbounded(x):
    values = np.full((5, 4, 3, 3), np.inf, "float32")
    return op.nn.conv2d(x, relax.const(values), padding=9, dilation=9)


def _all_padding(x):
    return op.nn.conv2d(x, constant(5, 4, 1, 1), padding=(9, 0, 0, 0), strides=(20, 1))


REFUSED = {
    "all places see something": (_kept, (1, 4, 7, 7)),
    "weights that are not finite": (_unbounded, (1, 4, 7, 7)),
    "no place sees anything": (_all_padding, (1, 4, 7, 7)),
    "channels last": (
        lambda x: op.nn.conv2d(
            x, constant(3, 3, 4, 5), padding=9, dilation=9, data_layout="NHWC", kernel_layout="HWIO"
        ),
        (1, 7, 7, 4),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    build, shape = REFUSED[case]
    before = module(build, shape)
    assert windows(TrimWindows()(before)) == windows(before)


def test_computed_weights_stay():
    before = module(lambda x, w: op.nn.conv2d(x, w, padding=9, dilation=9), (1, 4, 7, 7), (5, 4, 3, 3))
    assert windows(TrimWindows()(before)) == [(3, 3)]

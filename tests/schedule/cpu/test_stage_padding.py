# SPDX-License-Identifier: Apache-2.0
"""StagePadding: windows whose operand is padded within them are those of a padded copy; nothing else changes."""

import pytest
import tvm
from tvm import te, tirx

from helpers import assert_same_results, constant, legal, nodes, op, random
from smartmem_tvm.pipeline import Options, graph_phases, run_phases
from smartmem_tvm.schedule import ScheduleKernels, StagePadding
from smartmem_tvm.schedule.schedule_kernels import kernel_rules
from smartmem_tvm.target import parse_target

CPU = parse_target("cpu")


def padded(x, *widths):
    """A ``Pad`` of its own; widths before and after of each dimension."""
    return op.nn.pad(x, [side for pair in widths for side in pair], "constant", 0.0)


def staged(build, *shapes):
    """The graph before and after, which do the same."""
    with CPU:
        before = run_phases(legal(build, *shapes), graph_phases(CPU), Options())
    after = StagePadding()(before)
    assert_same_results(before, after, *random(*shapes))
    return before, after


def stages(mod) -> list[str]:
    return [stage.name for node in nodes(mod) for stage in node.kernel.stages]


def rules(mod) -> list[str]:
    with CPU:
        return [each["name"] for each in kernel_rules(ScheduleKernels()(mod)).values()]


@pytest.mark.parametrize(
    ("groups", "side", "strides", "dilation", "widths"),
    [
        (8, 3, 1, 1, ((1, 1), (1, 1))),
        (8, 7, 1, 1, ((3, 3), (3, 3))),
        (8, 3, 2, 1, ((0, 1), (0, 1))),
        (8, 3, 1, 2, ((2, 2), (2, 2))),
        (1, 3, 1, 1, ((1, 1), (1, 1))),
        (1, 5, 2, 1, ((1, 2), (2, 1))),
        (2, 3, 1, 1, ((0, 0), (1, 1))),
        (1, 3, (2, 1), (1, 2), ((1, 1), (2, 2))),
    ],
)
def test_a_pad_of_its_own_before_a_convolution(groups, side, strides, dilation, widths):
    same = strides == 1 and all(sum(pair) == dilation * (side - 1) for pair in widths)

    def build(x):
        x = op.nn.relu(x)
        weight = constant(8, 8 // groups, side, side)
        image = padded(x, (0, 0), (0, 0), *widths)
        y = op.nn.relu(op.nn.conv2d(image, weight, strides=strides, dilation=dilation, groups=groups))
        return op.add(y, x) if same else y

    before, after = staged(build, (2, 8, 12, 14))
    assert "pad" not in stages(before)
    if strides in (1, 2) and (strides, dilation) != (2, 2):
        assert stages(after).count("pad") == 1
    if groups == 8:
        assert any("Depthwise" in rule for rule in rules(after))


def test_pools():
    def build(x):
        return op.nn.max_pool2d(padded(op.nn.relu(x), (0, 0), (0, 0), (1, 1), (1, 0)), (3, 3), strides=(2, 2))

    before, after = staged(build, (1, 3, 9, 14))
    assert "pad" not in stages(before) and stages(after).count("pad") == 1


def test_one_dimension_and_three():
    def line(x):
        return op.nn.conv1d(padded(x, (0, 0), (0, 0), (2, 2)), constant(4, 6, 5))

    def volume(x):
        return op.nn.conv3d(padded(x, (0, 0), (0, 0), (1, 1), (1, 1), (0, 2)), constant(4, 3, 3, 3, 3))

    assert stages(staged(line, (2, 6, 17))[1]).count("pad") == 1
    assert stages(staged(volume, (1, 3, 5, 6, 7))[1]).count("pad") == 1


def check_function(*params):
    """Before and after of one function of TE's."""
    before = tvm.IRModule({"main": te.create_prim_func(params)})
    return before, StagePadding()(before)


def test_places_that_no_iterator_stands_for_stay():
    """Stride and dilation of two: the places of a window are not all places of the copy."""
    x = te.placeholder((40,), "float32", "x")
    k = te.reduce_axis((0, 3), "k")
    zero = tirx.const(0, "float32")

    def term(i):
        at = 2 * i + 2 * k - 3
        return tirx.if_then_else(tirx.all(at >= 0, at < 40), x[at], zero)

    before, after = check_function(x, te.compute((20,), lambda i: te.sum(term(i), k), "y"))
    tvm.ir.assert_structural_equal(before, after)


def test_sums_that_are_no_window_stay():
    x = te.placeholder((5, 7), "float32", "x")
    k = te.reduce_axis((0, 9), "k")
    zero = tirx.const(0, "float32")
    y = te.compute((5,), lambda i: te.sum(tirx.if_then_else(k < 7, x[i, k], zero), k), "y")
    before, after = check_function(x, y)
    tvm.ir.assert_structural_equal(before, after)


def test_a_condition_on_something_else_stays():
    """A causal window: what is read depends on the result's place, too."""
    x = te.placeholder((9,), "float32", "x")
    k = te.reduce_axis((0, 3), "k")
    zero = tirx.const(0, "float32")

    def term(i):
        return tirx.if_then_else(tirx.all(i + k >= 1, i + k < 10, k <= i), x[i + k - 1], zero)

    before, after = check_function(x, te.compute((9,), lambda i: te.sum(term(i), k), "y"))
    tvm.ir.assert_structural_equal(before, after)


@pytest.mark.parametrize("strides", [(2, 2), (2, 1), (1, 1)])
def test_what_takes_long_to_compute_is_computed_once(strides):
    """A pool of an activation, which reads every other place; one that reads places several times leaves it apart."""

    def build(x):
        return op.nn.max_pool2d(op.multiply(x, op.sigmoid(x)), (2, 2), strides)

    before, after = staged(build, (1, 8, 12, 40))
    assert len(stages(before)) == (1 if strides == (2, 2) else 2)
    assert len(stages(after)) == 2 and "Depthwise" in rules(after)


def test_what_a_copy_does_not_save_is_computed_where_it_is_read():
    """Channels are lanes, and no place is read twice; and what is cheap."""

    def channels(x):
        return op.nn.max_pool2d(op.sigmoid(x), (2, 2), (2, 2), layout="NHWC")

    def cheap(x):
        return op.nn.max_pool2d(op.nn.relu(x), (2, 2), (2, 2))

    for build, shape in ((channels, (1, 12, 16, 32)), (cheap, (1, 8, 12, 40))):
        before, after = staged(build, shape)
        assert stages(after) == stages(before)

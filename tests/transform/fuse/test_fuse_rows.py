# SPDX-License-Identifier: Apache-2.0
"""FuseRows: normalisations in pieces become one kernel, row by row; whatever leaves its row does not."""

import numpy as np
import pytest
from tvm import relax

from helpers import assert_same_results, calls, constant, legal, nodes, op, random, run
from smartmem_tvm.analysis.fusion_price import PRICIER
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.schedule import Prices
from smartmem_tvm.tables.fusion_policy import PRICE_MARGIN
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import EliminateLayout, FuseOperators, FuseRows
from smartmem_tvm.transform.fuse import fuse_rows as fuse_rows_module

ROWS, COLUMNS = 5, 6
SHAPE = (ROWS, COLUMNS)


def layer_norm(x, axis=-1):
    """As exporters without a layer norm write it."""
    centred = op.subtract(x, op.mean(x, axis=axis, keepdims=True))
    variance = op.mean(op.multiply(centred, centred), axis=axis, keepdims=True)
    return op.divide(centred, op.sqrt(op.add(variance, relax.const(1e-5))))


def softmax(x):
    powers = op.exp(op.subtract(x, op.max(x, axis=-1, keepdims=True)))
    return op.divide(powers, op.sum(powers, axis=-1, keepdims=True))


def rows_fused(build, *shapes):
    before = legal(build, *shapes)
    after = FuseRows()(EliminateLayout()(before))
    assert_same_results(before, after, *random(*shapes))
    return after


def decisions(mod) -> list:
    return [entry for entry in read_log(mod) if entry["pass"] == "FuseRows"]


def test_a_layer_norm_in_pieces():
    after = rows_fused(layer_norm, SHAPE)
    assert len(calls(after)) == 1
    (entry,) = decisions(after)
    assert [m.split(" ")[0].rstrip("0123456789") for m in entry["members"]].count("mean") == 2
    assert "rows" in entry["reason"]


def test_a_softmax_in_pieces_evaluates_exp_once():
    """exp is expensive: it keeps a stage of its own, that the sum and the quotient read."""
    after = rows_fused(softmax, SHAPE)
    (node,) = nodes(after)
    bodies = [str(stage.body) for stage in node.kernel.stages]
    assert sum(body.count("exp(") for body in bodies) == 1


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_along_any_axis(axis):
    assert len(calls(rows_fused(lambda x: layer_norm(x, axis), (3, 4, 5)))) == 1


def test_with_scale_shift_and_residual():
    def build(x, y):
        return op.add(op.add(op.multiply(layer_norm(op.add(x, y)), constant(COLUMNS)), constant(COLUMNS)), y)

    before = legal(build, SHAPE, SHAPE)
    after = FuseOperators()(FuseRows()(EliminateLayout()(before)))
    assert len(calls(after)) == 1
    assert_same_results(before, after, *random(SHAPE, SHAPE))


def test_against_numpy():
    (x,) = random(SHAPE)
    (got,) = run(rows_fused(layer_norm, SHAPE), x)
    np.testing.assert_allclose(got, (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5), rtol=1e-4)


def test_an_inner_value_that_is_a_result_stays_outside():
    def build(x):
        mean = op.mean(x, axis=-1, keepdims=True)
        return mean, op.subtract(x, mean)

    assert len(calls(rows_fused(build, SHAPE))) > 1


def test_an_inner_value_that_others_read_stays_outside():
    def build(x, w):
        centred = op.subtract(x, op.mean(x, axis=-1, keepdims=True))
        return op.nn.relu(centred), op.matmul(centred, w)

    after = rows_fused(build, SHAPE, (COLUMNS, 3))
    matmul = nodes(after)[-1]
    assert [bool(stage.reduction) for stage in matmul.kernel.stages] == [True]


def test_sums_over_different_axes_are_different_rows():
    """The total of a column needs every row."""

    def build(x):
        return op.subtract(
            op.subtract(x, op.mean(x, axis=-1, keepdims=True)),
            op.mean(x, axis=0, keepdims=True),
        )

    after = rows_fused(build, SHAPE)
    assert all(sum(bool(s.reduction) for s in node.kernel.stages) <= 1 for node in nodes(after))


def test_a_transposed_read_leaves_its_row():
    """On a square the shapes agree, but row i of the difference needs the mean of every other row of `y`."""

    def build(x):
        y = op.subtract(x, op.mean(x, axis=-1, keepdims=True))
        return op.subtract(y, op.permute_dims(op.mean(y, axis=-1, keepdims=True)))

    after = rows_fused(build, (6, 6))
    assert all(sum(bool(s.reduction) for s in node.kernel.stages) <= 1 for node in nodes(after))


def test_a_matmul_is_no_row_statistic():
    def build(x, w):
        y = op.matmul(x, w)
        return op.nn.relu(y)

    after = rows_fused(build, SHAPE, (COLUMNS, COLUMNS))
    assert decisions(after) == []


def test_a_convolution_is_no_row_statistic():
    after = rows_fused(lambda x, w: op.nn.relu(op.nn.conv2d(x, w)), (1, 2, 6, 6), (3, 2, 3, 3))
    assert decisions(after) == []


def test_what_prepares_the_first_statistic_is_left_to_fusion_by_type():
    """A pointwise chain alone is no group."""
    after = rows_fused(lambda x: op.nn.relu(op.negative(x)), SHAPE)
    assert decisions(after) == []


def test_running_twice_changes_nothing_more():
    once = rows_fused(layer_norm, SHAPE)
    assert calls(FuseRows()(once)) == calls(once)


@pytest.mark.parametrize(("limit", "kernels"), [(2**21, 1), (16, 2)], ids=["small", "large"])
def test_a_layer_with_one_row_joins_its_norm_while_its_weight_is_small(limit, kernels, monkeypatch):
    """Its weight is used once, as a row is; a large one is work for every core."""
    monkeypatch.setattr(fuse_rows_module, "SINGLE_ROW_BYTES", limit)

    def build(x):
        return op.nn.relu(op.nn.layer_norm(op.matmul(x, constant(8, 6)), constant(6), constant(6), axes=[-1]))

    before = legal(build, (1, 8))
    after = FuseOperators()(FuseRows()(before))
    assert_same_results(before, after, *random((1, 8)))
    assert len(calls(after)) == kernels


class Asked:
    """Prices that are always the same."""

    def __init__(self, fused: float, apart: float):
        self.answer, self.questions = (fused, apart), []

    def compare(self, fused, parts):
        self.questions.append((list(fused), list(parts)))
        return self.answer


@pytest.mark.parametrize(("shape", "axis"), [(SHAPE, -1), ((7, 13), 0), ((1, 17, 1), 1), ((3, 1), -1)])
@pytest.mark.parametrize(("fused", "apart"), [(1e6, 2e6), (2.4e6, 2e6), (3e6, 2e6)])
def test_prices_decide_with_a_margin_and_both_are_noted(shape, axis, fused, apart):
    before, prices = EliminateLayout()(legal(lambda x: layer_norm(x, axis), shape)), Asked(fused, apart)
    after, free = FuseRows(prices)(before), FuseRows()(before)
    assert_same_results(before, after, *random(shape))
    assert prices.questions
    refused = fused > PRICE_MARGIN * apart
    assert (len(calls(after)) == len(calls(before))) == refused
    assert refused or calls(after) == calls(free)
    for entry in decisions(after):
        assert entry["action"] == ("kept" if refused else "fused") and ("into" in entry) != refused
        assert entry["cycles"] == {"fused": fused, "apart": apart} and entry["decided_by"].startswith("price: ")
        assert (entry["reason"] == PRICIER) == refused


def test_the_parts_are_the_kernels_of_the_group():
    prices = Asked(1e6, 1e6)
    before = EliminateLayout()(legal(layer_norm, SHAPE))
    FuseRows(prices)(before)
    (((whole,), parts),) = prices.questions
    assert len(parts) == len(calls(before)) and len(whole.outputs) == 1
    assert sum(bool(stage.reduction) for stage in whole.stages) == 2


@pytest.mark.parametrize("shape", [(49, 96), (197, 192), (13, 1), (1, 7)])
def test_a_layer_norm_costs_less_as_one_kernel_by_the_prices_of_a_cpu(shape):
    before = EliminateLayout()(legal(layer_norm, shape))
    after = FuseRows(Prices(parse_target("cpu")))(before)
    assert len(calls(after)) == 1
    assert_same_results(before, after, *random(shape))
    (entry,) = decisions(after)
    assert entry["cycles"]["fused"] < entry["cycles"]["apart"]

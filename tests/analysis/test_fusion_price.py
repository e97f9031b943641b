# SPDX-License-Identifier: Apache-2.0
"""Prices decide between legal ways, with a margin; only where a fusion repeats work are they asked for."""

import pytest

from helpers import assert_same_results, calls, legal, nodes, op, random
from smartmem_tvm.analysis.fusion_price import NO_PRICE, PRICIER, Verdict, judge, repeats_in_windows
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.schedule import Prices
from smartmem_tvm.tables.fusion_policy import PRICE_MARGIN
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import EliminateLayout, FuseAttention, FuseOperators


class Asked:
    """Prices that are always the same."""

    def __init__(self, fused: float, apart: float):
        self.answer, self.questions = (fused, apart), []

    def compare(self, fused, parts):
        self.questions.append((list(fused), list(parts)))
        return self.answer


def pooled(x):
    """Windows that overlap, over what is cheap."""
    return op.nn.max_pool2d(op.nn.relu(op.add(x, x)), (3, 3), (1, 1), (0, 0))


def gated(x, w):
    """Two halves of the channels of one sum, one of which is the gate of the other."""
    channels = int(w.ty.shape[0])
    halves = op.split(op.nn.conv2d(x, w, padding=1, groups=channels), 2, axis=1)
    return op.multiply(halves[0], op.sigmoid(halves[1]))


def product_then_pool(x, w):
    return op.nn.avg_pool2d(op.nn.conv2d(x, w), (2, 2), (2, 2))


def decisions(mod, name) -> list[dict]:
    return [entry for entry in read_log(mod) if entry["pass"] == name]


def test_a_small_difference_says_nothing():
    assert not NO_PRICE.refuses and NO_PRICE.noted == {}
    assert not Verdict(1e6 * (PRICE_MARGIN - 0.01), 1e6).refuses
    assert Verdict(1e6 * (PRICE_MARGIN + 0.01), 1e6).refuses


def test_both_prices_are_noted():
    noted = Verdict(11_170_000.4, 3_700_000).noted
    assert noted["decided_by"] == "price: 11.17 M cycles fused, 3.70 M separate"
    assert noted["cycles"] == {"fused": 11_170_000, "apart": 3_700_000}


def test_without_prices_nothing_is_judged():
    assert judge(None, [], []) is NO_PRICE


@pytest.mark.parametrize(("fused", "apart", "kernels"), [(1e6, 2e6, 1), (3e6, 2e6, 2)])
def test_windows_take_in_what_the_price_allows(fused, apart, kernels):
    before, prices = legal(pooled, (1, 3, 11, 13)), Asked(fused, apart)
    after = FuseOperators(prices=prices)(before)
    assert len(calls(after)) == kernels
    assert_same_results(before, after, *random((1, 3, 11, 13)))
    relu = [entry for entry in decisions(after, "FuseOperators") if entry["operator"].startswith("relu")]
    assert [entry["action"] for entry in relu] == ["fused" if kernels == 1 else "kept"]
    assert relu[0]["decided_by"].startswith("price: ")
    assert kernels == 1 or relu[0]["reason"] == PRICIER
    (whole,), parts = prices.questions[0]
    assert len(parts) == 2 and len(whole.stages) >= 1


@pytest.mark.parametrize(("fused", "apart", "kernels"), [(1e6, 2e6, 1), (3e6, 2e6, 2)])
def test_a_sum_that_would_become_two_is_asked_about(fused, apart, kernels):
    shapes = (1, 8, 6, 7), (8, 1, 3, 3)
    before, prices = EliminateLayout()(legal(gated, *shapes)), Asked(fused, apart)
    after = FuseOperators(prices=prices)(before)
    assert len(calls(after)) == kernels
    assert_same_results(before, after, *random(*shapes), tolerance=1e-5)
    (whole,), _ = prices.questions[0]
    assert sum(bool(stage.reduction) for stage in whole.stages) == 2


def test_gated_windows_stay_windows_on_a_cpu():
    """A rule knows windows over single channels, and none knows two of them at once."""
    shapes = (1, 256, 14, 14), (256, 1, 3, 3)
    prices = Prices(parse_target("cpu"))
    after = FuseOperators(prices=prices)(EliminateLayout()(legal(gated, *shapes)))
    assert [prices.of(node.kernel).rule for node in nodes(after)] == ["Depthwise", "Elementwise"]
    assert PRICIER in {entry["reason"] for entry in decisions(after, "FuseOperators")}


def test_products_are_not_asked_about():
    """What a product packs is worked out once: asking would only take time."""
    prices = Asked(3e6, 1e6)
    after = FuseOperators(prices=prices)(legal(lambda x, w: op.matmul(op.nn.relu(x), w), (16, 8), (8, 12)))
    assert len(calls(after)) == 1 and not prices.questions


def test_windows_that_do_not_overlap_repeat_nothing():
    def build(x):
        return op.nn.max_pool2d(op.nn.relu(x), (2, 2), (2, 2))

    relu, pool = nodes(legal(build, (1, 3, 8, 8)))
    assert not repeats_in_windows(relu, pool)
    relu, pool = nodes(legal(lambda x: op.nn.max_pool2d(op.nn.relu(x), (3, 3)), (1, 3, 8, 8)))
    assert repeats_in_windows(relu, pool)


@pytest.mark.parametrize(("fused", "apart", "kernels"), [(1e6, 2e6, 1), (3e6, 2e6, 2)])
def test_a_product_and_its_windows(fused, apart, kernels):
    shapes = (1, 16, 12, 12), (24, 16, 1, 1)
    before = legal(product_then_pool, *shapes)
    prepared = FuseOperators()(EliminateLayout()(before))
    after = FuseAttention(prices=Asked(fused, apart))(prepared)
    assert len(calls(after)) == kernels
    assert_same_results(before, after, *random(*shapes), tolerance=1e-4)
    (entry,) = decisions(after, "FuseAttention")
    assert entry["cycles"] == {"fused": fused, "apart": apart}
    assert (entry["reason"] == PRICIER) == (kernels == 2)

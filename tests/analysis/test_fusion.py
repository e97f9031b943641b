# SPDX-License-Identifier: Apache-2.0
"""Mapping check, constraint check and profile: what decides whether two kernels become one."""

import pytest
from tvm import relax

from helpers import assert_same_results, calls, constant, graph, legal, op, random
from smartmem_tvm.analysis import fusion
from smartmem_tvm.analysis.fusion import FusionCheck, loads_per_element, local_bytes
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.kernel import parse, shape_of
from smartmem_tvm.transform import EliminateLayout, FuseOperators


class Measured:
    """Profiles that know every kernel: `fused` seconds as one, `apart` seconds in parts."""

    def __init__(self, fused: float, apart: float):
        self.answer = (fused, apart)
        self.asked: list = []

    def compare(self, fused, parts):
        self.asked.append((fused, parts))
        return self.answer


def matmul_then_transposed(x, w):
    """Many-to-Many then Shuffle, a yellow cell."""
    return op.permute_dims(op.matmul(x, w))


def decided(mod) -> dict:
    (entry,) = [e for e in read_log(mod) if e["pass"] == "FuseOperators"]
    return entry


@pytest.mark.parametrize(("fused", "apart", "kernels"), [(1e-6, 2e-6, 1), (2e-6, 1e-6, 2), (1e-6, 1e-6, 1)])
def test_a_profile_decides_a_yellow_cell(fused, apart, kernels):
    before = legal(matmul_then_transposed, (5, 6), (6, 7))
    profiles = Measured(fused, apart)
    after = FuseOperators(profiles)(before)
    assert len(calls(after)) == kernels
    assert decided(after)["decided_by"] == f"profile: {fused * 1e6:.1f} us fused, {apart * 1e6:.1f} us separate"
    assert_same_results(before, after, *random((5, 6), (6, 7)))


def test_a_question_holds_the_fused_kernel_and_its_parts():
    profiles = Measured(1.0, 2.0)
    FuseOperators(profiles)(legal(matmul_then_transposed, (5, 6), (6, 7)))
    ((fused, parts),) = profiles.asked
    assert (len(fused), len(parts)) == (1, 2)
    assert [shape_of(parse(f).outputs[0]) for f in (*fused, *parts)] == [(7, 5), (5, 7), (7, 5)]


def test_without_an_answer_the_cost_model_decides():
    for profiles in (None, Measured(1, 1)):
        if profiles is not None:
            profiles.answer = None
        after = FuseOperators(profiles)(legal(matmul_then_transposed, (5, 6), (6, 7)))
        assert decided(after)["decided_by"] == "cost model"
        assert len(calls(after)) == 1


def test_green_and_red_cells_ask_nobody():
    profiles = Measured(2.0, 1.0)  # would refuse everything
    green = FuseOperators(profiles)(legal(lambda x, w: op.nn.relu(op.matmul(x, w)), (5, 6), (6, 7)))
    red = FuseOperators(profiles)(legal(lambda x, y, w: op.matmul(op.add(x, y), w), (5, 6), (6,), (6, 7)))
    assert (len(calls(green)), len(calls(red))) == (1, 2)
    assert decided(green)["decided_by"] == decided(red)["decided_by"] == "DNNFusion Table 3"
    assert not profiles.asked


def test_registers_limit_what_is_fused(monkeypatch):
    """A sum of six tensors: two kernels of at most four operands each, and the value between them."""

    def build(*x):
        total = x[0]
        for each in x[1:]:
            total = op.add(total, each)
        return total

    shapes = [(4, 5)] * 6
    assert len(calls(FuseOperators()(legal(build, *shapes)))) == 1
    monkeypatch.setattr(fusion, "MOST_LOADS", 4)
    before = legal(build, *shapes)
    after = FuseOperators()(before)
    assert max(loads_per_element(node.kernel) for node in graph(after) if node.kernel) == 4
    assert len(calls(after)) == 2
    assert any("more than 4 operands" in entry["reason"] for entry in read_log(after))
    assert_same_results(before, after, *random(*shapes))


def test_local_memory_limits_what_is_fused(monkeypatch):
    """The exponentials of a row live inside the softmax; with less local memory than a row nothing joins it."""

    def build(x):
        return op.nn.relu(op.nn.softmax(x))

    before = legal(build, (5, 64))
    (softmax,) = [n for n in graph(before) if n.kernel and "softmax" in n.members[0]]
    assert local_bytes(softmax.kernel) == 64 * 4
    monkeypatch.setattr(fusion, "MOST_LOCAL_BYTES", 64)
    assert len(calls(FuseOperators()(before))) == 1, "the fused kernel needs no more than the softmax did"


def test_local_memory_counts_what_is_aggregated_at_once():
    """A pointwise intermediate of a matmul's operand that is kept: a row of it is needed for each element."""
    matmul = legal(lambda x, w: op.nn.relu(op.matmul(x, w)), (5, 6), (6, 7))
    (node,) = [n for n in graph(FuseOperators()(matmul)) if n.kernel]
    assert local_bytes(node.kernel) == 0, "one element of the sum at a time"


def test_constants_are_part_of_the_operator():
    check = FusionCheck(graph(legal(lambda x: op.add(x, constant(6)), (5, 6))))
    (node,) = [n for n in check.graph if n.kernel]
    assert check.type_of(node).value == "One-to-One"
    check = FusionCheck(graph(legal(op.add, (5, 6), (6,))))
    (node,) = [n for n in check.graph if n.kernel]
    assert check.type_of(node).value == "One-to-Many"


@pytest.mark.parametrize("halves", ["glu", "normalised"])
def test_a_reduction_read_through_several_maps_takes_in_its_reader(halves):
    """The halves of a gated unit; sums that are divided by the last of them (linear attention)."""

    def glu(x, w):
        y = op.matmul(x, w)
        left, right = (op.strided_slice(y, [1], [b], [e]) for b, e in ((0, 4), (4, 8)))
        return op.multiply(left, op.sigmoid(right))

    def normalised(x, w):
        y = op.matmul(x, w)
        value, total = op.strided_slice(y, [1], [0], [7]), op.strided_slice(y, [1], [7], [8])
        return op.divide(value, op.add(total, relax.const(20.0)))

    before = legal({"glu": glu, "normalised": normalised}[halves], (5, 6), (6, 8))
    after = FuseOperators()(EliminateLayout()(before))
    assert len(calls(after)) == 1
    assert_same_results(before, after, *random((5, 6), (6, 8)))


def test_a_reduction_read_twice_through_overlapping_maps_stays_apart():
    """Each element of the product is needed by two results: computing it twice is no bargain."""

    def build(x, w):
        y = op.matmul(x, w)
        return op.subtract(y, op.permute_dims(y))

    assert len(calls(FuseOperators()(legal(build, (5, 6), (6, 5))))) == 2

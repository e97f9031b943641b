# SPDX-License-Identifier: Apache-2.0
"""MergeChains: recurrences that are written out become one kernel with a loop; short and large ones stay."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax

from helpers import assert_same_results, calls, constant, legal, op, random
from module_lines import module_lines
from smartmem_tvm.analysis.chain_cost import LARGE
from smartmem_tvm.ir.chain import Steps, read_chain
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.transform import EliminateLayout, FuseOperators, FuseRows, MergeChains

WIDTH = 6


def at(x, step):
    """``x[step]`` of a sequence that lies step after step."""
    return op.squeeze(op.strided_slice(x, [0], [step], [step + 1]), axis=[0])


def recurrence(steps, width=WIDTH, every=False):
    """h = tanh(h @ w + x[t]), the last one or all of them."""
    w = constant(width, width)

    def build(x, h):
        kept = []
        for step in range(steps):
            h = op.tanh(op.add(op.matmul(h, w), at(x, step)))
            kept.append(h)
        return op.concat(kept, axis=0) if every else h

    return build, (steps, 1, width), (1, width)


def fused(build, *shapes):
    mod = legal(build, *shapes)
    for each in (EliminateLayout(), FuseOperators()):
        mod = each(mod)
    return mod


def merged(build, *shapes, device=None):
    before = fused(build, *shapes)
    after = MergeChains(device)(before)
    assert_same_results(before, after, *random(*shapes))
    return before, after


def chains(mod):
    found = [read_chain(func) for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    return [each for each in found if each is not None]


def loops(chain):
    return [item for item in chain.items if isinstance(item, Steps)]


def decisions(mod):
    return [entry for entry in read_log(mod) if entry["pass"] == "MergeChains"]


def test_steps_become_a_loop():
    before, after = merged(*recurrence(12))
    assert len(calls(before)) == 12 and len(calls(after)) == 1
    (chain,) = chains(after)
    (loop,) = loops(chain)
    assert (loop.first, loop.last) == (1, 11) and len(chain.stages) == 6
    lines = module_lines(after)
    assert "for step in serial(1, 11" in lines and "x0[step, 0, i1]" in lines and "[(step - 1) % 2, 0, k]" in lines
    (entry,) = decisions(after)
    assert entry["action"] == "merged" and entry["kernels"] == 12 and "launch" in entry["reason"]


def test_steps_that_one_kernel_holds_already_are_rolled_up_too():
    """`FuseRows` puts steps of few numbers together, and a launch for each is what they would take."""
    build, *shapes = recurrence(12)
    before = FuseRows()(EliminateLayout()(legal(build, *shapes)))
    after = MergeChains()(before)
    assert len(calls(before)) == 1 and len(loops(chains(after)[0])) == 1
    assert_same_results(before, after, *random(*shapes))


def test_all_steps_are_kept_that_are_read_later():
    before, after = merged(*recurrence(10, every=True))
    assert len(calls(before)) == 11 and len(calls(after)) == 1


def test_results_in_the_middle_are_results_of_the_kernel():
    w = constant(WIDTH, WIDTH)

    def build(x, h):
        kept = []
        for step in range(12):
            h = op.tanh(op.add(op.matmul(h, w), at(x, step)))
            kept.append(h)
        return kept[3], kept[7], h

    _, after = merged(build, (12, 1, WIDTH), (1, WIDTH))
    assert len(calls(after)) == 1 and len(chains(after)[0].outputs) == 3


def test_a_state_of_two_steps_before():
    """A filter: two steps are read back, and two places are kept of a state that only the last of is a result."""

    def build(x, a):
        b = op.multiply(a, relax.const(0.5))
        for step in range(16):
            a, b = op.tanh(op.subtract(op.max(op.add(a, at(x, step)), axis=1, keepdims=True), b)), a
        return a

    _, after = merged(build, (16, 1, WIDTH), (1, WIDTH))
    assert len(calls(after)) == 1 and len(loops(chains(after)[0])) == 1


def test_a_result_that_another_kernel_reads_on_the_way_back_stays_outside():
    """A large product in the middle: what waits for it cannot be in the kernel that it waits for."""
    build, *shapes = recurrence(10)
    w = constant(WIDTH, 1 << 17)

    def around(x, h):
        first = build(x, h)
        wide = op.max(op.matmul(op.reshape(first, (1, WIDTH)), w), axis=1, keepdims=True)
        return build(x, op.add(first, wide))

    _, after = merged(around, *shapes)
    assert 2 < len(calls(after)) < 6


@pytest.mark.parametrize("steps", [2, 7])
def test_a_short_chain_is_left_alone(steps):
    before, after = merged(*recurrence(steps))
    tvm.ir.assert_structural_equal(before, after)


def test_a_network_without_chains_is_left_alone():
    def build(x):
        for _ in range(20):
            x = op.nn.relu(op.matmul(x, constant(512, 512)))
        return x

    before = fused(build, (64, 512))
    tvm.ir.assert_structural_equal(before, MergeChains()(before))


def test_a_product_of_a_large_matrix_is_left_to_all_processors():
    build, *shapes = recurrence(10, 512)
    before = fused(build, *shapes)
    assert calls(MergeChains()(before)) == calls(before)
    slow = MergeChains(replace(LARGE, launch_cycles=1e6))(before)
    assert len(calls(slow)) == 1


def test_what_does_not_fit_on_the_chip_is_cut_or_kept_with_the_reason():
    before = fused(*recurrence(20, every=True))
    halves = MergeChains(replace(LARGE, shared_bytes=600))(before)
    assert 1 < len(calls(halves)) < len(calls(before))
    assert_same_results(before, halves, *random((20, 1, WIDTH), (1, WIDTH)))
    none = MergeChains(replace(LARGE, shared_bytes=260))(before)
    assert calls(none) == calls(before)


def test_steps_with_other_operators_are_done_one_after_the_other():
    functions = [op.tanh, op.sigmoid, op.nn.relu, op.abs]

    def build(x, h):
        for step in range(12):
            h = functions[step * step % 4](op.subtract(at(x, step * step % 11), op.max(h, axis=1, keepdims=True)))
        return h

    _, after = merged(build, (12, 1, WIDTH), (1, WIDTH))
    assert len(calls(after)) == 1 and not loops(chains(after)[0])


@pytest.mark.parametrize("batch", [1, 33])
def test_what_comes_in_with_its_reader(batch):
    """Products of the inputs wait for nothing: each joins with the step that reads it."""
    w, u = constant(WIDTH, WIDTH), constant(WIDTH, WIDTH)

    def build(x, h):
        for step in range(9):
            own = op.sum(op.multiply(op.matmul(at(x, step), u), relax.const(0.25)), axis=1, keepdims=True)
            h = op.tanh(op.add(op.matmul(h, w), own))
        return h

    before, after = merged(build, (9, batch, WIDTH), (batch, WIDTH))
    assert len(calls(before)) > 9 and len(calls(after)) == 1


def test_another_kernel_between_two_members_keeps_them_apart():
    """first -> outside -> last, and first comes in by a reader: the pass must not make a circle of it."""
    w, wide = constant(WIDTH, WIDTH), constant(WIDTH, 2048)

    def build(x, h):
        early = op.matmul(at(x, 0), w)
        outside = op.max(op.matmul(op.exp(early), wide), axis=1, keepdims=True)
        for step in range(10):
            h = op.tanh(op.add(op.matmul(h, w), outside if step == 3 else at(x, step)))
        return op.add(op.matmul(h, w), early)

    before, after = merged(build, (10, 1, WIDTH), (1, WIDTH))
    assert len(calls(after)) < len(calls(before))
    assert np.isfinite(len(decisions(after)))

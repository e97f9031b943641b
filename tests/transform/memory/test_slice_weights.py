# SPDX-License-Identifier: Apache-2.0
"""SliceWeights and JoinSlices: a layer in slices computes the same numbers, to the last bit, and fits."""

from itertools import pairwise

import numpy as np
import pytest
import tvm
from tvm import ir, relax

from helpers import constant, module, op
from smartmem_tvm import Options, compile
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.sizes import JOIN
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.pass_registry import make_pass
from smartmem_tvm.pipeline import graph_phases, lower_phases, run_phases
from smartmem_tvm.target import host_target
from smartmem_tvm.transform import JoinSlices, SliceWeights
from smartmem_tvm.transform.memory.slice_weights import MOST_SLICES, VECTOR, _parts


def product(x):
    return op.nn.gelu(op.add(op.matmul(x, constant(96, 300)), constant(300)))


def projections(x):
    """Three readers of one tensor, with widths that are no multiples of a vector."""
    return op.add(op.matmul(x, constant(96, 517)), op.multiply(op.matmul(x, constant(96, 517)), constant(517)))


def transposed(x):
    return op.permute_dims(op.matmul(x, constant(96, 224)), (1, 0))


def convolution(x):
    return op.nn.relu(op.add(op.nn.conv2d(x, constant(200, 24, 3, 3), padding=1), constant(1, 200, 1, 1)))


def strided(x):
    return op.nn.conv2d(x, constant(130, 24, 5, 5), strides=2, padding=2)


def grouped(x):
    return op.nn.conv2d(x, constant(384, 6, 5, 5), padding=2, groups=4)


def residual(x):
    return op.add(
        x,
        op.nn.conv2d(op.nn.relu(op.nn.conv2d(x, constant(96, 24, 5, 5), padding=2)), constant(24, 96, 5, 5), padding=2),
    )


def positions(x):
    """A class token in front of others, and what is added to all: large, and cut along the tokens."""
    return op.add(op.concat([constant(1, 384), op.matmul(x, constant(96, 384))], axis=0), constant(65, 384))


def parted(x):
    """Of a tuple, which is no tensor, between kernels."""
    found = op.topk(op.matmul(x, constant(96, 320)), k=160, axis=-1)
    return op.add(op.matmul(found[0], constant(160, 160)), op.astype(found[1], "float32"))


TOKENS, IMAGE, IMAGES = (7, 96), (1, 24, 9, 11), (2, 24, 9, 11)
# With a budget of one byte slices are as narrow as they may be: up to 64 kernels to compile for a weight.
CASES = [(product, TOKENS, 1), (parted, TOKENS, 50_000), (convolution, IMAGES, 50_000)]
CASES += [(product, (1, 96), 50_000), (product, (3, 5, 96), 50_000), (projections, TOKENS, 50_000)]
CASES += [(transposed, TOKENS, 50_000), (positions, (64, 96), 50_000), (convolution, IMAGE, 50_000)]
CASES += [(strided, IMAGE, 99_999), (strided, IMAGES, 50_000), (grouped, IMAGE, 99_999), (residual, IMAGES, 99_999)]
DEVICE = {(product, (3, 5, 96)), (convolution, IMAGE), (strided, IMAGES)}  # operators of other cases, on other shapes


def kernels(build, *shapes):
    target = tvm.target.Target("llvm")
    with target:
        return run_phases(module(build, *shapes), graph_phases(target), Options())


def decisions(mod):
    return [entry for entry in read_log(mod) if entry["pass"] == "SliceWeights"]


@pytest.mark.parametrize(
    ("build", "shape", "budget"),
    [pytest.param(*case, marks=[pytest.mark.device] * (case[:2] in DEVICE)) for case in CASES],
)
def test_same_numbers(build, shape, budget):
    mod = module(build, shape)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (expected,) = compile(mod, _target(), Options(winograd=False)).run(x)  # as with any budget
    sliced = SliceWeights(budget)(kernels(build, shape))
    assert any(entry["slices"] > 1 for entry in decisions(sliced))
    np.testing.assert_array_equal(_run(sliced, x), expected)


def _target() -> tvm.target.Target:
    """This CPU without LLVM's optimizations: the order of sums is that of the kernels."""
    return tvm.target.Target({**host_target().export(), "opt-level": 0})


def _run(graph, x):
    """A graph of kernels, scheduled and built with the slices joined."""
    target = _target()
    with target:
        schedule, _, lower = lower_phases(target)
        mod = run_phases(graph, (schedule,), Options())
        for name in lower.passes:
            if name in ("join-slices", "stream-weights"):
                mod = JoinSlices()(mod) if name == "join-slices" else mod
                assert not any(getattr(c.op, "global_symbol", "") == JOIN for c in collect(mod["main"], ir.Call))
                continue
            mod = make_pass(name, Options(), target)(mod)
        executable = relax.build(mod, target, relax_pipeline=None)
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def test_before_and_after():
    sliced = SliceWeights(2 * 64 * 96 * 4)(kernels(product, TOKENS))
    (entry,) = decisions(sliced)
    assert entry["slices"] == 5 and "64 of 300 in a slice" in entry["reason"]
    arrays = [c.value for c in collect(sliced["main"], ir.Constant) if isinstance(c.value, tvm.runtime.Tensor)]
    weights = [tuple(map(int, each.shape)) for each in arrays if len(each.shape) == 2]
    assert sorted(weights) == [(96, 44), *[(96, 64)] * 4]


@pytest.mark.parametrize("seed", range(50))
def test_slices_fit_and_are_few(seed):
    draw = np.random.default_rng(seed)
    extent, unit, room = int(draw.integers(17, 5000)), int(draw.integers(4, 5000)), int(draw.integers(1, 10**6))
    parts = list(_parts(extent, extent * unit, room))
    assert parts[0][0] == 0 and all(a + b == c for (a, b), (c, _) in pairwise(parts))
    assert sum(width for _, width in parts) == extent and all(width % VECTOR == 0 for _, width in parts[:-1])
    assert len(parts) <= 2 * MOST_SLICES
    widest = max(width for _, width in parts)
    smallest = max(-(-extent // MOST_SLICES), VECTOR)
    assert widest * unit <= room or widest <= smallest + VECTOR
    assert len(parts) == 1 or (len(parts) - 1) * room <= extent * unit * 2 or widest <= smallest + VECTOR


def test_what_would_be_computed_again_is_left():
    """A matmul in front of another one, in one kernel: each slice of the second would compute the first again."""

    def chain(x):
        return op.matmul(op.nn.softmax(op.matmul(x, constant(96, 300)), axis=-1), constant(300, 200))

    sliced = SliceWeights(1)(kernels(chain, TOKENS))
    kept = [entry for entry in decisions(sliced) if entry["slices"] == 1]
    assert all("computed again" in each["reason"] or "no dimension" in each["reason"] for each in kept)


def test_nothing_without_weights():
    def build(x):
        return op.nn.softmax(op.matmul(x, op.permute_dims(x, (1, 0))), axis=-1)

    graph = kernels(build, (64, 96))
    assert not decisions(SliceWeights(1)(graph))


def test_enough_memory_leaves_the_graph():
    graph = kernels(product, TOKENS)
    assert not decisions(SliceWeights(10**9)(graph))

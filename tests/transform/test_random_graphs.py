# SPDX-License-Identifier: Apache-2.0
"""Random graphs through all passes: results stay, reductions are not repeated, no layout kernel is left inside."""

import math

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from helpers import legalize, module, nodes, op, random, run
from smartmem_tvm.ir.index_map import division_count
from smartmem_tvm.ir.movement import movement
from smartmem_tvm.pipeline import Options, phases_of, run_phases
from smartmem_tvm.tables.fusion_policy import MOST_DIVISIONS
from smartmem_tvm.transform import EliminateLayout, FuseOperators, FuseRows

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
SHAPE = (4, 6)
# Each takes the tensors so far with their shapes, picks operands, and gives (function, operands, shape) or None.


def pointwise(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    which = draw(st.sampled_from(["relu", "tanh", "negative", "scale"]))
    functions = {
        "relu": op.nn.relu,
        "tanh": op.tanh,
        "negative": op.negative,
        "scale": lambda x: op.multiply(x, relax.const(0.5)),
    }
    return functions[which], [a], shapes[a]


def binary(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    b = draw(st.sampled_from([i for i, shape in enumerate(shapes) if shape == shapes[a]]))
    return draw(st.sampled_from([op.add, op.subtract, op.maximum])), [a, b], shapes[a]


def row(draw, shapes):
    """A broadcast of the sum of each row."""
    a = draw(st.sampled_from(range(len(shapes))))
    return lambda x: op.subtract(x, op.mean(x, axis=-1, keepdims=True)), [a], shapes[a]


def softmax(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    return op.nn.softmax, [a], shapes[a]


def matmul(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    fits = [i for i, s in enumerate(shapes) if len(s) == len(shapes[a]) == 2 and s[0] == shapes[a][1]]
    if not fits:
        return None
    b = draw(st.sampled_from(fits))
    return lambda x, y: op.multiply(op.matmul(x, y), relax.const(0.25)), [a, b], (shapes[a][0], shapes[b][1])


def transpose(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    axes = draw(st.permutations(range(len(shapes[a]))))
    return lambda x: op.permute_dims(x, axes), [a], tuple(shapes[a][i] for i in axes)


def reshape(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    total = math.prod(shapes[a])
    rows = draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
    new = draw(st.sampled_from([(rows, total // rows), (total,), (1, rows, total // rows)]))
    return lambda x: op.reshape(x, new), [a], new


def part(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    axis = draw(st.integers(0, len(shapes[a]) - 1))
    size = shapes[a][axis]
    start = draw(st.integers(0, size - 1))
    stop = draw(st.integers(start + 1, size))
    new = (*shapes[a][:axis], stop - start, *shapes[a][axis + 1 :])
    return lambda x: op.strided_slice(x, [axis], [start], [stop]), [a], new


def concat(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    axis = draw(st.integers(0, len(shapes[a]) - 1))
    rest = lambda s: (*s[:axis], *s[axis + 1 :])  # noqa: E731
    fits = [i for i, s in enumerate(shapes) if len(s) == len(shapes[a]) and rest(s) == rest(shapes[a])]
    b = draw(st.sampled_from(fits))
    new = list(shapes[a])
    new[axis] += shapes[b][axis]
    return lambda x, y: op.concat([x, y], axis), [a, b], tuple(new)


def roll(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    axis = draw(st.integers(0, len(shapes[a]) - 1))
    size = shapes[a][axis]
    if size < 2:
        return None
    cut = draw(st.integers(1, size - 1))

    def function(x):
        return op.concat([op.strided_slice(x, [axis], [cut], [size]), op.strided_slice(x, [axis], [0], [cut])], axis)

    return function, [a], shapes[a]


def other_movement(draw, shapes):
    """Movements that are not invertible, and a flip."""
    a = draw(st.sampled_from(range(len(shapes))))
    axis = draw(st.integers(0, len(shapes[a]) - 1))
    size = shapes[a][axis]
    rest = lambda n: (*shapes[a][:axis], n, *shapes[a][axis + 1 :])  # noqa: E731
    which = draw(st.sampled_from(["flip", "repeat", "take", "pad", "stride"]))
    if which == "flip":
        return lambda x: op.flip(x, axis), [a], shapes[a]
    if which == "repeat":
        return lambda x: op.repeat(x, 2, axis), [a], rest(2 * size)
    if which == "stride":
        return lambda x: op.strided_slice(x, [axis], [0], [size], [2]), [a], rest((size + 1) // 2)
    if which == "pad":
        width = [(0, 0)] * axis + [(1, 2)] + [(0, 0)] * (len(shapes[a]) - axis - 1)
        return lambda x: op.nn.pad(x, [n for pair in width for n in pair]), [a], rest(size + 3)
    picked = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4))
    return lambda x: op.take(x, relax.const(np.array(picked)), axis), [a], rest(len(picked))


def reduction(draw, shapes):
    a = draw(st.sampled_from(range(len(shapes))))
    if len(shapes[a]) < 2:
        return None
    axis = draw(st.integers(0, len(shapes[a]) - 1))
    function = draw(st.sampled_from([op.sum, op.max, op.mean]))
    return lambda x: function(x, axis=axis), [a], (*shapes[a][:axis], *shapes[a][axis + 1 :])


OPERATORS = [pointwise, pointwise, binary, binary, row, softmax, matmul, reduction]
OPERATORS += [transpose, transpose, reshape, part, concat, roll, other_movement, other_movement]


@st.composite
def programs(draw):
    """Steps over the tensors so far, and which of them are results."""
    shapes, steps = [SHAPE, SHAPE[::-1]], []
    for _ in range(draw(st.integers(2, 10))):
        step = draw(st.sampled_from(OPERATORS))(draw, shapes)
        if step is not None and math.prod(step[2]) <= 400:
            steps.append(step)
            shapes.append(step[2])
    others = draw(st.sets(st.integers(2, len(shapes) - 1), max_size=2)) if steps else set()
    return steps, sorted(others | {len(shapes) - 1})


def build(program) -> tvm.IRModule:
    steps, results = program

    def body(*tensors):
        tensors, builder = list(tensors), relax.BlockBuilder.current()
        for function, operands, _ in steps:
            tensors.append(builder.emit(function(*(tensors[i] for i in operands))))
        return tuple(tensors[i] for i in results)

    return module(body, SHAPE, SHAPE[::-1])


def assert_close(got, expected) -> None:
    assert [g.shape for g in got] == [e.shape for e in expected]
    for mine, reference in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-4)


def reductions(mod) -> int:
    return sum(bool(stage.reduction) for node in nodes(mod) if node.kernel for stage in node.kernel.stages)


@pytest.mark.slow
@settings(max_examples=40)
@given(programs())
def test_graph_passes(program):
    mod = legalize(build(program))
    arrays = random(SHAPE, SHAPE[::-1])
    expected = run(mod, *arrays)
    lean = EliminateLayout()(mod)
    assert_close(run(lean, *arrays), expected)
    outputs = {var.name for var in lean["main"].body.body.fields}
    inside = [n for n in nodes(lean) if n.kernel is not None and n.var.name not in outputs]
    moving = [n for n in inside if movement(n.kernel) is not None]
    assert all(division_count(n.kernel.last.body) > MOST_DIVISIONS for n in moving)
    fused = FuseOperators()(FuseRows()(lean))
    assert_close(run(fused, *arrays), expected)
    assert reductions(fused) <= reductions(lean)


@pytest.mark.slow
@settings(max_examples=20)
@given(programs())
def test_whole_pipeline(program):
    mod = build(program)
    arrays = random(SHAPE, SHAPE[::-1])
    with TARGET:
        lowered = run_phases(mod, phases_of(None), Options())
    machine = relax.VirtualMachine(relax.build(lowered, TARGET, relax_pipeline=None), tvm.cpu())
    got = machine["main"](*map(tvm.runtime.tensor, arrays))
    assert_close([each.numpy() for each in got], run(legalize(mod), *arrays))

# SPDX-License-Identifier: Apache-2.0
"""Algebraic laws read from loop programs, against the table of laws by operator."""

import numpy as np
import pytest
from tvm import relax

from helpers import legal, nodes, only_node, op
from smartmem_tvm.analysis.laws import laws, operator
from smartmem_tvm.tables.properties import PROPERTIES, properties
from smartmem_tvm.transform import EliminateLayout, FuseOperators

SHAPE = (4, 6)
REDUCTIONS = ("sum", "mean", "prod", "max", "min")
SHIFTS = ("left_shift", "right_shift")


def node_of(name: str, dtype: str):
    """One operator of the table, legalised."""
    build = op
    for part in name.split("."):
        build = getattr(build, part)
    if name in REDUCTIONS:
        return only_node(lambda x: build(x, axis=1), SHAPE, dtype=dtype)
    if name == "matmul":
        return only_node(build, (4, 6), (6, 5), dtype=dtype)
    if name == "clip":
        return only_node(lambda x: build(x, 0, 6), SHAPE, dtype=dtype)
    if name.startswith("nn.conv"):
        rank = int(name[len("nn.conv")])
        return only_node(lambda x, w: build(x, w, padding=1), (1, 3) + (8,) * rank, (5, 3) + (3,) * rank, dtype=dtype)
    operands = 1 if name in UNARY else 2
    return only_node(build, *[SHAPE] * operands, dtype=dtype)


UNARY = ("negative", "abs", "square", "sqrt", "rsqrt", "exp", "log", "nn.relu")
INTEGER = (*SHIFTS, "bitwise_and", "bitwise_or", "bitwise_xor")
DTYPE = dict.fromkeys(INTEGER, "int32") | {name: "bool" for name in PROPERTIES if name.startswith("logical_")}


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_operator_of_the_table_is_recognised_by_its_loops(name):
    kernel = node_of(name, DTYPE.get(name, "float32")).kernel
    assert laws(kernel) == properties(name)
    if name != "logical_xor":  # of truth values the same as bitwise_xor
        assert operator(kernel) == name


@pytest.mark.parametrize("name", ["add", "multiply", "subtract", "negative", "abs", "maximum", "sum", "matmul"])
def test_integers_obey_the_same_laws(name):
    assert laws(node_of(name, "int32").kernel) == properties(name)


@pytest.mark.parametrize("name", ["multiply", "exp", "sum", "mean", "matmul", "nn.conv2d"])
def test_half_precision_accumulated_in_single(name):
    assert laws(node_of(name, "float16").kernel) == properties(name)


NO_LAWS = {
    "gelu": (op.nn.gelu, [SHAPE]),
    "sigmoid": (op.sigmoid, [SHAPE]),
    "softmax": (op.nn.softmax, [SHAPE]),
    "tanh": (op.tanh, [SHAPE]),
    "where": (lambda c, x, y: op.where(c, x, y), [(SHAPE, "bool"), SHAPE, SHAPE]),
    "argmax": (lambda x: op.argmax(x, axis=1), [SHAPE]),
    "transpose": (op.permute_dims, [SHAPE]),
    "pad": (lambda x: op.nn.pad(x, (1, 1, 1, 1)), [SHAPE]),
    "a sum in integers of floats": (lambda x: op.astype(op.multiply(x, x), "int32"), [SHAPE]),
    "doubling by addition": (lambda x: op.add(x, x), [SHAPE]),
    "cumulative sum": (lambda x: op.cumsum(x, axis=1), [SHAPE]),
    "floor division": (op.floor_divide, [SHAPE, SHAPE]),
    "variance": (lambda x: op.variance(x, axis=1), [SHAPE]),
}


@pytest.mark.parametrize(("build", "shapes"), NO_LAWS.values(), ids=NO_LAWS)
def test_no_law_is_made_up(build, shapes):
    fused = FuseOperators()(EliminateLayout()(legal(build, *shapes)))
    for node in nodes(fused):
        assert node.kernel is None or laws(node.kernel) == frozenset()


def test_a_constant_operand_changes_nothing():
    two = relax.const(np.float32(2))
    for build in (op.add, op.subtract, op.multiply, op.divide, op.maximum, op.power):
        kernel = only_node(lambda x, build=build: build(x, two), SHAPE).kernel
        assert laws(kernel) == laws(only_node(build, SHAPE, SHAPE).kernel) != frozenset()


@pytest.mark.parametrize("value", [-1, 0, 1, 6])
def test_special_constants(value):
    """0, 1 and -1 make other operators of some forms, and of others not."""
    constant = relax.const(np.float32(value))
    assert operator(only_node(lambda x: op.subtract(constant, x), SHAPE).kernel) == (
        "subtract" if value else "negative"
    )
    assert operator(only_node(lambda x: op.clip(x, -1, value + 1), SHAPE).kernel) == "clip"
    limited = operator(only_node(lambda x: op.maximum(x, constant), SHAPE).kernel)
    assert limited == ("nn.relu" if value == 0 else "maximum")
    if value not in (0, 1):  # TVM folds these
        scaled = operator(only_node(lambda x: op.multiply(x, constant), SHAPE).kernel)
        assert scaled == ("negative" if value == -1 else "multiply")


def test_a_fused_kernel_is_no_single_operator():
    fused = FuseOperators()(legal(lambda x, y: op.multiply(op.add(x, y), x), SHAPE, SHAPE))
    (node,) = nodes(fused)
    assert laws(node.kernel) == frozenset()


def test_layout_operators_read_through_do_not_matter():
    (node,) = nodes(EliminateLayout()(legal(lambda x, y: op.add(x, op.permute_dims(y)), (4, 4), (4, 4))))
    assert operator(node.kernel) == "add"
    (node,) = nodes(EliminateLayout()(legal(lambda x: op.add(x, op.permute_dims(x)), (4, 4))))
    assert operator(node.kernel) == "add", "two different elements, though of one tensor"


def test_a_pointwise_convolution_is_a_matmul_and_a_depthwise_one_is_not():
    pointwise = only_node(op.nn.conv2d, (1, 3, 8, 8), (5, 3, 1, 1)).kernel
    assert operator(pointwise) == "matmul"
    depthwise = only_node(lambda x, w: op.nn.conv2d(x, w, groups=4), (1, 4, 8, 8), (4, 1, 3, 3)).kernel
    assert operator(depthwise) == "nn.conv2d"


def test_padding_counts_unless_it_is_where_the_reduction_starts():
    pooled = only_node(lambda x: op.nn.max_pool2d(x, (3, 3), padding=(1, 1)), (1, 2, 6, 6)).kernel
    assert operator(pooled) == "max"
    assert len(pooled.stages) == 2, "the padding is a stage"
    (padded,) = nodes(FuseOperators()(legal(lambda x: op.max(op.nn.pad(x, (1, 1, 1, 1)), axis=1), SHAPE)))
    assert operator(padded.kernel) is None

# SPDX-License-Identifier: Apache-2.0
"""Branches, loops, constants, and what is no tensor: sequences, optionals and texts."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from onnx_versions.cases import Stated, case, f, stated


def constant(**attrs):
    """A constant beside an input."""
    attrs = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
    return lambda _: [
        helper.make_node("Constant", [], ["c"], **attrs),
        helper.make_node("Concat", ["x0", "c"], ["y0"], axis=0),
    ]


case("Constant", f(3), want=lambda x: np.append(x, [1, 2]).astype("f4"), graph=constant(value=np.array([1, 2], "f4")))
case(
    "Constant",
    f(3),
    first=12,
    want=lambda x: np.append(x, [1, 2]).astype("f4"),
    graph=constant(value_floats=[1.0, 2.0]),
)
case("Constant", np.arange(3), first=12, want=lambda x: np.append(x, [1, 2]), graph=constant(value_ints=[1, 2]))


def sparse(_):
    """A constant of which most numbers are 0."""
    values = helper.make_tensor("v", TensorProto.FLOAT, [1], [3.0])
    found = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [1], [1]), [3])
    return [
        helper.make_node("Constant", [], ["c"], sparse_value=found),
        helper.make_node("Concat", ["x0", "c"], ["y0"], axis=0),
    ]


case("Constant", f(3), first=11, want=lambda x: np.append(x, [0, 3, 0]).astype("f4"), graph=sparse)


def info(name, kind=TensorProto.FLOAT, shape=None):
    """A tensor of a nested graph."""
    return helper.make_tensor_value_info(name, kind, shape)


def branches(_):
    """A condition that is an input, and what is around the branches."""
    then, other = (
        helper.make_graph([helper.make_node(op, ["x1"], [name])], name, [], [info(name, shape=[3, 4])])
        for op, name in (("Relu", "a"), ("Neg", "b"))
    )
    return [helper.make_node("If", ["x0"], ["y0"], then_branch=then, else_branch=other)]


case("If", np.array(False), f(3, 4), want=lambda _, x: -x, graph=branches)
case("If", np.array(True), f(3, 4), want=lambda _, x: np.maximum(x, 0), graph=branches)
case("If", stated(True, "?"), f(3, 4), want=lambda _, x: np.maximum(x, 0), graph=branches)


def loop(_):
    """A state that doubles, and its history."""
    nodes = [
        helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("Add", ["s", "s"], ["t"]),
        helper.make_node("Identity", ["t"], ["u"]),
    ]
    inputs = [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("s", shape=[3])]
    outputs = [info("d", TensorProto.BOOL, []), info("t", shape=[3]), info("u", shape=[3])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    return [helper.make_node("Loop", ["x1", "", "x0"], ["y0", "y1"], body=body)]


case("Loop", f(3), stated(3, "i8"), outputs=2, want=lambda x, _: (8 * x, np.stack([2 * x, 4 * x, 8 * x])), graph=loop)


def scan(opset):
    """Running sums; before version 9 there is a batch."""
    nodes = [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["u"])]
    ends = [info("t", shape=[2]), info("u", shape=[2])]
    body = helper.make_graph(nodes, "body", [info("s", shape=[2]), info("x", shape=[2])], ends)
    inputs = ["", "x0", "x1"] if opset < 9 else ["x0", "x1"]
    return [helper.make_node("Scan", inputs, ["y0", "y1"], body=body, num_scan_inputs=1)]


def sums(s, x, axis):
    """Results of `scan`."""
    found = np.expand_dims(s, axis) + x.cumsum(axis)
    return found.take(-1, axis), found


case("Scan", f(3, 2), f(3, 4, 2), last=8, outputs=2, want=lambda s, x: sums(s, x, 1), graph=scan)
case("Scan", f(2), f(4, 2), first=9, outputs=2, want=lambda s, x: sums(s, x, 0), graph=scan)


def sequence(*nodes):
    """Nodes from ``(operator, inputs, output, attributes)``."""
    return lambda _: [helper.make_node(op, ins, [out], **attrs) for op, ins, out, attrs in nodes]


PAIR = ("SequenceConstruct", ["x0", "x1"], "s", {})
ROWS = f(2, 3), f(2, 3)
PLACE = (*ROWS, stated(1, "i8"))
AT = ("SequenceAt", ["s", "x2"], "y0", {})
JOIN = ("ConcatFromSequence", ["s"], "y0", {"axis": 0})
case("SequenceConstruct SequenceAt", *PLACE, want=lambda a, b, _: b, graph=sequence(PAIR, AT))
case("ConcatFromSequence", *ROWS, want=lambda *x: np.concatenate(x), graph=sequence(PAIR, JOIN))
case("SequenceLength", *ROWS, want=lambda *_: np.array(2), graph=sequence(PAIR, ("SequenceLength", ["s"], "y0", {})))
INSERT = ("SequenceInsert", ["s", "x0"], "t", {})
FROM = ("ConcatFromSequence", ["t"], "y0", {"axis": 0})
case("SequenceInsert", *ROWS, want=lambda a, b: np.concatenate([a, b, a]), graph=sequence(PAIR, INSERT, FROM))
ERASE = ("SequenceErase", ["s", "x2"], "t", {})
case("SequenceErase", *PLACE, want=lambda a, *_: a, graph=sequence(PAIR, ERASE, FROM))
EMPTY = ("SequenceEmpty", [], "s", {})
case("SequenceEmpty", f(2, 3), want=lambda a: a, graph=sequence(EMPTY, INSERT, FROM))
PARTS = ("SplitToSequence", ["x0"], "s", {"axis": 0})
case("SplitToSequence", f(2, 3), want=lambda a: a, graph=sequence(PARTS, JOIN))


def mapped(_):
    """A function of each tensor of a sequence."""
    nodes = [helper.make_node("Neg", ["e"], ["n"])]
    body = helper.make_graph(nodes, "body", [info("e", shape=[2, 3])], [info("n", shape=[2, 3])])
    made = sequence(PAIR)(0), [helper.make_node("SequenceMap", ["s"], ["t"], body=body)], sequence(FROM)(0)
    return [node for part in made for node in part]


case("SequenceMap", *ROWS, want=lambda *x: -np.concatenate(x), graph=mapped)
OPTION = ("Optional", ["x0"], "o", {})
case(
    "Optional OptionalGetElement",
    f(2, 3),
    want=lambda x: x,
    graph=sequence(OPTION, ("OptionalGetElement", ["o"], "y0", {})),
)
case(
    "OptionalHasElement",
    f(2, 3),
    want=lambda x: np.array(True),
    graph=sequence(OPTION, ("OptionalHasElement", ["o"], "y0", {})),
)
TEXT = Stated(np.array(["ab", "c"], object))
case("StringConcat", TEXT, TEXT)
case("StringSplit", TEXT, outputs=2)
case("StringNormalizer", TEXT, case_change_action="UPPER")
case("RegexFullMatch", TEXT, pattern="a.*")

# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import TensorProto, helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx

PAIR = ((2, 3), "float32")


def _joined(build, nodes, result, constants=None, **attributes):
    last = helper.make_node("ConcatFromSequence", ["seq"], ["y"], axis=attributes.pop("axis", 0), **attributes)
    given = {name: np.array(value) for name, value in (constants or {}).items()}
    return build([*nodes, last], {"a": PAIR, "b": PAIR}, {"y": (result, "float32")}, given)


@pytest.mark.parametrize(("position", "expected"), [(None, "abab"), (0, "baba"), (-1, "abba"), (1, "abab")])
def test_tensors_are_put_where_the_position_says(build, assert_same, position, expected):
    del expected  # ONNX Runtime knows
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b", "a"], ["s"]),
        helper.make_node("SequenceInsert", ["s", "b", *([] if position is None else ["p"])], ["seq"]),
    ]
    model = _joined(build, nodes, (8, 3), {} if position is None else {"p": position})
    assert_same(model, from_onnx(model))


def test_elements_are_erased_and_taken(build, assert_same):
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b", "a"], ["s"]),
        helper.make_node("SequenceErase", ["s", "one"], ["t"]),
        helper.make_node("SequenceAt", ["t", "last"], ["e"]),
        helper.make_node("Neg", ["e"], ["f"]),
        helper.make_node("SequenceConstruct", ["f", "b"], ["seq"]),
    ]
    model = _joined(build, nodes, (2, 2, 3), {"one": 1, "last": -1}, axis=1, new_axis=1)
    assert_same(model, from_onnx(model))


@pytest.mark.parametrize(
    ("split", "keepdims", "result"), [(None, 0, (6,)), (None, 1, (2, 3)), (2, 1, (2, 3)), ([1, 2], 1, (2, 3))]
)
def test_a_tensor_is_split(build, assert_same, split, keepdims, result):
    inputs = ["a"] if split is None else ["a", "split"]
    nodes = [helper.make_node("SplitToSequence", inputs, ["seq"], axis=1, keepdims=keepdims)]
    constants = {} if split is None else {"split": split}
    model = _joined(build, nodes, result, constants, axis=0 if result == (6,) else 1)
    assert_same(model, from_onnx(model))


def test_a_loop_collects_a_sequence(build, assert_same):
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    nodes = [
        helper.make_node("Identity", ["go"], ["stays"]),
        helper.make_node("SequenceAt", ["parts", "i"], ["part"]),
        helper.make_node("Exp", ["part"], ["e"]),
        helper.make_node("SequenceInsert", ["s", "e"], ["t"]),
    ]
    scalars = (("i", TensorProto.INT64), ("go", TensorProto.BOOL))
    inputs = [helper.make_tensor_value_info(name, each, ()) for name, each in scalars]
    inputs.append(helper.make_value_info("s", kind))
    outputs = [helper.make_tensor_value_info("stays", TensorProto.BOOL, ()), helper.make_value_info("t", kind)]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    nodes = [
        helper.make_node("SplitToSequence", ["a"], ["parts"], axis=1),
        helper.make_node("SequenceLength", ["parts"], ["n"]),
        helper.make_node("SequenceEmpty", [], ["none"]),
        helper.make_node("Loop", ["n", "", "none"], ["seq"], body=body),
    ]
    model = _joined(build, nodes, (6, 1))
    assert_same(model, from_onnx(model))


def test_a_position_known_at_run_time_is_refused(build):
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b"], ["s"]),
        helper.make_node("SequenceAt", ["s", "p"], ["y"], name="pick"),
    ]
    model = build(nodes, {"a": PAIR, "b": PAIR, "p": ((), "int64")}, {"y": PAIR})
    with pytest.raises(UserError, match=r"SequenceAt \(node pick\).*its position is known only at run time"):
        from_onnx(model)


def test_a_result_that_is_a_sequence_is_refused(build):
    model = build([helper.make_node("SequenceConstruct", ["a"], ["s"])], {"a": PAIR}, {})
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, (2, 3)))
    model.graph.output.append(helper.make_value_info("s", kind))
    with pytest.raises(UserError, match=r"Output 's' of .* is a sequence, and only tensors .* export"):
        from_onnx(model)


SPLITS = {
    "shape \\[2, 2\\]": [[1, 1], [1, 0]],
    "shape \\[2\\], does not part 3 elements": [1, 1],
    "shape \\[3\\], does not part 3 elements": [4, -2, 1],
    "shape \\[\\], does not part 3 elements": 0,
}


@pytest.mark.parametrize("reason", SPLITS)
def test_a_split_into_other_sizes_is_refused(build, reason):
    nodes = [helper.make_node("SplitToSequence", ["a", "split"], ["seq"], "parts", axis=1)]
    model = _joined(build, nodes, (2, None), {"split": SPLITS[reason]}, axis=1)
    with pytest.raises(UserError, match=rf"SplitToSequence \(node parts\).*its split, of {reason}"):
        from_onnx(model)


def test_an_axis_that_a_tensor_has_not_is_not_split(build):
    model = _joined(build, [helper.make_node("SplitToSequence", ["a"], ["seq"], "parts", axis=2)], (2, 3))
    with pytest.raises(UserError, match=r"\(node parts\).*its axis 2 is none of a tensor of shape \[2, 3\]"):
        from_onnx(model)


@pytest.mark.parametrize(
    ("position", "reason"),
    [(None, "its position -1 is none of a sequence of 0"), ([1, 1], r"its position is of shape \[2\]")],
)
def test_nothing_is_erased_where_nothing_is(build, position, reason):
    erase = helper.make_node("SequenceErase", ["s", *([] if position is None else ["p"])], ["seq"], "erase")
    nodes = [helper.make_node("SequenceEmpty", [], ["s"]), erase]
    with pytest.raises(UserError, match=rf"SequenceErase \(node erase\).*{reason}"):
        from_onnx(_joined(build, nodes, (2, 3), {} if position is None else {"p": position}))

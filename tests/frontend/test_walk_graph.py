# SPDX-License-Identifier: Apache-2.0
from onnx import TensorProto, helper

from smartmem_tvm.frontend import walk_graph as walk


def _nested():
    """Return a graph whose If holds, in its branch, another If and two stored tensors."""
    value = [helper.make_tensor_value_info("r", TensorProto.FLOAT, ())]
    stored = helper.make_tensor("stored", TensorProto.FLOAT, (), [1.0])
    literal = helper.make_tensor("literal", TensorProto.FLOAT, (), [2.0])
    leaf = helper.make_graph([helper.make_node("Constant", [], ["r"], value=literal)], "leaf", [], value)
    inner = helper.make_node("If", ["c"], ["r"], name="inner", then_branch=leaf, else_branch=leaf)
    middle = helper.make_graph([inner], "middle", [], value, [stored])
    outer = helper.make_node("If", ["c"], ["r"], name="outer", then_branch=middle, else_branch=leaf)
    return helper.make_graph([outer], "top", [], value)


def test_walks_reach_every_depth():
    graph = _nested()
    assert sorted(each.name for each in walk.graphs(graph)) == ["leaf", "leaf", "leaf", "middle", "top"]
    assert [node.name for node in walk.nodes(graph) if node.op_type == "If"] == ["outer", "inner"]
    assert sorted(tensor.name for tensor in walk.tensors(graph)) == ["literal"] * 3 + ["stored"]


def test_a_node_without_a_name_is_called_by_its_first_output():
    assert walk.node_label(helper.make_node("Split", ["x"], ["", "b"])) == "b"
    assert walk.node_label(helper.make_node("Neg", ["x"], ["y"], name="minus")) == "minus"

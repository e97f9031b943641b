# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
VECTOR = ((4,), "float32")


def _value(name, kind=FLOAT, shape=(4,)):
    return helper.make_tensor_value_info(name, kind, shape)


def _loop(condition):
    """A body that doubles and adds the number of the iteration; its condition is made by these nodes."""
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Add", ["s", "s"], ["d"]),
        helper.make_node("Add", ["d", "f"], ["t"]),
        helper.make_node("Mul", ["t", "outer"], ["scanned"]),
        *condition,
    ]
    inputs = [_value("i", INT, ()), _value("go", BOOL, ()), _value("s")]
    outputs = [_value("stays", BOOL, ()), _value("t"), _value("scanned")]
    return helper.make_graph(nodes, "body", inputs, outputs, [numpy_helper.from_array(np.array(2), "two")])


def _with_loop(build, condition, trips=3, constants=()):
    node = helper.make_node("Loop", ["n", "true", "x"], ["last", "all"], name="loop", body=_loop(condition))
    values = {"n": np.array(trips), "true": np.array(True)} | dict(constants)
    count = trips if trips < 9 else 3
    return build([node], {"x": VECTOR, "outer": VECTOR}, {"last": VECTOR, "all": ((count, 4), "float32")}, values)


SAME = [helper.make_node("Identity", ["go"], ["stays"])]
UNTIL_TWO = [helper.make_node("Less", ["i", "two"], ["stays"])]


@pytest.mark.parametrize(("condition", "trips"), [(SAME, 3), (UNTIL_TWO, 2**62)], ids=["trips", "condition"])
def test_a_loop_is_unrolled(build, assert_same, condition, trips):
    model = _with_loop(build, condition, trips)
    assert_same(model, from_onnx(model))


def test_a_loop_that_data_ends_is_refused(build):
    ends = [
        helper.make_node("ReduceSum", ["s"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["stays"]),
    ]
    with pytest.raises(UserError, match=r"Loop \(node loop\).*its condition is known only at run time"):
        from_onnx(_with_loop(build, ends, constants={"zero": np.array(0, "float32")}))


def test_a_loop_that_would_be_too_many_nodes_is_refused(build):
    with pytest.raises(UserError, match=r"Loop \(node loop\).*more than 2000 nodes"):
        from_onnx(_with_loop(build, SAME, 10**6))


@pytest.mark.parametrize("directions", [(0, 0), (1, 1)])
def test_a_scan_is_unrolled_along_any_axis_in_either_direction(build, assert_same, directions):
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "part"], ["t"]), helper.make_node("Mul", ["t", "part"], ["out"])],
        "body",
        [_value("s"), _value("part")],
        [_value("t"), _value("out")],
    )
    node = helper.make_node(
        "Scan",
        ["x", "rows"],
        ["last", "all"],
        num_scan_inputs=1,
        body=body,
        scan_input_axes=[1],
        scan_input_directions=directions[:1],
        scan_output_axes=[1],
        scan_output_directions=directions[1:],
    )
    inputs = {"x": VECTOR, "rows": ((4, 5), "float32")}
    model = build([node], inputs, {"last": VECTOR, "all": ((4, 5), "float32")})
    assert_same(model, from_onnx(model))


def _branch(op, name, shape=(4,)):
    nodes = [helper.make_node(op, ["x"], [f"{name}_in"]), helper.make_node("Neg", [f"{name}_in"], [name])]
    return helper.make_graph(nodes, name, [], [_value(name, shape=shape)])


def _with_if(build, constants=(), **inputs):
    node = helper.make_node("If", ["c"], ["y"], "if", then_branch=_branch("Abs", "a"), else_branch=_branch("Exp", "b"))
    return build([node], {"x": VECTOR, **inputs}, {"y": VECTOR}, dict(constants))


def test_an_if_takes_the_branch_that_is_known(build, operators, assert_same):
    model = _with_if(build, {"c": np.array(False)})
    mod = from_onnx(model)
    assert operators(mod) == ["exp", "negative"]
    assert_same(model, mod)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_an_if_whose_condition_comes_at_run_time_chooses(build, assert_same, condition, shape):
    model = _with_if(build, c=(shape, "bool"))
    x = np.array([-1, 2, -3, 4], "float32")
    assert_same(model, from_onnx(model), {"x": x, "c": np.full(shape, condition)})


def test_branches_of_other_shapes_are_refused_where_the_condition_comes_at_run_time(build):
    other = helper.make_graph(
        [helper.make_node("ReduceSum", ["x"], ["b"], keepdims=1)], "b", [], [_value("b", shape=(1,))]
    )
    node = helper.make_node("If", ["c"], ["y"], "if", then_branch=_branch("Abs", "a"), else_branch=other)
    with pytest.raises(UserError, match=r"its branches give float32 \[4\] and float32 \[1\]"):
        from_onnx(build([node], {"x": VECTOR, "c": ((), "bool")}, {"y": ((None,), "float32")}))


def test_a_loop_in_a_branch_in_a_loop(build, assert_same):
    inner = helper.make_node("Loop", ["i", "go", "s"], ["u"], "inner", body=_counting_body())
    branch = helper.make_graph([inner], "yes", [], [_value("u")])
    other = helper.make_graph([helper.make_node("Neg", ["s"], ["v"])], "no", [], [_value("v")])
    nodes = [
        helper.make_node("Greater", ["i", "one"], ["more"]),
        helper.make_node("If", ["more"], ["t"], then_branch=branch, else_branch=other),
        helper.make_node("Identity", ["go"], ["stays"]),
    ]
    inputs = [_value("i", INT, ()), _value("go", BOOL, ()), _value("s")]
    body = helper.make_graph(nodes, "outer", inputs, [_value("stays", BOOL, ()), _value("t")])
    node = helper.make_node("Loop", ["n", "true", "x"], ["y"], "loop", body=body)
    constants = {"n": np.array(4), "true": np.array(True), "one": np.array(1)}
    model = build([node], {"x": VECTOR}, {"y": VECTOR}, constants)
    assert_same(model, from_onnx(model))


def _counting_body():
    nodes = [
        helper.make_node("Cast", ["j"], ["g"], to=FLOAT),
        helper.make_node("Sub", ["p", "g"], ["q"]),
        helper.make_node("Identity", ["on"], ["still"]),
    ]
    inputs = [_value("j", INT, ()), _value("on", BOOL, ()), _value("p")]
    return helper.make_graph(nodes, "inner", inputs, [_value("still", BOOL, ()), _value("q")])


def test_a_graph_with_other_outputs_than_its_node_is_refused(build):
    model = _with_if(build, {"c": np.array(True)})
    model.graph.node[0].output.append("more")
    with pytest.raises(UserError, match=r"If \(node if\).*'a' has 0 inputs and 1 outputs, and the node 0 and 2"):
        from_onnx(model)
    model = _with_loop(build, SAME)
    model.graph.node[0].output.append("more")
    with pytest.raises(UserError, match=r"Loop \(node loop\).*'body' has 3 inputs and 3 outputs, and the node 3 and 4"):
        from_onnx(model)


def test_a_loop_of_nothing_without_end_is_refused(build):
    body = helper.make_graph([], "body", [_value("i", INT, ()), _value("go", BOOL, ()), _value("s")], [])
    body.output.extend([_value("go", BOOL, ()), _value("s")])
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], name="loop", body=body)
    with pytest.raises(UserError, match=r"Loop \(node loop\).*more than 2000 nodes"):
        from_onnx(build([node], {"x": VECTOR}, {"y": VECTOR}, {"n": np.array(2**62)}))


@pytest.mark.parametrize("size", [2**40, -7])
def test_the_size_that_a_loop_states_for_its_number_does_not_matter(build, assert_same, size):
    model = _with_loop(build, SAME)
    model.graph.node[0].attribute[0].g.input[0].type.tensor_type.shape.dim.add(dim_value=1)
    right = from_onnx(model)
    model.graph.node[0].attribute[0].g.input[0].type.tensor_type.shape.dim[0].dim_value = size
    tvm.ir.assert_structural_equal(from_onnx(model), right)


SCANS = {
    "its axis 2 is none of a tensor of shape \\[4, 5\\]": {"scan_input_axes": [2, 0]},
    "its attribute scan_input_axes has 1 numbers, and needs 2": {"scan_input_axes": [1]},
    "of different lengths, \\[0, 1\\] of": {"scan_input_axes": [0, 1]},
    "its num_scan_inputs is 3, and it has 2 inputs": {"num_scan_inputs": 3},
    "its num_scan_inputs is 0, and it has 2 inputs": {"num_scan_inputs": 0},
}


@pytest.mark.parametrize("reason", SCANS)
def test_a_scan_that_contradicts_itself_is_refused(build, reason):
    parts = [_value("a", shape=(None,)), _value("b", shape=(None,))]
    body = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "body", parts, [_value("c", shape=(None,))])
    node = helper.make_node("Scan", ["x", "x"], ["y"], "scan", body=body, **{"num_scan_inputs": 2, **SCANS[reason]})
    with pytest.raises(UserError, match=rf"Scan \(node scan\).*{reason}"):
        from_onnx(build([node], {"x": ((4, 5), "float32")}, {"y": ((None, None), "float32")}))

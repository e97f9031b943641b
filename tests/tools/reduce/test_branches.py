# SPDX-License-Identifier: Apache-2.0
"""Failures inside of branches and loops, cut down to what makes them fail."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.frontend.walk_graph import nodes
from smartmem_tvm.tools.reduce import reduce_model
from smartmem_tvm.tools.reduce.branches import inner_part, nested_graph, opened, paths
from smartmem_tvm.tools.reduce.case import Case, evaluate

X = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def value(name, shape=None, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def branch(tag, *more):
    """A chain of five nodes on x, and others after it."""
    chain = [node("Exp", "x", f"{tag}0"), *(node("Tanh", f"{tag}{n}", f"{tag}{n + 1}") for n in range(3))]
    chain += [node("Add", f"{tag}3 x", f"{tag}4"), *more]
    return helper.make_graph(chain, tag, [], [value(chain[-1].output[0], (3, 4))])


def model(body, inputs, outputs, stored=(), opset=17):
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(stored).items()]
    graph = helper.make_graph(body, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def branches(opset=17):
    """An If by an input, in whose first branch is another one, and nodes around it."""
    inner = node("If", "c", "n", then_branch=branch("p", node("Erf", "p4", "pz")), else_branch=branch("q"))
    first = helper.make_graph([*branch("a").node, inner, node("Mul", "n a4", "az")], "a", [], [value("az", (3, 4))])
    body = [
        node("Relu", "x", "r"),
        node("If", "c", "t", then_branch=first, else_branch=branch("b")),
        node("Neg", "t", "y"),
    ]
    inputs = [value("x", (3, 4)), value("c", (), TensorProto.BOOL)]
    return model(body, inputs, [value("y", (3, 4)), value("r", (3, 4))], opset=opset), {"x": X, "c": np.array(True)}


def loop(opset=17):
    body = [
        node("Identity", "go", "still"),
        node("Exp", "s", "e"),
        node("Erf", "e", "f"),
        node("Mul", "f half", "next"),
        node("Sqrt", "e", "row"),
    ]
    inputs = [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("s", (3, 4))]
    results = [value("still", (), TensorProto.BOOL), value("next", (3, 4)), value("row", (3, 4))]
    nodes = [node("Loop", "count  x", "y rows", body=helper.make_graph(body, "body", inputs, results))]
    nodes[0].input[:] = ["count", "", "x"]
    stored = {"count": np.array(3), "half": np.array(0.5, "float32")}
    return model(nodes, [value("x", (3, 4))], [value("y", (3, 4)), value("rows", (3, 3, 4))], stored, opset), {"x": X}


def scan():
    body = [node("Add", "s part", "sum"), node("Erf", "sum", "part_out"), node("Identity", "sum", "next")]
    graph = helper.make_graph(
        body, "body", [value("s", (3,)), value("part", (3,))], [value("next", (3,)), value("part_out", (3,))]
    )
    attributes = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_output_axes": [1]}
    made = node("Scan", "zero x", "y rows", body=graph, **attributes)
    stored = {"zero": np.zeros(3, "float32")}
    return model([made], [value("x", (3, 4))], [value("y", (3,)), value("rows", (3, 4))], stored), {"x": X}


def run(proto, arrays):
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    taken = {each.name for each in session.get_inputs()}
    return session.run(None, {name: array for name, array in arrays.items() if name in taken})


def has(*wanted):
    """A failure: the operators are somewhere, and ONNX Runtime runs the model on the arrays."""

    def fails(proto, arrays):
        if not set(wanted) <= {each.op_type for each in nodes(proto.graph)}:
            return False
        try:
            return bool(run(proto, arrays))
        except Exception:  # sizes that do not fit, and names that are twice there
            return False

    return fails


MODELS = {"branches": branches, "branches of opset 11": lambda: branches(11), "loop": loop, "scan": scan}
MODELS["loop of opset 11"] = lambda: loop(11)


@pytest.mark.parametrize("name", MODELS)
def test_what_fails_inside_is_left_alone(name):
    found = reduce_model(*MODELS[name](), has("Erf"))
    assert [each.op_type for each in found.model.graph.node] == ["Erf"]
    assert len(found.arrays) == 1 and run(found.model, found.arrays)


@pytest.mark.parametrize(("name", "kind"), [("branches", "If"), ("loop", "Loop"), ("scan", "Scan")])
def test_what_fails_because_it_is_inside_stays_there(name, kind):
    def fails(proto, arrays):
        inside = {each.op_type for outer in proto.graph.node for a in outer.attribute for each in nodes(a.g)}
        return "Erf" in inside and has(kind)(proto, arrays)

    found = reduce_model(*MODELS[name](), fails)
    kinds = [each.op_type for each in nodes(found.model.graph)]
    assert fails(found.model, found.arrays) and "Tanh" not in kinds and "Sqrt" not in kinds
    assert len(kinds) <= 5, kinds  # each result of a nested graph is one of its nodes'
    assert kinds.count("If") <= 1


@pytest.mark.parametrize("name", MODELS)
def test_an_opened_model_computes_the_first_turn(name):
    proto, arrays = MODELS[name]()
    number = next(n for n, each in enumerate(proto.graph.node) if each.op_type in ("If", "Loop", "Scan"))
    *_, first = opened(Case(proto, arrays), number, evaluate)  # of an If the branch taken, which comes after the other
    if proto.graph.node[number].op_type == "If":
        for mine, whole in zip(run(first.model, first.arrays), run(proto, arrays), strict=True):
            np.testing.assert_allclose(mine, whole, rtol=1e-6)
    else:
        (mine,), (whole,) = (
            [out for out in run(*each) if out.ndim == 3 or name == "scan"][-1:]
            for each in ((first.model, first.arrays), (proto, arrays))
        )
        axis = 1 if name == "scan" else 0
        np.testing.assert_allclose(mine, np.take(whole, [0], axis), rtol=1e-6)


def test_parts_of_a_branch_compute_what_they_did():
    """Whatever is left out, what is cut off comes in with its value."""
    proto, arrays = branches()
    case, random = Case(proto, arrays), np.random.default_rng(0)
    want = run(proto, arrays)[0]
    for path in paths(proto.graph):
        taken = [name for _, name in path] in (["then_branch"], ["then_branch", "then_branch"])
        size = len(nested_graph(proto.graph, path).node)
        for _ in range(4):
            kept = [number for number in range(size) if random.integers(2)]
            less = inner_part(case, path, kept, evaluate)
            if less is not None:
                np.testing.assert_allclose(run(less.model, less.arrays)[0], want, rtol=1e-5)
            assert less is not None or not taken

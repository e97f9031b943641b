# SPDX-License-Identifier: Apache-2.0
"""Models that fail, cut down to what makes them fail."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.tools.reduce import Case, reduce_model
from smartmem_tvm.tools.reduce.case import evaluate
from smartmem_tvm.tools.reduce.cuts import part


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def model(nodes, inputs, outputs, stored=(), opset=17):
    """A model of float tensors; `inputs` is name -> shape."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(stored).items()]
    graph = helper.make_graph(nodes, "g", values, ends, constants)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(whole)


def arrays_of(proto):
    random = np.random.default_rng(1)
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in proto.graph.input}
    return {name: random.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def kinds(found) -> list[str]:
    return [each.op_type for each in found.model.graph.node]


def has(*wanted):
    """A failure: the operators are there, and the model is one that ONNX Runtime runs on the arrays."""

    def fails(proto, arrays):
        return set(wanted) <= {each.op_type for each in proto.graph.node} and is_valid(Case(proto, arrays))

    return fails


def is_valid(case: Case) -> bool:
    """Sizes are made smaller without a look at what operators want."""
    try:
        return bool(runs(case))
    except Exception as error:  # of onnx, or of ONNX Runtime
        assert "hape" in str(error) or "dimension" in str(error), error
        return False


def runs(case: Case) -> list[np.ndarray]:
    import onnxruntime

    onnx.checker.check_model(case.model, full_check=True)
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(case.arrays))


CHAIN = model(
    [
        node("Relu", "x", "a"),
        node("Exp", "a", "b"),
        node("Reshape", "b shape", "c"),
        node("Transpose", "c", "d", perm=[1, 0]),
        node("MatMul", "d w", "e"),
        node("Softmax", "e", "y"),
        node("Sqrt", "b", "z"),
    ],
    {"x": (2, 3, 5)},
    "y z",
    {"shape": np.array([6, 5]), "w": np.random.default_rng(0).standard_normal((6, 7)).astype("float32")},
)


@pytest.mark.parametrize("kind", ["Relu", "Exp", "Reshape", "Transpose", "MatMul", "Softmax", "Sqrt"])
def test_one_operator_is_left(kind):
    found = reduce_model(CHAIN, arrays_of(CHAIN), has(kind))
    assert kinds(found) == [kind]
    runs(found)


def test_what_is_between_two_operators_is_bypassed():
    def fails(proto, arrays):
        """A Sqrt depends on a Relu."""
        reach = set()
        for each in proto.graph.node:
            if each.op_type == "Relu" or not reach.isdisjoint(each.input):
                reach.update(each.output)
        ends = [each for each in proto.graph.node if each.op_type == "Sqrt"]
        return is_valid(Case(proto, arrays)) and any(not reach.isdisjoint(each.input) for each in ends)

    chain = model(
        [node("Relu", "x", "a"), node("Exp", "a", "b"), node("Neg", "b", "c"), node("Sqrt", "c", "y")],
        {"x": (2,)},
        "y",
    )
    assert kinds(reduce_model(chain, arrays_of(chain), fails)) == ["Relu", "Sqrt"]


def test_a_cut_tensor_has_the_value_of_the_run():
    arrays = arrays_of(CHAIN)
    expected = evaluate(Case(CHAIN, arrays), ["d"])["d"]
    found = part(Case(CHAIN, arrays), [4], evaluate)
    np.testing.assert_array_equal(found.arrays["d"], expected)


def test_what_depends_on_no_numbers_stays_constant():
    """A shape that becomes an input would be another failure: a shape that is not known."""
    shaped = model(
        [node("Relu", "x", "a"), node("Shape", "a", "s"), node("Reshape", "f s", "b"), node("Exp", "b", "y")],
        {"x": (2, 3), "f": (6,)},
        "y",
    )
    found = part(Case(shaped, arrays_of(shaped)), [2], evaluate)
    assert list(found.arrays) == ["f"] and [each.name for each in found.model.graph.initializer] == ["s"]
    runs(found)


def test_outputs_that_are_not_needed_are_dropped():
    two = model([node("Relu", "x", "y"), node("Exp", "y", "z")], {"x": (3,)}, "y z")
    found = reduce_model(two, arrays_of(two), has("Relu", "Exp"))
    assert [each.name for each in found.model.graph.output] == ["z"]


def test_results_of_one_node_that_nobody_reads_are_outputs():
    split = model(
        [node("Split", "x", "a b", axis=0), node("Relu", "a", "y"), node("Exp", "b", "z")], {"x": (4,)}, "y z", opset=13
    )
    found = part(Case(split, arrays_of(split)), [0], evaluate)
    assert [each.name for each in found.model.graph.output] == ["a", "b"]
    assert len(runs(found)) == 2


def test_a_nested_graph_reads_what_is_outside():
    inner = helper.make_graph([node("Exp", "a", "r")], "g", [], [helper.make_tensor_value_info("r", 1, ["n"])])
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    nested = model([node("Relu", "x", "a"), branch], {"x": (3,)}, "y", {"c": np.array(True)})
    found = reduce_model(nested, arrays_of(nested), has("If"))
    assert kinds(found) == ["If"] and list(found.arrays) == ["a"]
    runs(found)


def test_sizes_become_small_and_numbers_simple():
    found = reduce_model(CHAIN, arrays_of(CHAIN), has("MatMul"))
    weight = numpy_helper.to_array(found.model.graph.initializer[0])
    assert weight.shape == (1, 1)
    for array in found.arrays.values():
        assert array.shape == (1, 1) and np.array_equal(array, np.round(array))


def test_numbers_stay_where_the_failure_depends_on_them():
    def fails(proto, arrays):
        return has("MatMul")(proto, arrays) and all(float(a.max()) % 1 > 0 for a in arrays.values())

    found = reduce_model(CHAIN, arrays_of(CHAIN), fails)
    assert kinds(found) == ["MatMul"] and fails(*vars(found).values())


def test_a_model_that_onnx_runtime_refuses_is_cut_all_the_same():
    """A node between operators that have no implementation there: values are drawn by the inferred types."""
    odd = model(
        [node("Relu", "x", "a"), node("Gelu", "a", "b"), node("Exp", "b", "c"), node("Sqrt", "c", "y")],
        {"x": (2, 3)},
        "y",
        opset=20,
    )
    odd.graph.input[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    odd.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    arrays = evaluate(Case(odd, {}), ["a"])
    assert arrays["a"].shape == (2, 3)
    found = reduce_model(odd, {"x": arrays["a"]}, lambda proto, _: "Gelu" in [n.op_type for n in proto.graph.node])
    assert kinds(found) == ["Gelu"]


def test_the_model_itself_is_not_changed():
    before = CHAIN.SerializeToString()
    reduce_model(CHAIN, arrays_of(CHAIN), has("Exp"))
    assert CHAIN.SerializeToString() == before


def test_no_case_is_tried_twice():
    seen = []

    def fails(proto, arrays):
        seen.append(Case(proto, arrays).digest)
        return has("Exp", "MatMul")(proto, arrays)

    reduce_model(CHAIN, arrays_of(CHAIN), fails)
    assert len(seen) == len(set(seen))

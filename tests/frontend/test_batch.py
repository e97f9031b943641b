# SPDX-License-Identifier: Apache-2.0
"""A batch where the graph has one of 1 written into it: what each sample gives, or a refusal."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from small_network import network
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import onnxruntime_session, read_model
from smartmem_tvm.frontend.batch import check_batch

BATCH = 3


def model(nodes, shape, constants=(), first=None) -> onnx.ModelProto:
    """Input ``x`` of a shape, output ``y``."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()]
    sizes = [first or shape[0], *shape[1:]]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    inferred = helper.make_graph(nodes, "graph", ends, outs, tensors)
    made = helper.make_model(inferred, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    shaped = onnx.shape_inference.infer_shapes(made)
    return shaped if shaped.graph.output[0].type.tensor_type.HasField("shape") else made


def both(proto, shape) -> None:
    """Compare the batch with its samples."""
    x = np.random.default_rng(0).standard_normal((BATCH, *shape[1:])).astype("float32")
    whole = onnxruntime_session(read_model(proto, batch=BATCH), 1).run(None, {"x": x})
    one = onnxruntime_session(read_model(proto, batch=1), 1)
    check_batch((one.run(None, {"x": x[[n]]}) for n in range(BATCH)), whole, "the model")


def node(kind, inputs, output="y", **attributes):
    return helper.make_node(kind, inputs.split(), [output], **attributes)


NETWORKS = {
    "windows": (
        [
            node("Reshape", "x cut", "a"),  # (1, 8, 8, 4) in four windows, which come first
            node("Transpose", "a", "b", perm=[0, 1, 3, 2, 4, 5]),
            node("Reshape", "b windows", "c"),
            node("Softmax", "c", "d", axis=1),
            node("Reshape", "d whole"),
        ],
        (1, 8, 8, 4),
        {"cut": np.int64([1, 2, 4, 2, 4, 4]), "windows": np.int64([4, 16, 4]), "whole": np.int64([1, -1])},
    ),
    "heads": (
        [
            node("Reshape", "x split", "a"),  # query, key and value, with the batch behind
            node("Transpose", "a", "b", perm=[2, 0, 3, 1, 4]),
            node("Gather", "b first", "c", axis=0),
            node("Reshape", "c merged"),
        ],
        (1, 5, 24),
        {"split": np.int64([1, 5, 3, 2, 4]), "first": np.int64(0), "merged": np.int64([1, 10, 4])},
    ),
    "a class token": (
        [node("Expand", "token sizes", "a"), node("Concat", "a x", axis=1)],
        (1, 5, 4),
        {"token": np.ones((1, 1, 4), "float32"), "sizes": np.int64([1, 1, 4])},
    ),
    "as_strided": (
        [node("Reshape", "x flat", "a"), node("Gather", "a places")],
        (1, 6),
        {"flat": np.int64([6]), "places": np.int64([[0, 2, -1]])},
    ),
    "resize": (
        [node("Resize", "x", "y", mode="nearest")],
        (1, 2, 4, 4),
        {"sizes": np.int64([1, 2, 8, 8])},
    ),
    "sizes read twice": (
        [node("Reshape", "x sizes", "a"), node("Reshape", "w sizes", "b"), node("MatMul", "a b")],
        (1, 16),
        {"sizes": np.int64([1, 4, 4]), "w": np.ones(16, "float32")},
    ),
}
NETWORKS["resize"][0][0].input.extend(["", "", "sizes"])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_gives_what_its_samples_give(name):
    nodes, shape, constants = NETWORKS[name]
    both(model(nodes, shape, constants), shape)


def test_a_network():
    both(network(), (1, 3, 32, 32))


def test_an_open_batch_is_filled_in():
    proto = model([node("Relu", "x")], (1, 4), first="N")
    assert read_model(proto, batch=BATCH).inputs == {"x": ((BATCH, 4), "float32")}


REFUSED = {
    "it picks along the batch": ([node("Gather", "x first", axis=0)], (1, 4), {"first": np.int64(0)}),
    "it joins along the batch": ([node("Concat", "x x", axis=0)], (1, 4), {}),
    "the batch would lie within a dimension": (
        [node("Transpose", "x", "a", perm=[1, 0, 2]), node("Reshape", "a flat")],
        (1, 3, 4),
        {"flat": np.int64([2, 6])},
    ),
    "are computed": ([node("Shape", "x", "a"), node("Reshape", "x a")], (1, 4), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_have_a_batch_is_refused(reason):
    with pytest.raises(UserError, match=rf"batch of 3: .*{reason}.*export the model with an open batch"):
        read_model(model(*REFUSED[reason]), batch=BATCH)


def test_another_first_dimension_is_refused():
    with pytest.raises(UserError, match="first dimension of 2, and a batch takes the place of 1"):
        read_model(model([node("Relu", "x")], (2, 4)), batch=BATCH)
    assert read_model(model([node("Relu", "x")], (2, 4)), batch=2).inputs["x"][0] == (2, 4)


def test_what_mixes_samples_is_found_by_its_outputs():
    proto = model([node("ReduceSum", "x axes", keepdims=1)], (1, 4), {"axes": np.int64([0])})
    with pytest.raises(UserError, match="Output 0 of the model is another one for a batch"):
        both(proto, (1, 4))

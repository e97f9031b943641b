# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, load_onnx

RANDOM = np.random.default_rng(0)
Q, PAST = (RANDOM.uniform(-1, 1, shape).astype("float32") for shape in ((1, 2, 4, 8), (1, 2, 3, 8)))


def _check(build, run_tvm, node, inputs, outputs, constants=None, opset=23, domains=()):
    tensors = {name: (array.shape, array.dtype) for name, array in inputs.items()}
    model = build([node], tensors, outputs, constants, opset, domains)
    for got, wanted in zip(run_tvm(from_onnx(model), inputs), ReferenceEvaluator(model).run(None, inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_an_input_may_be_left_out(build, run_tvm):
    node = helper.make_node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "ok", "ov"])
    outputs = {"y": (Q.shape, "float32"), "ok": ((1, 2, 7, 8), "float32"), "ov": ((1, 2, 7, 8), "float32")}
    _check(build, run_tvm, node, {**dict.fromkeys("qkv", Q), "pk": PAST, "pv": PAST}, outputs)


def test_an_input_may_be_an_initializer(build, run_tvm):
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], is_causal=1)
    mask = RANDOM.uniform(size=(4, 4)).astype("float32")
    _check(build, run_tvm, node, dict.fromkeys("qkv", Q), {"y": (Q.shape, "float32")}, {"m": mask})


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_functions_of_functions(build, run_tvm, reduction):
    scores, labels = RANDOM.standard_normal((3, 5)).astype("float32"), np.array([1, 4, 0])
    node = helper.make_node("SoftmaxCrossEntropyLoss", ["s", "l"], ["y"], reduction=reduction)
    _check(build, run_tvm, node, {"s": scores}, {"y": ((3,) if reduction == "none" else (), "float32")}, {"l": labels})


def test_two_nodes_of_one_operator_get_bodies_of_their_own(build, run_tvm):
    nodes = [
        helper.make_node("Attention", ["q", "k", "v"], ["a"], is_causal=1, name="first"),
        helper.make_node("Attention", ["a", "k", "v", "m"], ["y"], name="second"),
    ]
    tensors = dict.fromkeys("qkv", (Q.shape, "float32"))
    model = build(nodes, tensors, {"y": tensors["q"]}, {"m": np.zeros((4, 4), "float32")}, 23)
    wanted = ReferenceEvaluator(model).run(None, dict.fromkeys("qkv", Q))[0]
    np.testing.assert_allclose(run_tvm(from_onnx(model), dict.fromkeys("qkv", Q))[0], wanted, rtol=1e-5, atol=1e-6)
    names = [node.name for node in load_onnx(model).graph.node]
    assert all(" of function Attention in " in name for name in names if name)


def test_a_body_that_onnx_cannot_make_is_named(build):
    node = helper.make_node("CenterCropPad", ["x", "s"], ["y"], name="crop", axes=[0, 1, 2])
    model = build([node], {"x": ((2, 3), "float32")}, {"y": ((2, 3), "float32")}, {"s": np.array([2, 3])}, 18)
    with pytest.raises(UserError, match=r"crop|CenterCropPad"):
        from_onnx(model)


@pytest.mark.parametrize("version", [14, 17, 23])
def test_a_function_may_be_of_another_version(build, run_tvm, version):
    """In which its operators are the same: all else ONNX's checker refuses."""
    twice = helper.make_node("Add", ["a", "a"], ["b"])
    function = helper.make_function("own", "twice", ["a"], ["b"], [twice], [helper.make_opsetid("", version)])
    x = RANDOM.standard_normal((3, 4)).astype("float32")
    node, kind = helper.make_node("twice", ["x"], ["y"], domain="own"), (x.shape, "float32")
    model = build([node], {"x": kind}, {"y": kind}, None, 23, ["own"], functions=[function])
    np.testing.assert_allclose(run_tvm(from_onnx(model), {"x": x})[0], x + x, rtol=1e-5)

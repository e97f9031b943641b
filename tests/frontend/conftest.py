# SPDX-License-Identifier: Apache-2.0
"""Small ONNX graphs, and the two ways to run them that the front end's tests compare."""

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import helper
from onnx.reference import ReferenceEvaluator

from helpers import UNOPTIMIZED
from smartmem_tvm.frontend import check_inputs, from_onnx, input_spec


def _value(name, entry):
    shape, dtype = entry
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _build(nodes, inputs, outputs, constants=None, opset=17, domains=(), **model):
    """Make a model; `inputs` and `outputs` are name -> (shape, dtype), `constants` name -> array."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [_value(*item) for item in inputs.items()],
        [_value(*item) for item in outputs.items()],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **model)


def _run_tvm(mod, arrays):
    machine = tvm.relax.VirtualMachine(tvm.relax.build(mod, UNOPTIMIZED), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, check_inputs(mod, arrays)))
    return [each.numpy() for each in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def _run_onnx(model, arrays):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, arrays)


def _random_inputs(mod):
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape).astype(dtype) for name, (shape, dtype) in input_spec(mod).items()}


@pytest.fixture
def build():
    """Return the function that makes a small model."""
    return _build


@pytest.fixture
def relu_model():
    """Return a model of one Relu on 2x3 floats."""
    tensor = ((2, 3), "float32")
    return _build([helper.make_node("Relu", ["x"], ["y"], name="relu")], {"x": tensor}, {"y": tensor})


@pytest.fixture
def run_tvm():
    """Return the function (module, input name -> array) -> outputs, through TVM's default build."""
    return _run_tvm


@pytest.fixture
def run_onnx():
    """Return the function (model, input name -> array) -> outputs, through ONNX Runtime, not optimized."""
    return _run_onnx


@pytest.fixture
def random_inputs():
    """Return the function module -> input name -> random array."""
    return _random_inputs


@pytest.fixture
def assert_same():
    """Return the check that a module computes what ONNX Runtime computes from the model."""

    def check(model, mod, arrays=None, tolerance=1e-6):
        arrays = _random_inputs(mod) if arrays is None else arrays
        expected, got = _run_onnx(model, arrays), _run_tvm(mod, arrays)
        assert len(got) == len(expected)
        for mine, reference in zip(got, expected):
            assert mine.dtype == reference.dtype
            np.testing.assert_allclose(mine, reference, rtol=tolerance, atol=tolerance)

    return check


@pytest.fixture
def agree():
    """Return the check of one node: that a module computes what ONNX Runtime does, or its reference if that cannot."""

    def check(node, inputs, constants=None, opset=22, tolerance=1e-5, by_reference=False):
        tensors = {name: (array.shape, array.dtype) for name, array in inputs.items()}
        outputs = dict.fromkeys(node.output, ((), np.float32))
        model = _build([node], tensors, outputs, constants, opset)
        for value in model.graph.output:
            value.ClearField("type")
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        got = _run_tvm(from_onnx(model), inputs)
        expected = ReferenceEvaluator(model).run(None, inputs) if by_reference else _run_onnx(model, inputs)
        for mine, reference in zip(got, map(np.asarray, expected), strict=True):
            assert (mine.dtype, mine.shape) == (reference.dtype, reference.shape)
            wide = mine.dtype if mine.dtype.kind in "iub" else np.float64
            pair = mine.astype(wide), reference.astype(wide)
            np.testing.assert_allclose(*pair, rtol=tolerance, atol=tolerance)

    return check


@pytest.fixture
def operators():
    """Return the function module -> names of its operators, in order; "call_tir" for what has no name."""

    def names(mod):
        found = []

        def visit(expr):
            if isinstance(expr, tvm.relax.Call):
                found.append(expr.op.name.removeprefix("relax."))

        tvm.relax.analysis.post_order_visit(mod["main"], visit)
        return found

    return names

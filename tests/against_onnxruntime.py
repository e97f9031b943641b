# SPDX-License-Identifier: Apache-2.0
"""One small graph through this package's whole pipeline and through ONNX Runtime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import smartmem_tvm as sm

RUNTIME = "com.microsoft"


def _type(array) -> int:
    return helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)


def model_of(nodes, inputs, outputs, constants=None, opset=21) -> onnx.ModelProto:
    """Return a graph of `nodes`; `inputs`, `constants`: name -> array; `outputs`: name -> dtype or (dtype, shape)."""
    values = [helper.make_tensor_value_info(name, _type(array), np.shape(array)) for name, array in inputs.items()]
    results = []
    for name, given in outputs.items():
        dtype, shape = given if isinstance(given, tuple) else (given, None)
        results.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape))
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(RUNTIME, 1)]
    graph = helper.make_graph(nodes, "small", values, results, stored)
    return helper.make_model(graph, opset_imports=imports, ir_version=11)


def reference(model: onnx.ModelProto, inputs: dict, threads: int = 0) -> list[np.ndarray]:
    """Return ONNX Runtime's results, without its graph optimizations; by default on all cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, inputs)]


def check(nodes, inputs, outputs, constants=None, opset=21, tolerance=0.0, threads=0, least=1e-30, wanted=None) -> None:
    """Compare; integers must be equal, floats within a tolerance of the largest, or of `least` if that is more.

    `wanted` are results by the definition, in numpy, where ONNX Runtime has no kernel.
    """
    model = model_of(nodes, inputs, outputs, constants, opset)
    wanted = reference(model, inputs, threads) if wanted is None else wanted
    for value, array in zip(model.graph.output, wanted):
        value.type.tensor_type.shape.SetInParent()
        value.type.tensor_type.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in array.shape)
    for got, want in zip(sm.compile(sm.from_onnx(model)).run(*inputs.values()), wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * max(np.abs(want).max(initial=0), least))
        else:
            np.testing.assert_array_equal(got, want)


def check_contrib(op, inputs, outputs, constants=None, names=None, tolerance=3e-6, wanted=None, opset=21, **attributes):
    """Check one of ONNX Runtime's own operators; an input called ``_`` is left out; `names` defaults to their order."""
    names = names.split() if names else [*inputs, *(constants or {})]
    names = ["" if name == "_" else name for name in names]
    node = helper.make_node(op, names, list(outputs), domain=RUNTIME, **attributes)
    check([node], inputs, outputs, constants, opset, tolerance, threads=1, wanted=wanted)


def integers(random: np.random.Generator, dtype: str, shape=()) -> np.ndarray:
    """Return random numbers of an integer type."""
    info = ml_dtypes.iinfo(dtype)
    return np.asarray(random.integers(int(info.min), int(info.max) + 1, shape)).astype(dtype)


def weights(random: np.random.Generator, dtype: str, shape=()) -> np.ndarray:
    """Return the same for constants; int8 ones have seven bits, as ONNX Runtime sums pairs of products in 16 bits on
    processors without VNNI, which overflow otherwise."""
    drawn = integers(random, dtype, shape)
    return (drawn // 2).astype(dtype) if dtype == "int8" else drawn

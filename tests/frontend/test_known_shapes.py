# SPDX-License-Identifier: Apache-2.0
"""Shapes that converters read when the model runs: negative indices beside ONNX Runtime, also with an open length."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import smartmem_tvm
from open_models import N, check, compiled, model, weights
from smartmem_tvm.analysis.items import bindings_of, operator_of
from smartmem_tvm.frontend import from_onnx


def _operators(mod):
    return [operator_of(each.value) for each in bindings_of(mod)]


def _drawn(kind: str, seed: int):
    """A node that takes indices of both signs, and arrays for its inputs, of which the indices may be a constant."""
    random = np.random.default_rng(seed)
    rank = int(random.integers(1, 4))
    shape = [int(random.choice([1, 2, 3, 5])) for _ in range(rank)]
    x, dtype = random.standard_normal(shape).astype("float32"), str(random.choice(["int32", "int64"]))
    if kind in ("GatherElements", "ScatterElements"):
        axis = int(random.integers(-rank, rank))
        size = shape[axis]
        if kind == "ScatterElements":  # each place is written once
            indices = np.argsort(random.random(shape), axis)
        else:
            indices = random.integers(0, size, shape)
        indices = np.where(random.random(shape) < 0.5, indices - size, indices).astype(dtype)
        attributes = {"axis": axis}
    else:
        depth = int(random.integers(1, rank + 1))
        count = int(random.integers(1, 4))
        indices = np.stack([random.integers(-size, size, count) for size in shape[:depth]], -1).astype("int64")
        attributes = {}
    arrays = {"x": x, "i": indices}
    if kind == "ScatterElements":
        arrays["u"] = random.standard_normal(shape).astype("float32")
    return helper.make_node(kind, list(arrays), ["y"], **attributes), arrays, bool(random.random() < 0.5)


@pytest.mark.parametrize("kind", ["GatherElements", "GatherND", "ScatterElements"])
@pytest.mark.parametrize("seed", range(6))
def test_drawn_indices(kind, seed):
    node, arrays, held = _drawn(kind, seed)
    constants = [numpy_helper.from_array(arrays.pop("i"), "i")] if held else []
    types = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(name, types[str(a.dtype)], a.shape) for name, a in arrays.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "indices", inputs, [result], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    mod = from_onnx(proto)
    assert not {"shape_of", "shape_to_tensor"} & set(_operators(mod))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, arrays)
    (found,) = smartmem_tvm.compile(mod).run(arrays)
    np.testing.assert_array_equal(found, wanted)


def test_places_of_distances_stay_open():
    """Scores that are gathered by the distance of two positions, as DeBERTa's: x is (1, n, 4)."""
    distances = np.arange(16)[None] - np.arange(16)[:, None]
    held = {"w": weights(4, 9), "d": np.clip(distances, -4, 4)[None], "zero": np.array([0]), "axes": np.array([1, 2])}
    nodes = [
        ("MatMul", ["x", "w"], "s", {}),
        ("Shape", ["x"], "n", {"start": 1, "end": 2}),
        ("Concat", ["n", "n"], "ends", {"axis": 0}),
        ("Concat", ["zero", "zero"], "begins", {"axis": 0}),
        ("Slice", ["d", "begins", "ends", "axes"], "p", {}),
        ("GatherElements", ["s", "p"], "g", {"axis": 2}),
        ("Softmax", ["g"], "t", {"axis": -1}),
        ("MatMul", ["t", "x"], "y", {}),
    ]
    proto = model(nodes, [1, N, 4], held)
    check(proto, compiled(proto, "1..16"), (1, 2, 3, 7, 8, 11, 15, 16))

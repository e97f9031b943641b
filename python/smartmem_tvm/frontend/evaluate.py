# SPDX-License-Identifier: Apache-2.0
"""Fold known nodes one by one where ONNX Runtime cannot load a graph or lacks a kernel (bfloat16, new operators)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from math import prod

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.exact_onnxruntime import session_options
from smartmem_tvm.frontend.expand_functions import Types, opset_of, types_of
from smartmem_tvm.frontend.most_numbers import MOST_NUMBERS, more_than_most
from smartmem_tvm.frontend.old_versions import is_old
from smartmem_tvm.light import has_data

LARGEST = 2**20  # numbers in a tensor; shape arithmetic and masks have fewer

# Kept: the importer reads the quantization of a graph from these nodes.
_KEPT = frozenset({"DequantizeLinear", "QuantizeLinear"})

# Types of elements that numpy has, or gets from ml_dtypes.
_NUMBERS = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING}

_RANDOM = onnx.defs.OpSchema.NodeDeterminism.NonDeterministic

Values = dict[str, np.ndarray]


def fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the nodes that are known before it runs as initializers; itself if there is none.

    A tensor without elements is always known. Each round may give ONNX's shape inference values from which it derives
    further shapes.
    """
    while True:
        folded = _fold_once(model)
        if folded is model:
            return model
        model = folded


def _fold_once(model: onnx.ModelProto) -> onnx.ModelProto:
    types, opset = types_of(model), opset_of(model)
    values = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if prod(tensor.dims) <= LARGEST and has_data(tensor)  # large weights are stored elsewhere
    }
    values |= {name: np.zeros(shape, dtype) for name, (shape, dtype) in _empty(types)}
    kept = []
    for node in model.graph.node:
        results = _results(node, values, types, opset)
        if results is None:
            kept.append(node)
        else:
            values.update(results)
    if len(kept) == len(model.graph.node):
        return model
    return _with(model, kept, values)


def _with(model: onnx.ModelProto, nodes: list[onnx.NodeProto], values: Values) -> onnx.ModelProto:
    """Return the model with only these nodes, and with initializers for the tensors that they read."""
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    del folded.graph.node[:]
    folded.graph.node.extend(nodes)
    have = {each.name for each in (*model.graph.initializer, *model.graph.input)}
    read = {name for node in walk.nodes(folded.graph) for name in node.input}
    read |= {value.name for graph in walk.graphs(folded.graph) for value in graph.output}
    folded.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in values.items() if name in read and name not in have
    )
    return folded


def _results(node: onnx.NodeProto, values: Values, types: Types, opset: int) -> Values | None:
    """Return the results of a node by name; None if they are unknown, too large or cannot be computed."""
    if all(name in values for name in node.output if name):
        return {}  # without elements
    if node.domain not in walk.ONNX_DOMAINS or node.op_type in _KEPT:
        return None
    shape = shape_of(types.get(node.input[0])) if node.input else None
    if node.op_type == "Size" and shape is not None and prod(shape) <= MOST_NUMBERS:
        return {node.output[0]: np.array(prod(shape), np.int64)}
    if node.op_type == "Shape" and shape is not None:
        attrs = {each.name: each.i for each in node.attribute}
        return {node.output[0]: np.array(shape[attrs.get("start", 0) : attrs.get("end")], np.int64)}
    inputs = [name for name in node.input if name]
    if (not inputs and node.op_type != "Constant") or not all(name in values for name in inputs):
        return None
    if any(prod(shape_of(types.get(name)) or ()) > LARGEST for name in node.output):
        return None
    return _evaluate(node, {name: values[name] for name in inputs}, types, opset)


def _empty(types: Types) -> Iterator[tuple[str, tuple[list[int], np.dtype]]]:
    """Yield name, sizes and type of each tensor that has no elements."""
    for name, kind in types.items():
        shape = shape_of(kind)
        if shape is None or 0 not in shape or more_than_most(shape):
            continue  # the importer refuses such sizes
        if kind.tensor_type.elem_type in _NUMBERS:
            yield name, (shape, onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))


def shape_of(kind: onnx.TypeProto | None) -> list[int] | None:
    """Return the sizes of a tensor, None if one of them is unknown."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    known = all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims)
    return [dim.dim_value for dim in dims] if known else None


def _evaluate(node: onnx.NodeProto, values: Values, types: Types, opset: int) -> Values | None:
    """Return the results of a node; None if it is random, or if a result is not of the type that ONNX infers."""
    if not onnx.defs.has(node.op_type, opset) or any(each.HasField("g") for each in node.attribute):
        return None
    if node.op_type != "Constant" and onnx.defs.get_schema(node.op_type, opset).node_determinism == _RANDOM:
        return None
    names = [name for name in node.output if name]
    graph = onnx.helper.make_graph(
        [node],
        "known",
        [],
        [onnx.ValueInfoProto(name=name) for name in names],
        [numpy_helper.from_array(array, name) for name, array in values.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
    # ONNX's reference implementation computes some old versions of operators like the new ones.
    runs = (_by_onnxruntime,) if is_old(node.op_type, opset) else (_by_onnxruntime, _by_reference)
    for run in runs:
        with warnings.catch_warnings(), contextlib.suppress(Exception):  # both raise exceptions of many types
            warnings.simplefilter("ignore")
            results = dict(zip(names, map(np.asarray, run(model)), strict=True))
            if all(_is_of_type(array, types.get(name)) for name, array in results.items()):
                return results
    return None


def _by_onnxruntime(model: onnx.ModelProto) -> list:
    import onnxruntime  # here: the import takes 0.2 s, and most models need no evaluation

    options = session_options()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {})


def _by_reference(model: onnx.ModelProto) -> list:
    return ReferenceEvaluator(model).run(None, {})


def _is_of_type(array: np.ndarray, kind: onnx.TypeProto | None) -> bool:
    if array.dtype.kind in "OSU":
        return False
    stated = kind.tensor_type.elem_type if kind is not None else 0
    return not stated or onnx.helper.np_dtype_to_tensor_dtype(array.dtype) == stated

# SPDX-License-Identifier: Apache-2.0
"""Folds shape arithmetic (Shape, Gather, Concat ... chains) into constants, by ONNX Runtime.

The TorchScript exporter writes the shape of each reshape as a small graph that computes it. TVM's importer
refuses most of these. ONNX Runtime's basic level folds all of them once the inputs have fixed sizes; it was
chosen over onnxslim and onnxscript's optimizer, see ``docs/frontend.md`` for the comparison.
"""

import logging
import tempfile
from pathlib import Path

import onnx

from smartmem_tvm.frontend import graph as walk

_log = logging.getLogger(__name__)

_LARGE = 2**16  # bytes; smaller tensors cost nothing to hand over

# Parts of ONNX Runtime's basic level that add or move layout operators to suit its own kernels.
_UNWANTED = ["MatMulAddFusion", "TransposeOptimizer"]


def known_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes whose results are known before the graph runs.

    These are Shape and Size nodes (input sizes are fixed by now), nodes whose inputs are all constants, and
    nodes fed by these alone. Constant nodes themselves do not count.
    """
    known = {tensor.name for graph in walk.graphs(model.graph) for tensor in graph.initializer}
    found = []
    for node in walk.nodes(model.graph):
        inputs = [name for name in node.input if name]
        computed = node.op_type in ("Shape", "Size") or (bool(inputs) and known.issuperset(inputs))
        if computed:
            found.append(node)
        if computed or node.op_type == "Constant":
            known.update(node.output)
    return found


def fold_shape_arithmetic(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with everything folded that is known before it runs.

    The model itself is returned if there is nothing to fold, or if ONNX Runtime cannot load it; then TVM's
    importer has the last word, and names the node it stumbles over.
    """
    if not known_nodes(model):
        return model
    try:
        return _optimize(model)
    except Exception as err:  # onnxruntime's exceptions share no base class of their own
        _log.info("shape arithmetic is not folded, ONNX Runtime refuses the model: %s", err)
        return model


def _optimize(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxruntime  # here, because it takes 0.2 s and most models do not come this way

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "folded.onnx")
        onnxruntime.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_UNWANTED,
        )
        return onnx.load_model(options.optimized_model_filepath)


def lift_weights(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Turn large weights into graph inputs, in place, and return them for `put_back`.

    The steps on the graph then cost milliseconds whatever the model's size, and protobuf's limit of 2 GiB is
    no concern. Weights that folding can use stay: those read by `known_nodes`, and all of them if there is a
    batch normalization, which ONNX Runtime merges into the convolution before it.
    """
    graph = model.graph
    if any(node.op_type == "BatchNormalization" for node in walk.nodes(graph)):
        return []
    used = {name for node in known_nodes(model) for name in node.input}
    large = [tensor for tensor in graph.initializer if tensor.name not in used and tensor.ByteSize() > _LARGE]
    names = {tensor.name for tensor in large}
    kept = [tensor for tensor in graph.initializer if tensor.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in large
    )
    return large


def put_back(model: onnx.ModelProto, weights: list[onnx.TensorProto]) -> None:
    """Undo `lift_weights`, in place; weights that no node reads any more are left out."""
    names = {tensor.name for tensor in weights}
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    read = {name for node in walk.nodes(model.graph) for name in node.input}
    model.graph.initializer.extend(tensor for tensor in weights if tensor.name in read)

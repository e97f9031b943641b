# SPDX-License-Identifier: Apache-2.0
"""Fold shape arithmetic (Shape, Gather, Concat ... chains) into constants with ONNX Runtime.

The TorchScript exporter writes the shape of each reshape as a small graph that computes it. TVM's importer refuses most
of these. ONNX Runtime's basic level folds all of them once the inputs have fixed sizes; it was preferred to onnxslim
and onnxscript's optimizer, see ``docs/frontend.md`` for the comparison.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from smartmem_tvm.frontend import evaluate
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.child_process import in_child_process
from smartmem_tvm.frontend.exact_onnxruntime import session_options

if TYPE_CHECKING:
    from smartmem_tvm.frontend.load_weights import Weights

_log = logging.getLogger(__name__)

# Bytes of weights that ONNX Runtime gets for folding. Beyond that, Relax folds the known nodes one at a time.
FOLDABLE = 2**30

# Seconds and bytes that folding may take before it is given up: more than an exporter's shape arithmetic needs.
FOLDING_SECONDS, MEMORY = 120, 8 * FOLDABLE

# Parts of ONNX Runtime's basic level that add or move layout operators to suit its own kernels.
_MOVING = ["MatMulAddFusion", "TransposeOptimizer"]
# Parts that change results: one rounds weights and biases between DequantizeLinear and QuantizeLinear to integers, one
# makes two quantizations in a row, of different scales, a single one with a third scale.
_ROUNDING = ["WeightBiasQuantization", "DoubleQDQPairsRemover"]


def known_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes whose results are known before the graph runs.

    These are Shape and Size nodes (input sizes are fixed by now), nodes whose inputs are all constants, and nodes that
    read only results of these. Constant nodes themselves do not count.
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

    The model itself is returned if there is nothing to fold. Nodes that ONNX Runtime cannot load, or leaves, are folded
    one by one; TVM's importer folds the rest or refuses a node by name.
    """
    if not known_nodes(model):
        return model
    try:
        model = _optimize(model)
    except Exception as err:  # onnxruntime's exceptions share no base class of their own
        _log.info("ONNX Runtime refuses the model, so that nodes are folded one by one: %s", err)
    return evaluate.fold(model) if known_nodes(model) else model


def _optimize(model: onnx.ModelProto) -> onnx.ModelProto:
    folded = in_child_process(_optimized, model.SerializeToString(), seconds=FOLDING_SECONDS, memory=MEMORY)
    return onnx.ModelProto.FromString(folded)


def _optimized(model: bytes) -> bytes:
    import onnxruntime  # here: the import takes 0.2 s, and most models do not need it

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "folded.onnx"
        options = session_options(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
        options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(FOLDABLE))
        options.optimized_model_filepath = str(path)
        providers = ["CPUExecutionProvider"]
        onnxruntime.InferenceSession(model, options, providers=providers, disabled_optimizers=[*_MOVING, *_ROUNDING])
        return path.read_bytes()


def lift_weights(model: onnx.ModelProto, weights: Weights) -> list[str]:
    """Turn large weights into graph inputs, in place, and return their names for `put_back`.

    The steps on the graph then take milliseconds for a model of any size and stay below protobuf's limit of 2 GiB.
    Weights that folding can use keep their values unless they exceed `FOLDABLE`: those read by `known_nodes`, and all
    of them if there is a batch normalization, which ONNX Runtime merges into the convolution before it.
    """
    graph = model.graph
    used = {name for node in known_nodes(model) for name in node.input}
    if any(node.op_type == "BatchNormalization" for node in walk.nodes(graph)):
        used = set(weights)
    if sum(weights.nbytes(name) for name in used if name in weights) > FOLDABLE:
        used = set()
    lifted = [tensor for tensor in graph.initializer if tensor.name in weights and tensor.name not in used]
    names = {tensor.name for tensor in lifted}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in lifted
    )
    kept = [tensor for tensor in graph.initializer if tensor.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    weights.fill(model)
    return [tensor.name for tensor in lifted]


def put_back(model: onnx.ModelProto, names: list[str]) -> None:
    """Undo `lift_weights`, in place: make them initializers without data again and drop those that no node reads."""
    graph = model.graph
    read = {name for node in walk.nodes(graph) for name in node.input} | {value.name for value in graph.output}
    lifted = {value.name: value for value in graph.input if value.name in set(names)}
    for name in names:
        if name in lifted and name in read:
            kind = lifted[name].type.tensor_type
            dims = [dim.dim_value for dim in kind.shape.dim]
            graph.initializer.add(name=name, data_type=kind.elem_type, dims=dims)
    kept = [value for value in graph.input if value.name not in lifted]
    del graph.input[:]
    graph.input.extend(kept)

# SPDX-License-Identifier: Apache-2.0
"""Walk an ONNX graph and the graphs nested in its If, Loop and Scan nodes, and collect facts about them."""

from collections.abc import Iterable, Iterator

import onnx

ONNX_DOMAINS = ("", "ai.onnx")  # the names of ONNX's own domain

LAYOUT_OPERATORS = frozenset(
    (
        "CenterCropPad",
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "ReverseSequence",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    )
)


def operator_label(node: onnx.NodeProto) -> str:
    """Return an operator's name for messages: with its domain if that is not ONNX's."""
    return node.op_type if node.domain in ONNX_DOMAINS else f"{node.domain}.{node.op_type}"


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and, depth first, each graph nested in the attributes of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for nested in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(nested)


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield each node of a graph and of the graphs nested in it."""
    for each in graphs(graph):
        yield from each.node


def reads(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node reads, and those that its nested graphs read from outside, each once."""
    names = list(node.input)
    for attribute in node.attribute:
        for nested in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            names += _free(nested)
    return [name for name in dict.fromkeys(names) if name]


def _free(graph: onnx.GraphProto) -> list[str]:
    own = {each.name for each in (*graph.input, *graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    used = [name for node in graph.node for name in reads(node)] + [each.name for each in graph.output]
    return [name for name in used if name not in own]


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield each tensor stored in a graph: initializers, and tensors in the attributes of nodes."""
    for each in graphs(graph):
        yield from each.initializer
        for sparse in each.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in each.node:
            for attribute in node.attribute:
                yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)


def stored_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield each tensor stored in a model: first the initializers of its graph, last copies of those in functions."""
    yield from tensors(model.graph)
    for function in model.functions:
        yield from tensors(onnx.GraphProto(node=function.node))


def texts(model: onnx.ModelProto) -> Iterator[str | bytes]:
    """Yield each text of a model that has a meaning; names of nodes have none (see `node_label`)."""
    yield from (field for field in (model.producer_name, model.producer_version, model.domain, model.doc_string))
    yield from (text for each in model.metadata_props for text in (each.key, each.value))
    yield from (each.domain for each in model.opset_import)
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
        yield from _texts_of_nodes(function.node)
    for graph in graphs(model.graph):
        yield from (graph.name, graph.doc_string)
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
        yield from _texts_of_nodes(graph.node)
    for tensor in tensors(model.graph):
        yield tensor.name
        yield from (text for each in tensor.external_data for text in (each.key, each.value))


def _texts_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[str | bytes]:
    for node in nodes:
        yield from (node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def domain_of(named: onnx.NodeProto | onnx.OperatorSetIdProto) -> str:
    """Return the domain of an operator or of a set of them; ONNX's own has two names."""
    return "" if named.domain in ONNX_DOMAINS else named.domain


def node_label(node: onnx.NodeProto) -> str:
    """Return the name of a node or, as names are optional in ONNX, that of its first output."""
    name = node.name or next(filter(None, node.output), "unnamed")
    # Protobuf returns a damaged name as bytes, and the checker does not check names.
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def computes_in_half(model: onnx.ModelProto) -> bool:
    """Whether an input, a stored tensor or the result of a Cast in a model is in half precision."""
    half = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    types = {value.type.tensor_type.elem_type for value in model.graph.input}
    types |= {tensor.data_type for tensor in tensors(model.graph)}
    types |= {each.i for node in nodes(model.graph) if node.op_type == "Cast" for each in node.attribute}
    return not half.isdisjoint(types)


def count_nodes(model: onnx.ModelProto) -> tuple[int, int]:
    """Return the number of nodes of a model, nested graphs included, and of those that only move data."""
    types = [node.op_type for node in nodes(model.graph)]
    return len(types), sum(each in LAYOUT_OPERATORS for each in types)

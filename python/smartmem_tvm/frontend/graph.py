# SPDX-License-Identifier: Apache-2.0
"""Walks over an ONNX graph and the graphs nested in its If, Loop and Scan nodes."""

from collections.abc import Iterator

import onnx


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


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield each tensor stored in a graph: initializers, and tensors in the attributes of nodes."""
    for each in graphs(graph):
        yield from each.initializer
        for sparse in each.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in each.node:
            for attribute in node.attribute:
                yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)


def node_label(node: onnx.NodeProto) -> str:
    """Return the name of a node or, as names are optional in ONNX, that of its first output."""
    name = node.name or next(filter(None, node.output), "unnamed")
    # Protobuf hands over a damaged name as bytes, and the checker does not look at names.
    return name.decode(errors="replace") if isinstance(name, bytes) else name

# SPDX-License-Identifier: Apache-2.0
"""Write a graph of kernels as an ONNX model for viewers; it cannot be run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
from onnx import helper

from ..._version import __version__
from ...whole_file import whole

DOMAIN = "smartmem.kernels"
_IR_VERSION = 8
_OPSET = 17


def onnx_graph(graph: Mapping, network: Mapping, times: Mapping[str, Mapping]) -> onnx.ModelProto:
    """Return a model with one node for each kernel, and facts about it as attributes.

    Weights are not inputs of nodes, which would require their values: each node lists their types and shapes.

    Parameters
    ----------
    graph : mapping
        The result of `deploy.record_graph.record_graph`, after the passes.
    network : mapping
        The result of `page.network.network` for the same graph.
    times : mapping
        Kernel -> ``seconds`` of all its launches, and ``launches``.

    Returns
    -------
    onnx.ModelProto
        The checked model; tensors have their shapes and types in memory.
    """
    known = {each["tensor"]: each for each in network["tensors"]}
    tensors = {t["name"]: t for t in graph["inputs"]} | {t["name"]: t for n in graph["nodes"] for t in n["outputs"]}
    nodes = [
        helper.make_node(
            kernel["kernel"],
            node["inputs"],
            [each["name"] for each in node["outputs"]],
            name=node["name"],
            domain=DOMAIN,
            doc_string=kernel["family"] or "",
            **_attributes(kernel, [known[each["name"]] for each in node["outputs"]], times.get(kernel["kernel"])),
        )
        for node, kernel in zip(graph["nodes"], network["kernels"], strict=True)
    ]
    # An ONNX graph lists a result that is returned twice only once.
    outputs = list(dict.fromkeys(graph["outputs"]))
    inputs = [each["name"] for each in graph["inputs"]]
    inner = [_value(t) for name, t in tensors.items() if name not in (*inputs, *outputs)]
    made = helper.make_graph(
        nodes,
        network["name"],
        [_value(tensors[name]) for name in inputs],
        [_value(tensors[name]) for name in outputs],
        value_info=inner,
        doc_string=f"{len(nodes)} kernels for {network['about']['target']}; without weights and code, to look at",
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="smartmem_tvm")
    model.producer_version = __version__
    onnx.checker.check_model(model)
    return model


def write_onnx(model: onnx.ModelProto, path: Path) -> int:
    """Write a file that is complete or absent; return its size in bytes.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    content = model.SerializeToString()
    with whole(path) as partial:
        partial.write_bytes(content)
    return len(content)


def _attributes(kernel: Mapping, outputs: Iterable[Mapping], time: Mapping | None) -> dict:
    """Return the attributes that a viewer shows for a node, without empty or unknown ones."""
    outputs = list(outputs)
    found = {
        "rule": kernel["rule"],
        "operators": kernel["members"],
        "eliminated": kernel["views"],
        "memory": [each["memory"] for each in outputs],
        "layout": [_layout(each) for each in outputs],
        "bytes": [each["bytes"] for each in outputs],
        "weights": kernel["weights"],
        "weight_bytes": kernel["weight_bytes"] or None,
        "tuned_gain": kernel["tuned"] and kernel["tuned"]["gain"],
        "microseconds": time and time["seconds"] * 1e6 / (time["launches"] or 1),
    }
    return {name: value for name, value in found.items() if value not in (None, [])}


def _layout(tensor: Mapping) -> str:
    if tensor["texel"] is not None:
        return f"texel from dimension {tensor['texel']}, {tensor['padding']} bytes of padding"
    order = tensor["order"]
    return f"dimensions in the order {order}" if order and order != sorted(order) else "as in the model"


def _value(tensor: Mapping) -> onnx.ValueInfoProto:
    dtype = {"float32": "float", "float64": "double", "bool": "bool"}.get(tensor["dtype"], tensor["dtype"])
    kind = getattr(onnx.TensorProto, dtype.upper(), onnx.TensorProto.UNDEFINED)
    return helper.make_tensor_value_info(tensor["name"], kind, tensor["shape"], doc_string=tensor["memory"])

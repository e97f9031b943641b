# SPDX-License-Identifier: Apache-2.0
"""Which ONNX operators TVM's importer knows; expands functions, and names all that is left over at once."""

from collections import defaultdict

import onnx
from tvm.relax.frontend.onnx import onnx_frontend

from smartmem_tvm._version import TVM_PINS
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import functions
from smartmem_tvm.frontend import graph as walk
from smartmem_tvm.frontend.control_flow import RESOLVED
from smartmem_tvm.frontend.converters import CONVERTERS

# TVM finds a converter by the operator's name alone. These names of its table mean operators of the domain
# com.microsoft, even where ONNX itself has one of the same name (Attention, since opset 23); ours are `CONVERTERS`.
_CONTRIB = frozenset(
    (
        "Attention",
        "BiasGelu",
        "EmbedLayerNormalization",
        "FastGelu",
        "MatMulInteger16",
        "SkipLayerNormalization",
    )
)


def converter_name(node: onnx.NodeProto) -> str:
    """Return what the converter of an operator is called, of ours or of TVM's."""
    label = operator_label(node)
    return label if label in CONVERTERS else node.op_type


def is_supported(node: onnx.NodeProto) -> bool:
    """Return whether there is a converter that means this operator."""
    if operator_label(node) in CONVERTERS:
        return True
    known = {*RESOLVED, *onnx_frontend._get_convert_map()} - _CONTRIB
    return node.domain in walk.ONNX_DOMAINS and node.op_type in known


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with functions expanded: see `functions.inline`."""
    return functions.inline(model, is_supported)


def unsupported_operators(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return (operator, node name) of each node that TVM cannot import, nested graphs included.

    Operators outside the ONNX domain come as ``domain.operator``; a node without a name is called by its
    first output.
    """
    return [(operator_label(node), walk.node_label(node)) for node in walk.nodes(model.graph) if not is_supported(node)]


def operator_label(node: onnx.NodeProto) -> str:
    """Return what messages call an operator: its name, with its domain if that is not ONNX's."""
    return node.op_type if node.domain in walk.ONNX_DOMAINS else f"{node.domain}.{node.op_type}"


def refuse_unsupported(model: onnx.ModelProto, name: str) -> None:
    """Raise one UserError that names every unsupported operator with all its nodes, if there is any."""
    by_operator: dict[str, list[str]] = defaultdict(list)
    for operator, node in unsupported_operators(model):
        by_operator[operator].append(node)
    if by_operator:
        listing = "; ".join(
            f"{each} ({', '.join(dict.fromkeys(nodes))})" for each, nodes in sorted(by_operator.items())
        )
        raise UserError(
            f"{name} uses operators that the ONNX importer of TVM {TVM_PINS['apache-tvm']} does not have: "
            f"{listing}; export the model without them or simplify these nodes first."
        )

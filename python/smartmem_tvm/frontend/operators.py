# SPDX-License-Identifier: Apache-2.0
"""Which ONNX operators TVM's importer knows; expands functions, and names all that is left over at once."""

import re
from collections import defaultdict

import onnx
from onnx import inliner
from tvm.relax.frontend.onnx import onnx_frontend

from smartmem_tvm._version import TVM_PINS
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import graph as walk
from smartmem_tvm.frontend.converters import CONVERTERS

_ONNX_DOMAINS = ("", "ai.onnx")

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
# Between the name of a node in a function and the function's, in the names of inlined nodes.
_OF_FUNCTION = " of function "


def converter_name(node: onnx.NodeProto) -> str:
    """Return what the converter of an operator is called, of ours or of TVM's."""
    label = operator_label(node)
    return label if label in CONVERTERS else node.op_type


def is_supported(node: onnx.NodeProto) -> bool:
    """Return whether there is a converter that means this operator."""
    if operator_label(node) in CONVERTERS:
        return True
    # If has no converter in the table: the importer handles it itself.
    known = {"If", *onnx_frontend._get_convert_map()} - _CONTRIB
    return node.domain in _ONNX_DOMAINS and node.op_type in known


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its own functions expanded, and those ONNX operators that TVM does not know.

    ONNX defines many newer operators as functions of older ones (Attention, Swish ...), so much of what TVM
    lacks need not be refused. The model itself is returned if there is nothing to expand.
    """
    unknown = {
        (node.domain, node.op_type)
        for node in walk.nodes(model.graph)
        if node.domain in _ONNX_DOMAINS and not is_supported(node) and _has_body(node.op_type)
    }
    if not unknown and not model.functions:
        return model
    model = _with_defaults(model, unknown)
    own = {(function.domain, function.name) for function in model.functions}
    for function in model.functions:
        for node in function.node:
            node.name = f"{walk.node_label(node)}{_OF_FUNCTION}{function.name}"
    model = inliner.inline_selected_functions(model, sorted(unknown | own), inline_schema_functions=True)
    for node in walk.nodes(model.graph):
        if _OF_FUNCTION in node.name:
            node.name = re.sub(r"__\d+$", "", node.name)  # the inliner's number of the call
    return model


def _with_defaults(model: onnx.ModelProto, operators: set[tuple[str, str]]) -> onnx.ModelProto:
    """Return a copy whose nodes of these operators state each attribute: the inliner forgets defaults."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in walk.nodes(copy.graph):
        if (node.domain, node.op_type) in operators:
            stated = {attribute.name for attribute in node.attribute}
            schema = onnx.defs.get_schema(node.op_type)
            node.attribute.extend(
                attribute.default_value
                for name, attribute in schema.attributes.items()
                if name not in stated and attribute.default_value.name
            )
    return copy


def _has_body(op_type: str) -> bool:
    if not onnx.defs.has(op_type):
        return False
    schema = onnx.defs.get_schema(op_type)
    return schema.has_function or schema.has_context_dependent_function


def unsupported_operators(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return (operator, node name) of each node that TVM cannot import, nested graphs included.

    Operators outside the ONNX domain come as ``domain.operator``; a node without a name is called by its
    first output.
    """
    return [(operator_label(node), walk.node_label(node)) for node in walk.nodes(model.graph) if not is_supported(node)]


def operator_label(node: onnx.NodeProto) -> str:
    """Return what messages call an operator: its name, with its domain if that is not ONNX's."""
    return node.op_type if node.domain in _ONNX_DOMAINS else f"{node.domain}.{node.op_type}"


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

# SPDX-License-Identifier: Apache-2.0
"""Expand functions: those of the model, and those by which ONNX defines operators that have no converter."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping

import onnx
from onnx import inliner, shape_inference

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import walk_graph as walk

# Separates the node's name from the function's in the name of an inlined node.
_OF_FUNCTION = " of function "
# The domain of functions made for one node each.
_DOMAIN = "smartmem.body"

Types = Mapping[str, onnx.TypeProto]


def inline(model: onnx.ModelProto, is_supported: Callable[[onnx.NodeProto], bool]) -> onnx.ModelProto:
    """Return the model with its own functions expanded, and those ONNX operators that are not supported.

    ONNX defines many newer operators as functions of older ones (Attention, Swish ...), so many operators without a
    converter need not be refused. Many of these bodies depend on the types of the inputs and on which of them are
    given, so each node gets its own body. The model itself is returned if there is nothing to expand.
    """
    if model.functions:
        model = _inlined(copy_of(model))
    while True:
        expanded, types = copy_of(model), None
        for node in walk.nodes(expanded.graph):
            if not is_supported(node) and _versions(node, model):
                types = types_of(model) if types is None else types
                _replace(node, _body(node, model, types), expanded)
        if types is None:
            return model
        model = _inlined(expanded)


def opset_of(model: onnx.ModelProto, domain: str = "") -> int:
    """Return the version of ONNX's operators, or of those of another domain, that a model states."""
    return next((each.version for each in model.opset_import if walk.domain_of(each) == domain), 1)


def types_of(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the type of each tensor that ONNX can infer, nested graphs included."""
    with contextlib.suppress(Exception):  # without inference, the types in the file remain
        model = shape_inference.infer_shapes(model, data_prop=True)
    types = {}
    for graph in walk.graphs(model.graph):
        types.update({value.name: value.type for value in (*graph.value_info, *graph.input, *graph.output)})
        for tensor in graph.initializer:
            types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


@contextlib.contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """Turn an error of ONNX's own checks, which quotes a line of its source, into a UserError."""
    try:
        yield
    except (RuntimeError, ValueError) as err:
        reason = " ".join(str(err).split()).rpartition(" failed: ")[2].rstrip(".")
        raise UserError(f"The body of {what} cannot be put in its place ({reason}); export the model again.") from err


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without functions; its nodes, changed in place, carry the names of their functions."""
    for function in model.functions:
        for node in function.node:
            if _OF_FUNCTION not in walk.node_label(node):
                node.name = f"{walk.node_label(node)}{_OF_FUNCTION}{function.name}"
    with _named_errors("a function of the model"):
        # The inliner skips bodies of other versions of ONNX's operators unless it converts them.
        model = inliner.inline_local_functions(model, convert_version=True)
    for node in walk.nodes(model.graph):
        if _OF_FUNCTION in walk.node_label(node):
            node.name = re.sub(r"__\d+$", "", walk.node_label(node))  # the inliner's number of the call
    return model


def _schema(node: onnx.NodeProto, model: onnx.ModelProto) -> onnx.defs.OpSchema | None:
    domain = walk.domain_of(node)
    opset = opset_of(model, domain)
    known = onnx.defs.has(node.op_type, opset, domain)
    return onnx.defs.get_schema(node.op_type, opset, domain) if known else None


def _versions(node: onnx.NodeProto, model: onnx.ModelProto) -> list[int]:
    """Return the versions of the bodies that ONNX has for a node, up to the model's version."""
    schema, newest = _schema(node, model), opset_of(model, walk.domain_of(node))
    found = (*schema.function_opset_versions, *schema.context_dependent_function_opset_versions) if schema else ()
    return sorted(version for version in found if version <= newest)


def _body(node: onnx.NodeProto, model: onnx.ModelProto, types: Types) -> onnx.FunctionProto:
    """Return ONNX's function for a node; the node gets the defaults of its attributes, which the inliner ignores."""
    schema, version = _schema(node, model), _versions(node, model)[-1]
    stated = {attribute.name for attribute in node.attribute}
    node.attribute.extend(
        attribute.default_value
        for name, attribute in schema.attributes.items()
        if name not in stated and attribute.default_value.name
    )
    if version in schema.context_dependent_function_opset_versions:
        # An omitted input has an empty type.
        inputs = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        build = schema.get_context_dependent_function_with_opset_version
        with _named_errors(f"operator {node.op_type} (node {walk.node_label(node)})"):
            body = build(version, node.SerializeToString(), inputs)
    else:
        body = schema.get_function_with_opset_version(version)
    return onnx.FunctionProto.FromString(body)


def _replace(node: onnx.NodeProto, body: onnx.FunctionProto, model: onnx.ModelProto) -> None:
    """Turn a node, in place, into a call of a function of the model."""
    for inner in body.node:
        inner.name = f"{walk.node_label(inner)}{_OF_FUNCTION}{node.op_type} in {walk.node_label(node)}"
    if not model.functions:
        model.opset_import.add(domain=_DOMAIN, version=1)
    body.domain, body.name = _DOMAIN, f"{node.op_type}_{len(model.functions)}"
    for each in body.opset_import:
        each.version = opset_of(model, walk.domain_of(each))  # otherwise the inliner skips the call
    node.domain, node.op_type = body.domain, body.name
    model.functions.append(body)

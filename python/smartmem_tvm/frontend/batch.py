# SPDX-License-Identifier: Apache-2.0
"""Change the batch size of a model, including a batch of 1 that is written into its graph."""

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np
import onnx
from onnx import TypeProto, helper, numpy_helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import walk_graph as walk

Shape = tuple[int, ...]

_SIZES = 64  # elements that a constant of sizes or axes has at most


def rebatch(model: onnx.ModelProto, count: int, name: str) -> None:
    """Set the first dimension of every input to `count`, in place, and the sizes in the graph that depend on it.

    If the model leaves that dimension open, nothing else changes. If it is 1, the constant sizes of ``Reshape``,
    ``Expand`` and ``Resize`` get the batch, and a tensor that is concatenated with one of the batch is repeated. The
    batch is found in each tensor as the dimension that differs between the old and the new shapes.

    Parameters
    ----------
    model : onnx.ModelProto
        A model without the values of its large weights; sizes other than the batch may still be open.
    name : str
        The model's name in messages.

    Raises
    ------
    UserError
        If an input has another first dimension, or an operator cannot take the batch.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    before = {value.name: _copied(value.type) for value in inputs}
    written = [_widen(value, count, name) for value in inputs]
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    if not any(written) or count == 1:
        return
    _Rewriter(model, count, name, before, {value.name: value.type for value in inputs}).rewrite()


def _copied(kind: TypeProto) -> TypeProto:
    copy = TypeProto()
    copy.CopyFrom(kind)
    return copy


def _widen(value: onnx.ValueInfoProto, count: int, name: str) -> bool:
    """Write the batch into an input; return whether the model had a 1 there."""
    dims = value.type.tensor_type.shape.dim
    if not dims:
        raise UserError(f"Input '{value.name}' of {name} has no dimension that is known to be the batch: leave it out.")
    fixed = dims[0].WhichOneof("value") == "dim_value" and dims[0].dim_value >= 0
    if fixed and dims[0].dim_value not in (1, count):
        raise UserError(
            f"Input '{value.name}' of {name} has a first dimension of {dims[0].dim_value}, and a batch takes the place "
            f"of 1 or of an open one: export the model with an open batch."
        )
    is_one = fixed and dims[0].dim_value == 1
    dims[0].dim_value = count
    return is_one


class _Rewriter:
    """Rewrite a graph with the types of all tensors before the change of the batch and after it."""

    def __init__(self, model: onnx.ModelProto, count: int, name: str, before: dict, after: dict):
        self.model, self.count, self.name = model, count, name
        self.versions = {each.domain: each.version for each in model.opset_import}
        self.values = {tensor.name: tensor for tensor in model.graph.initializer}
        weights = {name: helper.make_tensor_type_proto(t.data_type, t.dims) for name, t in self.values.items()}
        self.before, self.after = {**weights, **before}, {**weights, **after}
        self.nodes: list[onnx.NodeProto] = []

    def rewrite(self) -> None:
        """Change the graph."""
        for node in self.model.graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.values[node.output[0]] = node.attribute[0].t
            old = self._types(node, self.before)
            if any(self._axis(each) is not None for each in node.input):
                _CHANGES.get(node.op_type, lambda *_: None)(self, node, old)
            self.before.update(old)
            self.after.update(self._types(node, self.after))
            self.nodes.append(node)
        del self.model.graph.node[:]
        self.model.graph.node.extend(self.nodes)

    def _types(self, node: onnx.NodeProto, known: dict) -> dict:
        """Return the types of a node's outputs that ONNX can infer."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self.versions.get(node.domain, 1), node.domain)
            inputs = {each: known[each] for each in node.input if each in known}
            data = {each: self.values[each] for each in node.input if self._is_small(each)}
            imports = list(self.model.opset_import)
            return infer_node_outputs(schema, node, inputs, data, opset_imports=imports, ir_version=9)
        except (InferenceError, onnx.defs.SchemaError) as error:
            reason = str(error).strip().splitlines()[-1].rstrip(".")
            raise self._refusal(node, reason) from error

    def _is_small(self, tensor: str) -> bool:
        """Whether a tensor may hold sizes or axes; the values of large weights are not loaded here."""
        return tensor in self.values and prod(self.values[tensor].dims) <= _SIZES

    def _shapes(self, tensor: str) -> tuple[Shape, Shape] | None:
        """Return a tensor's sizes before the change and after it."""
        both = (self.before.get(tensor), self.after.get(tensor))
        dims = [each.tensor_type.shape.dim for each in both if each is not None]
        known = len(dims) == 2 and all(dim.HasField("dim_value") for each in dims for dim in each)
        return tuple(tuple(dim.dim_value for dim in each) for each in dims) if known else None

    def _axis(self, tensor: str) -> int | None:
        """Return the batch's dimension of a tensor, None if it has none."""
        old, new = self._shapes(tensor) or ((), ())
        return next((axis for axis, (one, many) in enumerate(zip(old, new)) if one != many), None)

    def _constant(self, node: onnx.NodeProto, place: int) -> list[int]:
        tensor = self.values.get(node.input[place])
        if tensor is None:
            raise self._refusal(node, f"its sizes '{node.input[place]}' are computed")
        return [int(each) for each in numpy_helper.to_array(tensor)]

    def _give(self, node: onnx.NodeProto, place: int, sizes: Sequence[int] | np.ndarray) -> None:
        """Replace an input of the node by a new constant: other nodes may read the old one."""
        tensor = numpy_helper.from_array(np.array(sizes, "int64"), self._unused(f"{node.output[0]}_sizes"))
        self.model.graph.initializer.append(tensor)
        self.values[tensor.name], self.before[tensor.name] = tensor, helper.make_tensor_type_proto(7, tensor.dims)
        self.after[tensor.name] = self.before[tensor.name]
        node.input[place] = tensor.name

    def _unused(self, name: str) -> str:
        while name in self.before:
            name += "_"
        return name

    def _reshape(self, node: onnx.NodeProto, old: dict) -> None:
        axis = self._axis(node.input[0])
        if axis is None:
            return
        self._constant(node, 1)
        sizes = [dim.dim_value for dim in old[node.output[0]].tensor_type.shape.dim]
        inner = prod(self._shapes(node.input[0])[0][axis:])  # contiguous numbers of one sample
        places = [each for each in range(len(sizes)) if prod(sizes[each:]) == inner]
        if not places:
            raise self._refusal(node, "the batch would lie within a dimension")
        self._give(node, 1, [size * self.count if each == places[0] else size for each, size in enumerate(sizes)])

    def _expand(self, node: onnx.NodeProto, _: dict) -> None:
        axis, sizes = self._axis(node.input[0]), self._constant(node, 1)
        place = axis - len(self._shapes(node.input[0])[0]) + len(sizes)
        if place >= 0:
            sizes[place] = max(sizes[place], 1) * self.count
            self._give(node, 1, sizes)

    def _resize(self, node: onnx.NodeProto, _: dict) -> None:
        axis = self._axis(node.input[0])
        if len(node.input) > 3 and node.input[3]:
            sizes = self._constant(node, 3)
            if len(sizes) == len(self._shapes(node.input[0])[0]):
                sizes[axis] *= self.count
                self._give(node, 3, sizes)

    def _gather(self, node: onnx.NodeProto, old: dict) -> None:
        """Gather along the batch's dimension the same places of each sample, as exported for ``as_strided``."""
        axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
        if self._axis(node.input[0]) is None or axis % len(self._shapes(node.input[0])[0]) != self._axis(node.input[0]):
            return
        tensor = self.values.get(node.input[1])
        if tensor is None or not tensor.ByteSize() or not tensor.dims or tensor.dims[0] != 1 or axis != 0:
            raise self._refusal(node, "it picks along the batch")
        indices, size = numpy_helper.to_array(tensor), self._shapes(node.input[0])[0][0]
        indices = np.where(indices < 0, indices + size, indices)
        self._give(node, 1, np.concatenate([indices + sample * size for sample in range(self.count)]))

    def _concat(self, node: onnx.NodeProto, _: dict) -> None:
        axes = {axis for each in node.input if (axis := self._axis(each)) is not None}
        if len(axes) > 1:
            raise self._refusal(node, "its inputs have the batch in different dimensions")
        (axis,) = axes
        rank = len(next(found for each in node.input if (found := self._shapes(each)) is not None)[0])
        if node.attribute[0].i % rank == axis:
            raise self._refusal(node, "it joins along the batch")
        for place, each in enumerate(node.input):
            if self._axis(each) is None:
                node.input[place] = self._repeated(each, axis, rank, node)

    def _repeated(self, tensor: str, axis: int, rank: int, node: onnx.NodeProto) -> str:
        """Repeat a tensor that has no batch once for each sample."""
        sizes = [self.count if each == axis else 1 for each in range(rank)]
        wide = helper.make_node("Tile", [tensor, ""], [self._unused(f"{node.output[0]}_{tensor}_batch")])
        self._give(wide, 1, sizes)
        self.before[wide.output[0]] = self.before[tensor]
        self.after.update(self._types(wide, self.after))
        self.nodes.append(wide)
        return wide.output[0]

    def _refusal(self, node: onnx.NodeProto, reason: str) -> UserError:
        return UserError(
            f"{self.name} cannot be given a batch of {self.count}: {walk.node_label(node)} has a batch of 1 written "
            f"into it, and {reason}; export the model with an open batch."
        )


_CHANGES = {
    "Reshape": _Rewriter._reshape,
    "Expand": _Rewriter._expand,
    "Resize": _Rewriter._resize,
    "Gather": _Rewriter._gather,
    "Concat": _Rewriter._concat,
}
"""Operator -> the method that gives it the batch; all other operators need no change."""


def check_batch(single: Iterable[list[np.ndarray]], whole: list[np.ndarray], name: str) -> None:
    """Refuse a model whose outputs for a batch differ from those of its samples one by one.

    Parameters
    ----------
    single : iterable of list of numpy.ndarray
        The outputs for each sample.
    whole : list of numpy.ndarray
        The outputs for the batch.

    Raises
    ------
    UserError
    """
    for number, (parts, batch) in enumerate(zip(zip(*single), whole)):
        joined = np.concatenate(parts)
        if joined.shape != batch.shape or not np.allclose(joined, batch, 1e-3, 1e-3 * np.abs(joined).max(initial=0)):
            raise UserError(
                f"Output {number} of {name} is another one for a batch than for its samples one by one: this model "
                f"cannot be given a batch; export it with an open one."
            )

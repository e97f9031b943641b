# SPDX-License-Identifier: Apache-2.0
"""How the sizes of a graph's tensors, and small tensors of numbers, depend on one length that the file leaves open.

The graph is inferred node by node for a few numbers of that length. A size or a number that fits ``base + slope *
length`` at all of them is taken to be that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import InferenceError, infer_node_outputs

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.light import has_data

# Numbers in a tensor whose values are followed: shapes, and bounds of slices and ranges. Chosen: a shape has one number
# for each dimension, of which tensors have at most eight.
MOST = 64
_IR = 9  # version of ONNX's intermediate representation that type inference is told


@dataclass(frozen=True)
class Line:
    """A number ``base + slope * length``."""

    base: int
    slope: int = 0

    def at(self, length: int) -> int:
        """Return the number for a length."""
        return self.base + self.slope * length

    def __add__(self, other: Line | int) -> Line:
        other = other if isinstance(other, Line) else Line(other)
        return Line(self.base + other.base, self.slope + other.slope)

    def __sub__(self, other: Line) -> Line:
        return Line(self.base - other.base, self.slope - other.slope)


@dataclass(frozen=True, eq=False)
class Numbers:
    """A small tensor whose numbers are ``base + slope * length``; `slope` is None where they are always the same."""

    base: np.ndarray
    slope: np.ndarray | None = None

    def at(self, length: int) -> np.ndarray:
        """Return the tensor for a length."""
        return self.base if self.slope is None else (self.base + self.slope * length).astype(self.base.dtype)

    def lines(self) -> list[Line]:
        """Return its numbers one by one."""
        slope = np.zeros_like(self.base) if self.slope is None else self.slope
        return [Line(int(a), int(b)) for a, b in zip(self.base.reshape(-1), slope.reshape(-1), strict=True)]


class Sampled:
    """The sizes and small numbers of a graph as lines over a length.

    Parameters
    ----------
    models : mapping
        Length, at least three -> the model whose inputs have numbers for that length; large weights without data.
    name : str
        The model's name in messages.

    Attributes
    ----------
    dims : dict
        Tensor -> a `Line` for each dimension; None where sizes fit no line.
    values : dict
        Tensor -> `Numbers`, if they follow from sizes alone.
    kinds : dict
        Tensor -> ONNX's number of its type.
    """

    def __init__(self, models: Mapping[int, onnx.ModelProto], name: str):
        passes = {length: _Pass(model, name) for length, model in models.items()}
        first = next(iter(passes.values()))
        lengths = list(passes)
        self.kinds = {tensor: kind.tensor_type.elem_type for tensor, kind in first.types.items()}
        self.dims: dict[str, tuple[Line, ...] | None] = {}
        for tensor in first.types:
            self.dims[tensor] = _lines(lengths, [each.shape(tensor) for each in passes.values()])
        self.values: dict[str, Numbers] = {}
        for tensor in first.values:
            found = [each.values.get(tensor) for each in passes.values()]
            numbers = _numbers(lengths, found) if all(each is not None for each in found) else None
            if numbers is not None:
                self.values[tensor] = numbers


def _lines(lengths: Sequence[int], shapes: Sequence[tuple[int, ...] | None]) -> tuple[Line, ...] | None:
    if any(each is None for each in shapes) or len({len(each) for each in shapes}) != 1:
        return None
    found = [_line(lengths, sizes) for sizes in zip(*shapes, strict=True)]
    return None if any(each is None for each in found) else tuple(found)


def _line(lengths: Sequence[int], numbers: Sequence[int]) -> Line | None:
    slope, rest = divmod(numbers[-1] - numbers[0], lengths[-1] - lengths[0])
    line = Line(numbers[0] - slope * lengths[0], slope)
    fits = not rest and all(line.at(length) == number for length, number in zip(lengths, numbers, strict=True))
    return line if fits else None


def _numbers(lengths: Sequence[int], arrays: Sequence[np.ndarray]) -> Numbers | None:
    first, last = arrays[0], arrays[-1]
    if any(each.shape != first.shape or each.dtype != first.dtype for each in arrays):
        return None
    if all(np.array_equal(each, first, equal_nan=first.dtype.kind == "f") for each in arrays):
        return Numbers(first)
    if first.dtype.kind not in "iu":
        return None
    slope = (last.astype("int64") - first) // (lengths[-1] - lengths[0])
    base = first.astype("int64") - slope * lengths[0]
    found = Numbers(base.astype(first.dtype), slope.astype(first.dtype))
    fits = all(np.array_equal(found.at(length), each) for length, each in zip(lengths, arrays, strict=True))
    return found if fits else None


class _Pass:
    """Types of all tensors of a graph whose inputs have numbers, and the values that follow from them."""

    def __init__(self, model: onnx.ModelProto, name: str):
        self.name = name
        self.versions = {walk.domain_of(each): each.version for each in model.opset_import}
        self.imports = list(model.opset_import)
        self.types: dict[str, onnx.TypeProto] = {each.name: each.type for each in model.graph.input}
        self.values: dict[str, np.ndarray] = {}
        for tensor in model.graph.initializer:
            self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            if prod(tensor.dims) <= MOST and has_data(tensor):
                self.values[tensor.name] = numpy_helper.to_array(tensor)
        for node in model.graph.node:
            self._infer(node)

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Return a tensor's sizes, None if one is not known."""
        kind = self.types.get(tensor)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None

    def _infer(self, node: onnx.NodeProto) -> None:
        found = self._evaluated(node)
        if found is not None:
            self.values.update(found)
            for tensor, array in found.items():
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                self.types[tensor] = helper.make_tensor_type_proto(kind, array.shape)
            return
        domain = walk.domain_of(node)
        try:
            schema = onnx.defs.get_schema(node.op_type, self.versions.get(domain, 1), domain)
            types = {each: self.types[each] for each in node.input if each in self.types}
            data = {
                each: numpy_helper.from_array(self.values[each], each) for each in node.input if each in self.values
            }
            self.types.update(infer_node_outputs(schema, node, types, data, opset_imports=self.imports, ir_version=_IR))
        except (InferenceError, onnx.defs.SchemaError) as error:
            reason = str(error).strip().splitlines()[-1].rstrip(".")
            raise UserError(
                f"{self.name} has caches that grow, and the sizes of {walk.operator_label(node)} "
                f"'{walk.node_label(node)}' cannot be followed ({reason}): export it with caches of a fixed size."
            ) from error

    def _evaluated(self, node: onnx.NodeProto) -> dict[str, np.ndarray] | None:
        """Return the results of a node that follow from sizes and constants; None if they do not, or are many."""
        if walk.domain_of(node) or any(each.HasField("g") for each in node.attribute):
            return None
        if node.op_type in ("Shape", "Size"):
            return self._measured(node)
        inputs = [each for each in node.input if each]
        if node.op_type == "Constant":
            array = _constant(node)
            return None if array is None else {node.output[0]: array}
        if not inputs or not all(each in self.values for each in inputs):
            return None
        if node.op_type in ("Range", "ConstantOfShape", "Expand", "Tile") and self._many(node):
            return None
        graph = helper.make_graph(
            [node],
            "known",
            [],
            [onnx.ValueInfoProto(name=each) for each in node.output if each],
            [numpy_helper.from_array(self.values[each], each) for each in dict.fromkeys(inputs)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.versions.get("", 1))])
        try:
            with np.errstate(all="ignore"):
                results = [np.asarray(each) for each in ReferenceEvaluator(model).run(None, {})]
        except Exception:  # it raises exceptions of many types; the node's type is inferred then
            return None
        if any(each.size > MOST or each.dtype.kind in "OSU" for each in results):
            return None
        return dict(zip([each for each in node.output if each], results, strict=True))

    def _measured(self, node: onnx.NodeProto) -> dict[str, np.ndarray] | None:
        shape = self.shape(node.input[0])
        if shape is None:
            return None
        attrs = {each.name: each.i for each in node.attribute}
        part = prod(shape) if node.op_type == "Size" else shape[attrs.get("start", 0) : attrs.get("end")]
        return {node.output[0]: np.array(part, np.int64)}

    def _many(self, node: onnx.NodeProto) -> bool:
        """Whether the result of a node that repeats numbers has more of them than are followed."""
        given = [self.values[each] for each in node.input if each]
        if node.op_type == "Range":
            start, limit, delta = (float(each.reshape(-1)[0]) for each in given)
            return delta == 0 or (limit - start) / delta > MOST
        times = given[-1].astype("int64")
        return prod(max(1, int(each)) for each in times) * (given[0].size if node.op_type == "Tile" else 1) > MOST


def _constant(node: onnx.NodeProto) -> np.ndarray | None:
    (given,) = node.attribute
    if given.name == "value":
        return numpy_helper.to_array(given.t) if prod(given.t.dims) <= MOST else None
    kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    if given.name not in kinds:
        return None
    array = np.array(helper.get_attribute_value(given), kinds[given.name])
    return array if array.size <= MOST else None

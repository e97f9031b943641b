# SPDX-License-Identifier: Apache-2.0
"""The graph that `capacity` writes: its nodes, constants, and numbers that follow from the first new row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.sampled_sizes import Line, Numbers, Sampled


@dataclass(frozen=True)
class Grown:
    """A cache that grows.

    Attributes
    ----------
    past : str
        The input.
    present : str
        The tensor of both, of old and new rows.
    output : str
        The result of the graph that it is.
    axis : int
        The dimension of the rows.
    """

    past: str
    present: str
    output: str
    axis: int


# Inputs, by their place, that are sizes, bounds or axes: they must be known when the model is compiled.
SIZES = {
    **dict.fromkeys(("Expand", "Pad", "Reshape", "Split", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze"), (1,)),
    **{f"Reduce{name}": (1,) for name in ("Max", "Mean", "Min", "Prod", "Sum", "L1", "L2", "SumSquare", "LogSumExp")},
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "OneHot": (1,),
    "Slice": (1, 2, 3, 4),
}
_ROW = "first row"


class Writer:
    """Writes the nodes of the new graph, in their order.

    Parameters
    ----------
    model : onnx.ModelProto
        Is changed.
    sampled : Sampled
        Of the model.
    grown : sequence of Grown
    positions : str
        The input whose first number is that of the first new row.
    mask : str or None
        The input that becomes all ones.
    rows, count : int
        Rows of the caches, and new rows of a run.
    name : str
        The model's name in messages.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        sampled: Sampled,
        grown: Sequence[Grown],
        positions: str,
        mask: str | None,
        rows: int,
        count: int,
        name: str,
    ):
        self.graph, self.sampled, self.name = model.graph, sampled, name
        self.grown = {each.present: each for each in grown}
        self.positions, self.rows, self.count, self.past = positions, rows, count, rows - count
        self.nodes: list[onnx.NodeProto] = []
        self.weights = {each.name for each in model.graph.initializer}
        self.there = {each.name for each in model.graph.input} | self.weights
        self.uniform: dict[str, np.ndarray] = {}  # tensors of one number
        self.zero: dict[str, frozenset[int]] = {}  # tensor -> dimensions behind whose rows there are zeros
        self.of_data = {each.name for each in model.graph.input} - {positions, mask}
        self.made: dict[tuple, str] = {}
        self.makers: dict[str, onnx.NodeProto] = {}
        self.pasts = {each.past: each for each in grown}
        self.opset = next((each.version for each in model.opset_import if not walk.domain_of(each)), 1)
        if mask is not None:
            self._all_ones(mask)

    def _dims(self, tensor: str) -> tuple[Line, ...]:
        return self.sampled.dims.get(tensor) or ()

    def _open(self, tensor: str) -> list[int]:
        """Return the dimensions of a tensor that depend on the length."""
        return [axis for axis, dim in enumerate(self._dims(tensor)) if dim.slope]

    def _size(self, dim: Line) -> int:
        return dim.at(self.past)

    def _all_ones(self, mask: str) -> None:
        value = next(each for each in self.graph.input if each.name == mask)
        self.graph.input.remove(value)
        self.there.discard(mask)
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        self.uniform[mask] = np.ones((), dtype)

    def _emit(self, op: str, inputs: Sequence[str], name: str, **attrs) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        self.there.add(name)
        return name

    def _new(self, key: tuple, emit: Callable[[str], None]) -> str:
        """Return the tensor of a key, which `emit` makes the first time."""
        if key not in self.made:
            self.made[key] = f"smartmem_{len(self.made)}"
            emit(self.made[key])
        return self.made[key]

    def _constant(self, array: np.ndarray, name: str | None = None) -> str:
        array = np.ascontiguousarray(array) if array.ndim else array
        key = ("constant", str(array.dtype), array.shape, array.tobytes())
        if name is None and key in self.made:
            return self.made[key]
        name = name or self.made.setdefault(key, f"smartmem_{len(self.made)}")
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        self.there.add(name)
        return name

    def _ints(self, *values: int) -> str:
        return self._constant(np.array(values, np.int64))

    def _first_row(self) -> str:
        """Return the number of the first new row, without dimensions."""

        def emit(name: str) -> None:
            flat = self._emit("Reshape", [self.positions, self._ints(-1)], f"{name}_all")
            first = self._emit("Gather", [flat, self._constant(np.array(0, np.int64))], f"{name}_given", axis=0)
            self._emit("Cast", [first], name, to=onnx.TensorProto.INT64)

        return self._new((_ROW,), emit)

    def _data(self, numbers: Numbers, name: str) -> str:
        """Emit a tensor of numbers that depend on the length, by that of the first new row."""
        if numbers.slope is None or not numbers.slope.any():
            return self._constant(numbers.base, name)
        kind = helper.np_dtype_to_tensor_dtype(numbers.base.dtype)
        length = self._emit("Cast", [self._first_row()], f"{name}_length", to=kind)
        if not (numbers.slope == 1).all():
            length = self._emit("Mul", [length, self._constant(numbers.slope)], f"{name}_times")
        return self._emit("Add", [length, self._constant(numbers.base)], name)

    def _ensure(self, tensor: str) -> str:
        """Emit a tensor that a node reads as data, if it is not there."""
        if not tensor or tensor in self.there:
            return tensor
        if tensor in self.sampled.values:
            return self._data(self.sampled.values[tensor], tensor)
        if tensor in self.uniform:
            sizes = self._ints(*map(self._size, self._dims(tensor)))
            value = numpy_helper.from_array(self.uniform[tensor].reshape(1))
            return self._emit("ConstantOfShape", [sizes], tensor, value=value)
        raise UserError(f"{self.name}: tensor '{tensor}' is computed by no node before it is read; export it again.")

    def _pass_on(self, node: onnx.NodeProto) -> None:
        """Emit a node with its inputs: sizes as numbers, all others as tensors."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        slots = SIZES.get(node.op_type, ())
        for place, tensor in enumerate(node.input):
            numbers = self.sampled.values.get(tensor)
            if place in slots and numbers is not None and numbers.slope is not None:
                copy.input[place] = self._constant(numbers.at(self.past))
            else:
                self._ensure(tensor)
        self.nodes.append(copy)
        self._made_by(node)

    def _made_by(self, node: onnx.NodeProto) -> None:
        self.there.update(node.output)
        self.makers.update(dict.fromkeys(node.output, node))
        if any(each in self.of_data for each in walk.reads(node)):
            self.of_data.update(node.output)

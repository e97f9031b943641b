# SPDX-License-Identifier: Apache-2.0
"""Rewrite a graph whose caches grow to one over buffers of a capacity, node by node, or refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import onnx
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.capacity_writer import SIZES, Grown, Writer
from smartmem_tvm.frontend.sampled_sizes import Line, Numbers

# Operators that compute each element from those at the same place.
_AT_ONE_PLACE = """
    Abs Add And Cast Ceil Clip Cos Div Dropout Equal Erf Exp Floor Gelu Greater GreaterOrEqual Identity IsInf IsNaN
    LeakyRelu Less LessOrEqual Log Max Min Mod Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid Sign Sin Softplus Sqrt
    Sub Tanh Where Xor
"""
# Operators whose result is the same number everywhere if that of their first operand is.
_SPREADING = """
    Cast Expand Flatten Gather GatherElements GatherND Identity Reshape Slice Squeeze Tile Transpose Unsqueeze
"""
_RESHAPING = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze"))
_EVERYTHING = 2**31  # a bound of a slice from here on stands for the end
_SEEN, _ROWS = "seen", "rows"  # keys of tensors that are made once


def refusal(name: str, node: onnx.NodeProto, reason: str) -> UserError:
    """Return the error for a node that does not go over a cache of a capacity."""
    return UserError(
        f"The caches of {name} grow and cannot get a capacity: {walk.operator_label(node)} '{walk.node_label(node)}' "
        f"{reason}. Export it with caches of a fixed size, or leave --cache out."
    )


class Capacity(Writer):
    """Rewrites a graph so that its caches have a capacity.

    A tensor of the new graph has a dimension of ``base + slope * (rows - count)`` where one of the old graph has
    ``base + slope * length``. What is kept from node to node is: its first ``base + slope * length`` places hold what
    the old graph computes. Behind them is something else, that no other place is computed from; softmax makes zeros of
    it, which products may then add up. A number that follows from the length, and not from a size, is computed from the
    position of the first new row. Any other operator over such a dimension is refused.
    """

    def rewrite(self) -> None:
        """Change the graph."""
        for node in list(self.graph.node):
            self._node(node)
        grown = {each.output for each in self.grown.values()}
        for value in self.graph.output:
            if value.name not in grown and any(dim.slope for dim in self._dims(value.name)):
                raise UserError(
                    f"Output '{value.name}' of {self.name} grows with the caches and is none of them: export the model "
                    f"without it, or leave --cache out."
                )
            self._ensure(value.name)
        for value in self.graph.input:
            if value.name in self.pasts:
                value.type.tensor_type.shape.dim[self.pasts[value.name].axis].dim_value = self.rows
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    def _node(self, node: onnx.NodeProto) -> None:
        outputs = [each for each in node.output if each]
        if all(each in self.sampled.values for each in outputs) and not any(each in self.there for each in outputs):
            return  # emitted when it is read
        if node.output[0] in self.grown:
            return self._write(self.grown[node.output[0]], node)
        if any(each in self.pasts for each in walk.reads(node)):
            return self._read_past(node)
        if self._spreads(node):
            return None
        rule = _RULES.get(node.op_type, Capacity._unknown)
        if walk.domain_of(node):
            rule = Capacity._unknown
        if not self._over_rows(node):
            return self._pass_on(node)
        if any(self.sampled.dims.get(each) is None for each in (*filter(None, node.input), *outputs)):
            raise refusal(self.name, node, "has a size that does not grow with the cache row by row")
        if any(dim.slope not in (0, 1) for each in outputs for dim in self._dims(each)):
            raise refusal(self.name, node, "lays rows of a cache beside other dimensions")
        return rule(self, node)

    def _over_rows(self, node: onnx.NodeProto) -> bool:
        """Whether a node has a dimension that depends on the length, or a size or bound that does."""
        sizes = range(len(node.input)) if node.op_type == "Range" else SIZES.get(node.op_type, ())
        given = [self.sampled.values.get(each) for place, each in enumerate(node.input) if place in sizes]
        varies = any(each is not None and each.slope is not None for each in given)
        return varies or any(self._open(each) for each in (*walk.reads(node), *node.output))

    def _unknown(self, node: onnx.NodeProto) -> None:
        raise refusal(self.name, node, "works along the rows of a cache, and is not known to be right there")

    def _read_past(self, node: onnx.NodeProto) -> None:
        """Take over another name of a cache; refuse what else reads it."""
        if node.op_type in ("Identity", "Concat") and len(node.input) == 1:
            self.pasts[node.output[0]] = self.pasts[node.input[0]]
            return
        raise refusal(self.name, node, "reads a cache without its new rows")

    def _spreads(self, node: onnx.NodeProto) -> bool:
        """Whether the results of a node are one number everywhere, or its other operand."""
        if walk.domain_of(node) or not node.input:
            return False
        first = self.uniform.get(node.input[0])
        if node.op_type in _SPREADING.split() and first is not None:
            if node.op_type == "Cast":
                to = next(each.i for each in node.attribute if each.name == "to")
                first = first.astype(helper.tensor_dtype_to_np_dtype(to))
            self.uniform[node.output[0]] = first
            return True
        if node.op_type == "And":
            for one, other in (node.input, reversed(node.input)):
                if one in self.uniform and self.uniform[one] and self._dims(other) == self._dims(node.output[0]):
                    self._emit("Identity", [self._ensure(other)], node.output[0])
                    self._made_by(node)
                    self.zero[node.output[0]] = self.zero.get(other, frozenset())
                    return True
        return False

    def _write(self, cache: Grown, node: onnx.NodeProto) -> None:
        """Emit the write of new rows: along the first dimension, between two transpositions."""
        dims = self._dims(cache.past)
        order = [cache.axis, *(axis for axis in range(len(dims)) if axis != cache.axis)]
        back = [order.index(axis) for axis in range(len(dims))]
        new = node.input[1]
        if self._open(new) or self._dims(new)[cache.axis].base != self.count or dims[cache.axis] != Line(0, 1):
            raise refusal(self.name, node, f"adds other rows than the {self.count} of new tokens")
        turned = [
            self._emit("Transpose", [self._ensure(each)], f"{node.output[0]}_{part}", perm=order)
            for part, each in (("past", cache.past), ("new", new))
        ]
        inputs = [turned[0], self._new((_ROWS,), self._new_rows), turned[1]]
        self._emit("ScatterND", inputs, f"{node.output[0]}_written")
        self._emit("Transpose", [f"{node.output[0]}_written"], node.output[0], perm=back)
        self._made_by(node)
        self.of_data.add(node.output[0])

    def _new_rows(self, name: str) -> None:
        numbers = self._constant(np.arange(self.count, dtype=np.int64)[:, None])
        self._emit("Add", [numbers, self._first_row()], name)

    def _elementwise(self, node: onnx.NodeProto) -> None:
        self._pass_on(node)
        rank = len(self._dims(node.output[0]))
        zeros = [
            {axis + rank - len(self._dims(each)) for axis in self.zero.get(each, ())} if each else set()
            for each in node.input
        ]
        if node.op_type == "Where":
            kept = [zero for each, zero in zip(node.input[1:], zeros[1:], strict=True) if not self._is_zero(each)]
            found = set.intersection(*kept) if kept else set()
        elif node.op_type in ("Add", "Sub"):
            found = zeros[0] & zeros[1]
        elif node.op_type in ("Mul", "And"):
            found = zeros[0] | zeros[1]
        else:
            found = zeros[0] if node.op_type in ("Cast", "Div", "Dropout", "Identity", "Neg") else set()
        self.zero[node.output[0]] = frozenset(found)

    def _is_zero(self, tensor: str) -> bool:
        numbers = self.sampled.values.get(tensor)
        return numbers is not None and numbers.slope is None and not numbers.base.any()

    def _transpose(self, node: onnx.NodeProto) -> None:
        self._pass_on(node)
        rank = len(self._dims(node.input[0]))
        order = next((list(each.ints) for each in node.attribute if each.name == "perm"), list(reversed(range(rank))))
        zero = self.zero.get(node.input[0], ())
        self.zero[node.output[0]] = frozenset(place for place, axis in enumerate(order) if axis in zero)

    def _reshape(self, node: onnx.NodeProto) -> None:
        before, after = (self._dims(each) for each in (node.input[0], node.output[0]))
        pairs = list(zip(self._open(node.input[0]), self._open(node.output[0]), strict=False))
        whole = len(self._open(node.input[0])) == len(self._open(node.output[0]))
        for one, other in pairs:
            sizes = [prod(self._size(dim) for dim in dims[:at]) for dims, at in ((before, one), (after, other))]
            whole &= before[one] == after[other] and sizes[0] == sizes[1]
        if not whole:
            raise refusal(self.name, node, "lays rows of a cache beside other dimensions")
        self._pass_on(node)
        zero = self.zero.get(node.input[0], ())
        self.zero[node.output[0]] = frozenset(other for one, other in pairs if one in zero)

    def _expand(self, node: onnx.NodeProto) -> None:
        self._pass_on(node)
        more = len(self._dims(node.output[0])) - len(self._dims(node.input[0]))
        self.zero[node.output[0]] = frozenset(axis + more for axis in self.zero.get(node.input[0], ()))

    def _concat(self, node: onnx.NodeProto) -> None:
        axis = next(each.i for each in node.attribute if each.name == "axis") % len(self._dims(node.output[0]))
        if self._dims(node.output[0])[axis].slope:
            raise refusal(self.name, node, "joins rows of a cache with others, and is no result of the model")
        self._pass_on(node)
        zeros = [self.zero.get(each, frozenset()) for each in node.input]
        self.zero[node.output[0]] = frozenset.intersection(*zeros)

    def _split(self, node: onnx.NodeProto) -> None:
        axis = next((each.i for each in node.attribute if each.name == "axis"), 0) % len(self._dims(node.input[0]))
        if axis in self._open(node.input[0]):
            raise refusal(self.name, node, "cuts the rows of a cache")
        self._pass_on(node)

    def _matmul(self, node: onnx.NodeProto) -> None:
        left, right = node.input[:2]
        last, row = len(self._dims(left)) - 1, max(0, len(self._dims(right)) - 2)
        if self._dims(left)[last].slope and last not in self.zero.get(left, ()) and row not in self.zero.get(right, ()):
            raise refusal(self.name, node, "adds up along the rows of a cache without a softmax")
        self._pass_on(node)

    def _cumsum(self, node: onnx.NodeProto) -> None:
        axis = self.sampled.values.get(node.input[1])
        backwards = any(each.name == "reverse" and each.i for each in node.attribute)
        if axis is None or (backwards and int(axis.base) % len(self._dims(node.input[0])) in self._open(node.input[0])):
            return self._unknown(node)
        return self._pass_on(node)

    def _trilu(self, node: onnx.NodeProto) -> None:
        diagonal = (
            self.sampled.values.get(node.input[1]) if len(node.input) > 1 and node.input[1] else Numbers(np.zeros(1))
        )
        if diagonal is None or diagonal.slope is not None:
            return self._unknown(node)
        return self._pass_on(node)

    def _range(self, node: onnx.NodeProto) -> None:
        """Emit the numbers from a start; those that count rows go on to the capacity."""
        given = [self.sampled.values.get(each) for each in node.input]
        if any(each is None for each in given) or given[2].slope is not None or given[2].base != 1:
            return self._unknown(node)
        start, end = given[0].lines()[0], given[1].lines()[0]
        dtype = given[0].base.dtype
        if start.slope not in (0, end.slope):
            return self._unknown(node)
        if start.slope == 0:
            self._constant(np.arange(start.base, self._size(end), dtype=dtype), node.output[0])
        else:
            count = np.arange(end.base - start.base, dtype=dtype)
            first = self._data(
                Numbers(np.array(start.base, dtype), np.array(start.slope, dtype)), f"{node.output[0]}_0"
            )
            self._emit("Add", [first, self._constant(count)], node.output[0])
        return self._made_by(node)

    def _slice(self, node: onnx.NodeProto) -> None:
        """Emit a slice; one that begins at a row behind the length gathers rows."""
        dims = self._dims(node.input[0])
        given = [self.sampled.values.get(each) if each else None for each in node.input[1:]]
        if any(each is None and name for each, name in zip(given, node.input[1:], strict=True)) or len(given) < 2:
            return self._unknown(node)
        starts, ends = given[0].lines(), given[1].lines()
        axes = [each.base for each in given[2].lines()] if len(given) > 2 and given[2] else list(range(len(starts)))
        steps = [each.base for each in given[3].lines()] if len(given) > 3 and given[3] else [1] * len(starts)
        source, left = self._ensure(node.input[0]), []
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            axis %= len(dims)
            if not (dims[axis].slope or start.slope or end.slope):
                left.append((start.base, end.base, axis, step))
                continue
            if step != 1:
                return self._unknown(node)
            first, last = self._bound(start, dims[axis]), self._bound(end, dims[axis])
            if first.slope == 0:
                left.append((first.base, self._size(last), axis, 1))
            elif first.slope == last.slope:
                source = self._rows_from(node, source, first, last, axis)
            else:
                return self._unknown(node)
        if left:
            source = self._emit(
                "Slice", [source, *(self._ints(*each) for each in zip(*left, strict=True))], node.output[0]
            )
        else:
            self._emit("Identity", [source], node.output[0])
        whole = [axis for axis, (one, other) in enumerate(zip(dims, self._dims(node.output[0]))) if one == other]
        self.zero[node.output[0]] = frozenset(axis for axis in self.zero.get(node.input[0], ()) if axis in whole)
        return self._made_by(node)

    def _bound(self, bound: Line, dim: Line) -> Line:
        """Return a bound of a slice, counted from the beginning and within the dimension."""
        if bound.base >= _EVERYTHING or bound.at(self.past) > self._size(dim):
            return dim
        if bound.base <= -_EVERYTHING:
            return Line(0)
        return bound + dim if bound.at(self.past) < 0 else bound

    def _rows_from(self, node: onnx.NodeProto, source: str, first: Line, last: Line, axis: int) -> str:
        numbers = np.arange(last.base - first.base, dtype=np.int64)
        name = f"{node.output[0]}_rows_{axis}"
        at = self._data(Numbers(numbers + first.base, np.full_like(numbers, first.slope)), name)
        return self._emit("Gather", [source, at], f"{name}_taken", axis=axis)

    def _gather(self, node: onnx.NodeProto) -> None:
        data, index = node.input
        axis = next((each.i for each in node.attribute if each.name == "axis"), 0) % len(self._dims(data))
        dim, numbers = self._dims(data)[axis], self.sampled.values.get(index)
        if dim.slope:
            if numbers is None:
                raise refusal(self.name, node, "takes rows of a cache by numbers that are data")
            if any(line.at(self.past) < 0 for line in numbers.lines()):
                lines = [line + dim if line.at(self.past) < 0 else line for line in numbers.lines()]
                kind, shape = numbers.base.dtype, numbers.base.shape
                base, slope = (
                    np.array(each, kind).reshape(shape) for each in zip(*[(each.base, each.slope) for each in lines])
                )
                index = self._data(Numbers(base, slope), f"{node.output[0]}_at")
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[1] = self._ensure(index)
        self._ensure(data)
        self.nodes.append(copy)
        self._made_by(node)

    def _softmax(self, node: onnx.NodeProto) -> None:
        """Emit a softmax, before which scores of what is no row are hidden."""
        scores, dims = node.input[0], self._dims(node.input[0])
        axis = next((each.i for each in node.attribute if each.name == "axis"), -1 if self.opset >= 13 else 1) % len(
            dims
        )
        if self.opset < 13 and axis != len(dims) - 1:
            return self._unknown(node)
        if not dims[axis].slope:
            self._pass_on(node)
            return None
        hidden = self._hidden(scores, axis)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[0] = hidden
        self.nodes.append(copy)
        self._made_by(node)
        self.zero[node.output[0]] = frozenset((axis,))
        return None

    def _hidden(self, scores: str, axis: int) -> str:
        """Return the scores with minus infinity behind the last row: in a mask that is added to them, else by a Where.

        All layers share a mask, which is changed once.
        """
        dims, maker = self._dims(scores), self.makers.get(scores)
        if maker is not None and maker.op_type == "Add" and axis == len(dims) - 1:
            for place, mask in enumerate(maker.input):
                known = mask not in self.of_data and self._dims(mask) and self._dims(mask)[-1] == dims[axis]
                if known and maker.input[1 - place] in self.of_data:
                    lowered = self._new(
                        ("mask", mask), lambda name, mask=mask: self._lowered(mask, dims[axis], 1, name)
                    )
                    other = maker.input[1 - place]
                    return self._emit("Add", [other, lowered], f"{scores}_hidden")
        return self._lowered(scores, dims[axis], len(dims) - axis, f"{scores}_hidden")

    def _lowered(self, tensor: str, dim: Line, rank: int, name: str) -> str:
        dtype = helper.tensor_dtype_to_np_dtype(self.sampled.kinds[tensor])
        lowest = self._constant(np.array(-np.inf, dtype))  # below what any mask of the file writes
        return self._emit("Where", [self._seen(dim, rank), self._ensure(tensor), lowest], name)

    def _seen(self, dim: Line, rank: int) -> str:
        """Return which places of a dimension hold rows, with so many dimensions that broadcast."""

        def emit(name: str) -> None:
            shape = (-1, *[1] * (rank - 1))
            places = self._constant(np.arange(self._size(dim), dtype=np.int64).reshape(shape))
            one = np.ones((), np.int64)
            end = self._data(Numbers(dim.base * one, dim.slope * one), f"{name}_end")
            self._emit("Less", [places, end], name)

        return self._new((_SEEN, dim, rank), emit)


_RULES: Mapping[str, Callable[[Capacity, onnx.NodeProto], None]] = {
    **dict.fromkeys(_AT_ONE_PLACE.split(), Capacity._elementwise),
    **dict.fromkeys(_RESHAPING, Capacity._reshape),
    "Concat": Capacity._concat,
    "ConstantOfShape": Capacity._pass_on,
    "CumSum": Capacity._cumsum,
    "Expand": Capacity._expand,
    "Gather": Capacity._gather,
    "MatMul": Capacity._matmul,
    "Range": Capacity._range,
    "Slice": Capacity._slice,
    "Softmax": Capacity._softmax,
    "Split": Capacity._split,
    "Transpose": Capacity._transpose,
    "Trilu": Capacity._trilu,
}
"""Operator -> the method that emits it over dimensions that depend on the length."""

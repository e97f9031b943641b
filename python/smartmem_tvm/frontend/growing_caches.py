# SPDX-License-Identifier: Apache-2.0
"""Caches that grow, ``present = Concat(past, new)``: the graph over buffers of a capacity with the same results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import dimensions, expand_functions, size_names
from smartmem_tvm.frontend.capacity import Capacity
from smartmem_tvm.frontend.capacity_writer import Grown
from smartmem_tvm.frontend.onnx_file import Model
from smartmem_tvm.frontend.sampled_sizes import Sampled
from smartmem_tvm.frontend.stacked_caches import source, unstacked
from smartmem_tvm.tables.decoder_inputs import MASKS, POSITIONS

Arrays = Mapping[str, np.ndarray]

LENGTH = "cache_position"
"""The input with the number of the first new row that a model without positions gets."""
# Rows of caches at which sizes are inferred, besides the capacity without the new rows. Chosen: unlike each other and
# unlike most sizes of networks, so that a size that only looks like a line fails at one of the three.
_LENGTHS = (3, 8)


@dataclass(frozen=True, eq=False)
class Original:
    """The model before its caches got a capacity, to compare with.

    Attributes
    ----------
    model : Model
        With caches that grow, and open sizes.
    grown : tuple of Grown
        Its caches, as the rewritten model has them.
    positions : str
        The input of the rewritten model whose first number is the number of rows that are taken.
    mask : str or None
        The input that the rewritten model does not have.
    count : int
        Tokens of a run.
    stacked : mapping
        Input that holds keys and values one behind the other -> the two inputs of the rewritten model; and so for
        results.
    """

    model: Model
    grown: tuple[Grown, ...]
    positions: str
    mask: str | None
    count: int
    stacked: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def placed(self, given: Arrays) -> dict[str, np.ndarray]:
        """Return inputs of the rewritten model with positions that make sense: half of the rows are taken."""
        first = self.grown[0]
        length = (given[first.past].shape[first.axis] - self.count) // 2
        places = given[self.positions]
        numbers = length + np.arange(self.count)[: places.size]
        return {**given, self.positions: np.broadcast_to(numbers, places.shape).astype(places.dtype)}

    def results(self, run: Callable[[Model, Arrays], list[np.ndarray]], given: Arrays) -> list[np.ndarray]:
        """Return what the rewritten model should give, by the model itself over as many rows as are taken.

        Parameters
        ----------
        run : callable
            Model and inputs -> its results.
        given : mapping
            Inputs of the rewritten model.
        """
        arrays = self.arrays(given)
        found = run(self.model, {each.name: arrays[each.name] for each in self.model.proto.graph.input})
        return self.rewritten(found, given)

    def arrays(self, given: Arrays) -> dict[str, np.ndarray]:
        """Return inputs of the model itself: caches of as many rows as are taken, and its mask."""
        length = int(given[self.positions].reshape(-1)[0])
        graph = self.model.proto.graph
        arrays = {
            **given,
            **{each.past: np.take(given[each.past], np.arange(length), each.axis) for each in self.grown},
        }
        arrays |= {
            name: np.stack([arrays[each] for each in parts])
            for name, parts in self.stacked.items()
            if parts[0] in arrays
        }
        if self.mask is not None:
            value = next(each for each in graph.input if each.name == self.mask)
            batch = next(array for name, array in given.items() if name != self.positions).shape[0]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            arrays[self.mask] = np.ones((batch, length + self.count), dtype)
        return arrays

    def rewritten(self, results: Sequence[np.ndarray], given: Arrays) -> list[np.ndarray]:
        """Return the results of the model itself as the rewritten model gives them, for its inputs."""
        length, graph = int(given[self.positions].reshape(-1)[0]), self.model.proto.graph
        found = dict(zip([each.name for each in graph.output], results, strict=True))
        for name, parts in self.stacked.items():
            if name in found:
                found |= dict(zip(parts, found[name], strict=True))
        for each in self.grown:
            whole = given[each.past].copy()
            np.moveaxis(whole, each.axis, 0)[: length + self.count] = np.moveaxis(found[each.output], each.axis, 0)
            found[each.output] = whole
        names = [part for each in graph.output for part in self.stacked.get(each.name, (each.name,))]
        return [found[name] for name in names]


def grows(model: onnx.ModelProto) -> bool:
    """Whether a result of a model is an input with new rows behind it."""
    return bool(_found(model.graph))


def with_capacity(
    model: Model, shapes: Mapping[str, Sequence[int]], rows: int
) -> tuple[Model, dict[str, Sequence[int]]]:
    """Return a model with caches of `rows` rows in place of those that grow, and the shapes that it still needs.

    The caches keep their names. New rows are written where the first position says, by operators that `KeepCaches`
    knows. Scores of rows behind them are hidden before each softmax, so that what lies there reaches no result. The
    input of a mask, all ones, is gone; positions that the graph computed from the length of a cache are computed from
    the first number of the input with positions, or of a new input `LENGTH`. Keys and values that are stacked in one
    input become two inputs.

    Parameters
    ----------
    shapes : mapping
        As in `read_model`; those of caches and of the mask are not needed.
    rows : int
        The capacity.

    Raises
    ------
    UserError
        If the model has no caches that grow, or does more with one than is known to be right.
    """
    proto, stacked = unstacked(expand_functions.inline(model.proto, lambda _: True))
    found = _found(proto.graph)
    cut = _cut(proto.graph)
    if cut is not None:
        raise UserError(
            f"Result '{cut}' of {model.name} is cut to its last rows by Slice, as caches of a window are, so that its "
            f"rows cannot have places of their own: export the network with caches that keep all rows (in transformers "
            f"DynamicCache without a configuration); the mask shows the window."
        )
    if not found:
        raise UserError(
            f"{model.name} has no cache that grows, a result of which is Concat of an input and new rows, so that none "
            f"can have {rows} rows: leave the number of rows out, or give the shapes of the caches by --shape."
        )
    count = _tokens(proto.graph, shapes, found, model.name)
    if rows <= count:
        raise UserError(f"Caches of {rows} rows have no room for {count} tokens at a time: give more rows.")
    mask = _mask(proto.graph, model.name)
    lengths = sorted({*_LENGTHS, rows - count})
    bound = {length: _bound(model, proto, shapes, found, mask, length, length + count) for length in lengths}
    sampled = Sampled(bound, model.name)
    rewritten = bound[rows - count]  # a copy, in which all other sizes are numbers
    del rewritten.graph.value_info[:]
    for value in rewritten.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    positions = next((each.name for each in proto.graph.input if each.name in POSITIONS), LENGTH)
    if positions == LENGTH and not any(each.name == LENGTH for each in proto.graph.input):
        rewritten.graph.input.append(helper.make_tensor_value_info(LENGTH, onnx.TensorProto.INT64, [1]))
    Capacity(rewritten, sampled, found, positions, mask, rows, count, model.name).rewrite()
    original = Original(model, tuple(found), positions, mask, count, stacked)
    kept = {name: shape for name, shape in shapes.items() if any(each.name == name for each in rewritten.graph.input)}
    kept = {name: shape for name, shape in kept.items() if name not in {each.past for each in found}}
    return replace(model, proto=rewritten, program=None, path=None, original=original), kept


def _found(graph: onnx.GraphProto) -> list[Grown]:
    """Return the caches of a graph, in the order of its inputs."""
    inputs = {each.name: each for each in graph.input}
    makers = {name: node for node in graph.node for name in node.output}
    found = []
    for result in graph.output:
        node = makers.get(source(result.name, makers))
        if node is None or node.op_type != "Concat" or len(node.input) != 2:
            continue
        past = inputs.get(source(node.input[0], makers))
        if past is None:
            continue
        rank = len(past.type.tensor_type.shape.dim)
        axis = next(each.i for each in node.attribute if each.name == "axis")
        if rank and not _is_fixed(past, axis % rank):
            found.append(Grown(past.name, node.output[0], result.name, axis % rank))
    order = list(inputs)
    return sorted(found, key=lambda each: order.index(each.past))


def _cut(graph: onnx.GraphProto) -> str | None:
    """Return a result that is the last rows of a cache that grows; None if there is none."""
    inputs = {each.name: each for each in graph.input}
    makers = {name: node for node in graph.node for name in node.output}
    for result in graph.output:
        slicing = makers.get(source(result.name, makers))
        node = (
            makers.get(source(slicing.input[0], makers)) if slicing is not None and slicing.op_type == "Slice" else None
        )
        if node is None or node.op_type != "Concat":
            continue
        past = source(node.input[0], makers)
        while past in makers and makers[past].op_type == "Slice":  # rows of the window are cut off before, too
            past = source(makers[past].input[0], makers)
        rank = len(inputs[past].type.tensor_type.shape.dim) if past in inputs else 0
        axis = next(each.i for each in node.attribute if each.name == "axis")
        if rank and not _is_fixed(inputs[past], axis % rank):
            return result.name
    return None


def _mask(graph: onnx.GraphProto, name: str) -> str | None:
    """Return the input with a 1 for each row that was written; None if there is none."""
    value = next((each for each in graph.input if each.name in MASKS and not _is_fixed(each, -1)), None)
    if value is None:
        return None
    tensor = value.type.tensor_type
    kinds = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL)
    if len(tensor.shape.dim) != 2 or tensor.elem_type not in kinds:
        raise UserError(
            f"{name} has caches that grow, and its input '{value.name}' is no list of ones, integers or booleans for "
            f"each row, so that it cannot be left to the program: export it with such a mask, or without one."
        )
    return value.name


def _is_fixed(value: onnx.ValueInfoProto, axis: int) -> bool:
    dims = value.type.tensor_type.shape.dim
    return not dims or (dims[axis].HasField("dim_value") and dims[axis].dim_value >= 0)


def _tokens(graph: onnx.GraphProto, shapes: Mapping, found: Sequence[Grown], name: str) -> int:
    """Return how many tokens a run takes: the last dimension of the input of ids."""
    pasts = {each.past for each in found}
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        integers = value.type.tensor_type.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
        if value.name in pasts or value.name in (*MASKS, *POSITIONS) or len(dims) != 2 or not integers:
            continue
        if value.name in shapes:
            return int(shapes[value.name][-1])
        if _is_fixed(value, -1):
            return int(dims[-1].dim_value)
        raise UserError(
            f"{name} leaves open how many tokens input '{value.name}' takes: give them, for example --shape "
            f"'{value.name}:1,{{1,128}}'."
        )
    raise UserError(f"{name} has caches that grow and no input of 1 x tokens: its caches cannot get a capacity.")


def _bound(
    model: Model,
    proto: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]],
    found: Sequence[Grown],
    mask: str | None,
    length: int,
    total: int,
) -> onnx.ModelProto:
    """Return a copy of the model with numbers for all sizes of its inputs, for so many rows."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    usual = dict(model.usual)
    inputs = {each.name: each for each in copy.graph.input}
    places = [(inputs[each.past], each.axis, length) for each in found]
    places += [(inputs[mask], -1, total)] if mask is not None else []
    for value, axis, size in places:
        dim = value.type.tensor_type.shape.dim[axis]
        if dim.dim_param and not size_names.says_nothing(dim.dim_param):
            usual.setdefault(dim.dim_param, size)
        dim.dim_value = size
    hidden = {mask, *(each.past for each in found)}
    given = {name: shape for name, shape in shapes.items() if name not in hidden}
    dimensions.bind(copy, given, model.name, usual)
    return copy

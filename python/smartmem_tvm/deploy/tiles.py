# SPDX-License-Identifier: Apache-2.0
"""Run a model with an open dimension: items in tiles, whose results are put together, and positions at a capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import tvm

from ..errors import UserError, shape_text
from ..ir.mask_positions import LENGTH
from ..ir.several_sizes import extent_at, functions_of_length, open_shape, places_of
from ..planner.tiles import cover
from ..tensor_arrays import array_of
from .arguments import Parameter, TensorKind, foreign, in_order, parameter_of_file

_KNOWN = 4096  # shapes of inputs that are remembered: chosen, a megabyte
Shape = tuple[int, ...]
Run = Callable[..., list[np.ndarray]]
Pinned = Callable[..., list[np.ndarray] | None]


def length_of(groups: Sequence[Mapping], function: str) -> list[Parameter]:
    """Return the length as a parameter for a function that takes it, though the model has no such input; else none."""
    return [parameter_of_file(LENGTH, (1,), "int64")] if function in functions_of_length(groups) else []


class AtLength(NamedTuple):
    """The capacity that computes a length.

    Attributes
    ----------
    function : str
    capacity, length : int
    inputs, outputs : list
        Places of positions of each (`ir.several_sizes.places_of`), in order; those of inputs by name.
    """

    function: str
    capacity: int
    length: int
    inputs: dict[str, Sequence[Mapping]]
    outputs: list[Sequence[Mapping]]


class Tiles:
    """The tiles of a model with an open dimension.

    Items do not depend on each other (`analysis.items`), so that a tile computes any of them. Where fewer items are
    left than the last tile has, it begins earlier and computes some again; if all are fewer, the last one is repeated.

    Parameters
    ----------
    groups : sequence of mapping
        As `ir.several_sizes.tile_groups` returns them.
    functions : mapping
        Function of each tile -> its inputs.
    """

    def __init__(self, groups: Sequence[Mapping], functions: Mapping[str, Sequence[Parameter]]):
        self._first = groups[0]["tiles"][0]["function"]
        self._names = [param.name for param in functions[self._first] if param.name != LENGTH]
        self._groups = [_kind(each)(each, functions) for each in groups]
        self._known: dict[tuple, tuple[_Group, int]] = {}  # shapes of the inputs -> their group, and the items

    def run(
        self, run: Run, inputs: Sequence, named: Mapping[str, object], pinned: Pinned = lambda *_: None
    ) -> list[np.ndarray]:
        """Run the tiles that take the inputs, and return the outputs in order.

        Parameters
        ----------
        run : callable
            ``run(*inputs, function=name)``: run a tile.
        inputs, named
            As for `Runnable.run`.
        pinned : callable
            ``pinned(function, values, fill, take)``: run the function of a capacity through memory that a GPU reads, as
            `HostCall.run` does, for inputs of these types; None if that cannot be.

        Raises
        ------
        UserError
            If the inputs have other shapes, more items than the model takes, or differ in their number of items.
        """
        values = in_order(self._names, inputs, named)
        if values is None:
            return run(*inputs, function=self._first, **named)  # which refuses them
        group, count = self._found(values) or self._group_of(values)
        return group.run(run, values, count, pinned)

    def at_length(self, inputs: Mapping[str, object]) -> AtLength | None:
        """Return the function that takes buffers of these inputs at their length; None if only items are open.

        Raises
        ------
        UserError
            As `run`, or if there are several items, each of which takes a run.
        """
        values = in_order(self._names, (), inputs)
        if values is None:
            return None
        values = [value if hasattr(value, "shape") else array_in(value) for value in values]
        group, count = self._group_of(values)
        return group.at_length(self._names, values, count)

    def _group_of(self, values: Sequence) -> tuple[_Group, int]:
        """Return the group that takes inputs, and the items that they have."""
        values = [value if hasattr(value, "shape") else array_in(value) for value in values]
        shapes = [tuple(map(int, value.shape)) for value in values]
        group = next((each for each in self._groups if each.fits(shapes)), None)
        if group is None:
            given = ", ".join(f"'{name}' {shape_text(shape)}" for name, shape in zip(self._names, shapes, strict=True))
            known = "; or ".join(each.text(self._names) for each in self._groups)
            raise UserError(f"This model takes {known}, and {given} came: give these shapes, or compile it for others.")
        count = group.items(self._names, shapes)
        if len(self._known) < _KNOWN:
            self._known[tuple(shapes)] = group, count
        return group, count

    def _found(self, values: Sequence) -> tuple[_Group, int] | None:
        """Return the group and the items of arrays whose shapes came before, in a few microseconds."""
        try:
            return self._known.get(tuple([each.shape for each in values]))
        except (AttributeError, TypeError):  # no arrays
            return None


class _Group:
    """The tiles of a model whose other dimensions have one size."""

    _what = "items"

    def __init__(self, facts: Mapping, functions: Mapping[str, Sequence[Parameter]]):
        self._facts = facts
        self._inputs, self._outputs = facts["inputs"], facts["outputs"]
        self._tiles = {each["items"]: each for each in facts["tiles"]}
        one = facts["tiles"][0]
        self._dims = [
            _without_items(param, share, one["items"])
            for param, share in zip(_given(functions[one["function"]]), self._inputs, strict=True)
        ]
        costs = {items: each["cost"] for items, each in self._tiles.items()}
        self.cover = lru_cache(maxsize=None)(lambda count: cover(count, costs))

    def fits(self, shapes: Sequence[Shape]) -> bool:
        """Whether inputs have the shapes of this group, up to the number of items."""
        return all(
            len(shape) == len(dims) and all(dim in (None, size) for dim, size in zip(dims, shape))
            for shape, dims in zip(shapes, self._dims, strict=True)
        )

    def text(self, names: Sequence[str]) -> str:
        """Return the shapes of the inputs for a sentence."""
        texts = []
        for number, (name, dims) in enumerate(zip(names, self._dims, strict=True)):
            texts.append(f"'{name}' {shape_text(open_shape(self._facts, dims, number))}")
        return ", ".join(texts)

    def items(self, names: Sequence[str], shapes: Sequence[Shape]) -> int:
        """Return the number of items that all inputs have."""
        return self._counted(names, shapes, self._facts, self._what)

    def _counted(self, names: Sequence[str], shapes: Sequence[Shape], facts: Mapping, what: str) -> int:
        counts: dict[int, str] = {}
        for name, shape, share in zip(names, shapes, facts["inputs"], strict=True):
            for place in places_of(share):
                count, rest = divmod(shape[place["axis"]], place["each"])
                if rest or not facts["least"] <= count <= facts["most"]:
                    raise UserError(
                        f"Input '{name}' has shape {shape_text(shape)}, and this model takes {self.text(names)}: give "
                        f"as many {what} as it takes, or compile it for more."
                    )
                counts.setdefault(count, name)
        if len(counts) > 1:
            (one, first), (other, second), *_ = counts.items()
            raise UserError(f"Input '{first}' has {one} {what} and input '{second}' {other}: give both as many.")
        return next(iter(counts), facts["least"])

    def at_length(self, names: Sequence[str], values: Sequence, count: int) -> AtLength | None:
        """Return the capacity for inputs that fit; None for items."""
        return None

    def run(self, run: Run, values: Sequence, count: int, pinned: Pinned) -> list[np.ndarray]:
        """Run the tiles of inputs that fit."""
        if count in self._tiles:
            return run(*values, function=self._tiles[count]["function"])
        tiles = self.cover(count)
        arrays = [
            value if share is None else array_in(value) for value, share in zip(values, self._inputs, strict=True)
        ]
        parts, done = [], 0
        for items in tiles:
            first = min(done, max(0, count - items))  # the last tile ends with the last item, if there are as many
            given = [_items(*pair, first, items, count) for pair in zip(arrays, self._inputs, strict=True)]
            results = run(*given, function=self._tiles[items]["function"])
            kept = slice(done - first, min(items, count - first))
            parts.append([_kept(*pair, kept) for pair in zip(results, self._outputs, strict=True)])
            done = first + items
        return [_joined(pieces, share) for pieces, share in zip(zip(*parts), self._outputs, strict=True)]


class Capacities(_Group):
    """The capacities of a model with an open length whose other dimensions have one size.

    The smallest capacity that is enough computes the positions. Inputs are copied to its beginning, with zeros behind
    them; what it computes there is cut off.
    """

    _what = "positions"

    def at_length(self, names: Sequence[str], values: Sequence, count: int) -> AtLength:
        """Return the capacity for inputs that fit."""
        capacity = self._capacity(count)
        inputs = dict(zip(names, self._inputs, strict=True))
        return AtLength(self._tiles[capacity]["function"], capacity, count, inputs, self._outputs)

    def _capacity(self, count: int) -> int:
        return next(each for each in self._tiles if each >= count)

    def run(self, run: Run, values: Sequence, count: int, pinned: Pinned) -> list[np.ndarray]:
        """Run the capacity of inputs that fit."""
        capacity = self._capacity(count)
        name = self._tiles[capacity]["function"]

        def fill(arrays: list[np.ndarray]) -> None:
            for array, value, share in zip(arrays, values, self._inputs):  # the last one is the length
                beginning(array, share, count)[...] = value
            arrays[-1][...] = count

        def take(arrays: list[np.ndarray]) -> list[np.ndarray]:
            return [beginning(*pair, count).copy() for pair in zip(arrays, self._outputs, strict=True)]

        found = pinned(name, values, fill, take)
        if found is not None:
            return found
        length = np.array([count], "int64")
        given = list(values)
        if capacity > count:
            given = [longer(*pair, capacity, count) for pair in zip(values, self._inputs, strict=True)]
        results = run(*given, length, function=name)
        return [before_length(*pair, count) for pair in zip(results, self._outputs, strict=True)]


class ItemsOfLength(Capacities):
    """The capacities of a model with an open batch and an open length: each item is computed by itself."""

    def __init__(self, facts: Mapping, functions: Mapping[str, Sequence[Parameter]]):
        super().__init__(facts, functions)
        self._around = facts["around"]
        for number, share in enumerate(self._around["inputs"]):
            dims, along = self._dims[number], [each["axis"] for each in places_of(share)]
            self._dims[number] = tuple(None if axis in along else dim for axis, dim in enumerate(dims))

    def items(self, names: Sequence[str], shapes: Sequence[Shape]) -> int:
        """Return the number of positions that all inputs have."""
        self._counted(names, shapes, self._around, "items")
        return super().items(names, shapes)

    def at_length(self, names: Sequence[str], values: Sequence, count: int) -> AtLength:
        """Return the capacity for the inputs of one item."""
        items = self._items_of(values)
        if items > 1:
            raise UserError(
                f"Buffers are bound for one call of a function, and these inputs have {items} items, each of which "
                f"takes a call: bind one item, or use `run`."
            )
        return super().at_length(names, values, count)

    def _items_of(self, arrays: Sequence) -> int:
        return next(
            int(array.shape[share["axis"]]) // share["each"]
            for array, share in zip(arrays, self._around["inputs"], strict=True)
            if share is not None
        )

    def run(self, run: Run, values: Sequence, count: int, pinned: Pinned) -> list[np.ndarray]:
        """Run the capacity for one item after the other."""
        inputs, outputs = self._around["inputs"], self._around["outputs"]
        arrays = [value if share is None else array_in(value) for value, share in zip(values, inputs, strict=True)]
        items = self._items_of(arrays)
        parts = []
        for number in range(items):
            given = [_items(*pair, number, 1, items) for pair in zip(arrays, inputs, strict=True)]
            parts.append(super().run(run, given, count, pinned))
        return [_joined(pieces, share) for pieces, share in zip(zip(*parts), outputs, strict=True)]


def _kind(facts: Mapping) -> type[_Group]:
    return ItemsOfLength if "around" in facts else Capacities if facts.get("length") else _Group


def _given(params: Sequence[Parameter]) -> list[Parameter]:
    return [param for param in params if param.name != LENGTH]


def longer(value: object, share: Sequence[Mapping], capacity: int, count: int):
    """Return an input with zeros behind its positions."""
    if not share:
        return value
    array = array_in(value)
    shape = list(array.shape)
    for place in share:
        shape[place["axis"]] = capacity * place["each"]
    whole = np.zeros(shape, array.dtype)
    beginning(whole, share, count)[...] = array
    return whole


def beginning(array: np.ndarray, share: Sequence[Mapping], count: int) -> np.ndarray:
    """Return the positions before the length as a part of the same memory."""
    there = [slice(None)] * array.ndim
    for place in share:
        there[place["axis"]] = slice(extent_at(place).of(count))
    return array[tuple(there)]


def before_length(array: np.ndarray, share: Sequence[Mapping], count: int) -> np.ndarray:
    """Return an array without what lies behind the length."""
    return np.ascontiguousarray(beginning(array, share, count)) if share else array


def _without_items(param: Parameter, share: Mapping | Sequence[Mapping] | None, items: int) -> tuple[int | None, ...]:
    """Return the dimensions of an input, None for those with the items."""
    if not isinstance(param.kind, TensorKind) or param.kind.dims is None:
        raise UserError(f"Input '{param.name}' of a model with an open dimension is no tensor: compile one size.")
    dims: list[int | None] = list(map(int, param.kind.dims))
    for place in places_of(share):
        if place["axis"] >= len(dims) or dims[place["axis"]] != place["each"] * items:
            raise UserError(f"Input '{param.name}' has no items where its model has them: compile the model again.")
        dims[place["axis"]] = None
    return tuple(dims)


def array_in(value: object) -> np.ndarray:
    """Return an input as an array, in the same memory if that is a CPU's."""
    there = foreign(value, tvm.cpu())
    if there is not None:
        return array_of(there)
    return value.numpy() if isinstance(value, tvm.runtime.Tensor) else np.asarray(value)


def _items(array, share: Mapping | None, first: int, items: int, count: int):
    """Return the items of a tile of an input; beyond the last one, that one again."""
    if share is None:
        return array
    axis, each = share["axis"], share["each"]
    if first + items <= count:
        part = array[(slice(None),) * axis + (slice(first * each, (first + items) * each),)]
    else:
        places = np.minimum(np.arange(first, first + items), count - 1)
        part = array.take((places[:, None] * each + np.arange(each)).ravel(), axis)
    return np.ascontiguousarray(part)


def _kept(array: np.ndarray, share: Mapping | None, kept: slice) -> np.ndarray:
    if share is None:
        return array
    each = share["each"]
    return array[(slice(None),) * share["axis"] + (slice(kept.start * each, kept.stop * each),)]


def _joined(pieces: Sequence[np.ndarray], share: Mapping | None) -> np.ndarray:
    if share is None:
        return pieces[0]
    return np.ascontiguousarray(pieces[0]) if len(pieces) == 1 else np.concatenate(pieces, share["axis"])

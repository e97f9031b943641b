# SPDX-License-Identifier: Apache-2.0
"""A dimension that stays open: a module with a function for each number of items that a tile has.

The front end and the passes need numbers for all sizes. So a model is imported for 2 and for 3 items, and
`analysis.items` proves that no item depends on another one. Then tiles compute any number of items together, and the
module has a function for each tile, as a model of several sizes has. The pass `choose-tiles` leaves out those that gain
nothing on the target, and `deploy.tiles` cuts inputs into tiles. A dimension over which operators reduce is a length:
`open_length`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
import tvm

from smartmem_tvm.analysis.item_cost import cost, tiles
from smartmem_tvm.analysis.items import LOOPS, ItemWork, Mixed, item_work, require_same_graph
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.onnx_file import Model
from smartmem_tvm.frontend.open_length import Lengths
from smartmem_tvm.frontend.several_sizes import bound_to_each, expanded, refuse_too_many
from smartmem_tvm.ir.public_functions import MAIN
from smartmem_tvm.ir.several_sizes import TILE, tile_of, with_sizes
from smartmem_tvm.transform.lower.lower_scans import LowerScans
from smartmem_tvm.transform.lower.lower_sorts import LowerSorts
from smartmem_tvm.transform.sizes.share_lengths.mask_length import with_means

_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")
# What sorts and scans compute of each item, as loops that can be read.
_WRITTEN_OUT = tvm.transform.Sequential([LowerSorts(), LowerScans()])
_LEAST_PROBE = 2  # items; with 1 a shape would not show which axis has the items


@dataclass(frozen=True)
class Range:
    """The sizes that an open dimension takes, both ends included.

    Attributes
    ----------
    least, most : int
        In steps.
    step : int
        Elements: each size is a multiple of it. An item, or a position, is a step.
    """

    least: int
    most: int
    step: int = 1

    @classmethod
    def read(cls, text: str) -> Range | None:
        """Return the range that a text like ``1..64``, or with a step ``320..640:32``, names; None if it is none.

        Raises
        ------
        UserError
            If an end is no multiple of the step.
        """
        found = _RANGE.fullmatch(text.strip())
        if found is None:
            return None
        least, most, step = int(found[1]), int(found[2]), int(found[3] or 1)
        if step < 1 or least % step or most % step:
            raise UserError(f"A dimension is open as {text}: give both ends as multiples of the step, at least 1.")
        return cls(least // step, most // step, step)

    def __str__(self) -> str:
        ends = f"{self.least * self.step}..{self.most * self.step}"
        return f"{ends}:{self.step}" if self.step > 1 else ends


Dims = Sequence[int | Range | Sequence[int]]
Wanted = Mapping[str, Dims]
"""Input name -> for each dimension a size, a range, or sizes that it takes."""


def with_ranges(shapes: Mapping[str, Sequence]) -> Wanted:
    """Return shapes with a `Range` for each text like ``1..64`` in them."""
    return {
        name: tuple((Range.read(dim) or dim) if isinstance(dim, str) else dim for dim in shape)
        for name, shape in shapes.items()
    }


def has_ranges(shapes: object) -> bool:
    """Whether shapes leave a dimension open."""
    if not isinstance(shapes, Mapping):
        return False
    return any(isinstance(dim, str | Range) for shape in shapes.values() for dim in shape)


@dataclass(frozen=True, eq=False)
class Opened:
    """A model with an open dimension.

    Attributes
    ----------
    ranges : tuple of Range
    module : tvm.IRModule
        A function for each tile, or each capacity.
    models : list of Model
        The model bound to the items of each function, in their order.
    at : callable
        A number for each range, in its steps -> the model bound to them, for each list of other sizes.
    """

    ranges: tuple[Range, ...]
    module: tvm.IRModule
    models: list[Model]
    at: Callable[..., list[Model]]


def opened(model: Model, shapes: Wanted, bind: Callable, load: Callable[[Model], tvm.IRModule]) -> Opened:
    """Return a model with one or two open dimensions.

    Parameters
    ----------
    model : Model
        Its dimensions are open yet.
    bind : callable
        ``bind(model, shapes)``: give each dimension a number, in place.
    load : callable
        Bound model -> its module.

    Raises
    ------
    UserError
        If `shapes` has more than two ranges, or the model does something with them that is not known.
    """
    wanted = with_ranges(shapes)
    spans = _ranges_of(wanted)

    def sizes(graph: onnx.GraphProto, numbers: tuple[int, ...]) -> list[dict[str, tuple[int, ...]]]:
        at = dict(zip(spans, numbers, strict=True))
        one = {name: [_numbers(dim, at) for dim in shape] for name, shape in wanted.items()}
        return expanded(one, graph)

    def at(*numbers: int, source: Model = model) -> list[Model]:
        return bound_to_each(source, lambda graph: sizes(graph, numbers), bind)

    groups = len(at(*(span.most for span in spans)))  # first: an input may be too large at the bound
    at(*(span.least for span in spans))
    of_any_size = replace(model, program=None)  # a tile may have fewer items than a program of torch takes
    modules, models = [], []
    for number in range(groups):

        def one(*numbers: int, number: int = number) -> Model:
            return at(*numbers, source=of_any_size)[number]

        made = functions_of(number, spans, one, load)
        models += [each for each, _ in made]
        modules += [each for _, each in made]
    refuse_too_many(sum(_is_counted(each) for each in modules))
    return Opened(spans, with_sizes(modules), models, at)


def functions_of(
    number: int, spans: tuple[Range, ...], at: Callable, load: Callable
) -> list[tuple[Model, tvm.IRModule]]:
    """Return the model of each tile or capacity, with its module.

    Parameters
    ----------
    number : int
        The number of the group of functions, whose other dimensions have one size.
    spans : tuple of Range
        One or two open dimensions.
    at : callable
        A number for each -> the model.
    load : callable
        Model -> its module.

    Raises
    ------
    UserError
        If the model does something with the dimensions that is not known.
    """
    return _Group(number, spans[0], at, load).functions() if len(spans) == 1 else _both(number, spans, at, load)


def _both(number: int, spans: tuple[Range, ...], at: Callable, load: Callable) -> list[tuple[Model, tvm.IRModule]]:
    """Return the functions of a model of which one open dimension has items, and the other one is a length."""
    refused: list[UserError] = []
    failed: list[UserError | ValueError] = []
    for items, length, ordered in ((*spans, at), (*reversed(spans), lambda a, b: at(b, a))):

        def one(count: int, ordered=ordered, length: Range = length) -> Model:
            return ordered(count, length.most)

        whole = _Group(number, items, one, load)
        try:
            made = whole.one_item()
        except Mixed as reason:
            refused.append(whole.refusal(reason))
            continue
        except (UserError, ValueError) as reason:  # of a length: windows may be longer than one position
            failed.append(reason)
            continue
        return _Group(number, length, lambda count, ordered=ordered: ordered(1, count), load).functions(made)
    raise [*refused, *failed][0]


def _ranges_of(wanted: Wanted) -> tuple[Range, ...]:
    dims = [(name, axis, dim) for name, shape in wanted.items() for axis, dim in enumerate(shape)]
    for name, axis, dim in dims:
        if isinstance(dim, str):
            raise UserError(
                f"Dimension {axis} of input '{name}' is given as '{dim}': give a number, or a range like '1..64'."
            )
    ranges = {dim: (name, axis) for name, axis, dim in dims if isinstance(dim, Range)}
    for span, (name, axis) in ranges.items():
        if not 1 <= span.least < span.most:
            raise UserError(
                f"Dimension {axis} of '{name}' is open as {span}: give at least 1, and more than that at most."
            )
    if len(ranges) > 2:
        name, axis = list(ranges.values())[2]
        raise UserError(
            f"Dimension {axis} of '{name}' is the third that stays open, and two dimensions of a model do, a batch and "
            f"a length: give it as a list of sizes, as in --shape 'x:1..8,1..128,{{64,128}}'."
        )
    return tuple(ranges)


def _numbers(dim: int | Range | Sequence[int], at: Mapping[Range, int]) -> tuple[int, ...]:
    if isinstance(dim, Range):
        return (at[dim] * dim.step,)
    return tuple(dim) if isinstance(dim, list | tuple) else (dim,)


def of_length(model: Model, load: Callable[[Model], tvm.IRModule]) -> tuple[Model, tvm.IRModule]:
    """Return a model that is bound to a length, and its module as `open_length.Lengths` takes it."""
    from smartmem_tvm.frontend.converters.recurrent import ending_at_length  # a part of a package, late

    with ending_at_length():
        return model, with_means(load(model))


@dataclass(frozen=True, eq=False)
class _Group:
    """The tiles of a model whose other dimensions have one size."""

    number: int
    range: Range
    at: Callable[[int], Model]
    load: Callable[[Model], tvm.IRModule]

    @property
    def probes(self) -> tuple[int, int]:
        """The numbers of items at which the model is compared; with fewer than a caller has, a window may be longer."""
        least = max(_LEAST_PROBE, self.range.least)
        return least, least + 1

    def functions(self, around: Mapping | None = None) -> list[tuple[Model, tvm.IRModule]]:
        """Return the model at each number of items of a tile, or at each capacity, with its module.

        Parameters
        ----------
        around : mapping, optional
            The items, each of which has a length of its own: the result of `one_item`.
        """
        if around is not None:
            return Lengths(self.number, self.range, self._of_length, self.refusal, around).functions()
        try:
            loaded = {items: self._loaded(items) for items in self.probes}
            work = self._proved(loaded)
            self._require_same_at_bound(loaded)
        except (
            Mixed,
            UserError,
            ValueError,
        ):  # windows may be longer than two; what is always wrong is said there, too
            return Lengths(self.number, self.range, self._of_length, self.refusal).functions()
        return self._tiles(loaded, work)

    def one_item(self) -> dict:
        """Return what `ir.several_sizes.TILE` says of items that are computed one by one.

        Raises
        ------
        Mixed
            If an item depends on another one.
        """
        loaded = {items: self._loaded(items) for items in (1, *self.probes)}
        work = self._proved(loaded)
        require_same_graph(loaded[self.probes[0]][1], loaded[1][1], (self.probes[0], 1))
        self._require_same_at_bound(loaded)
        return {"least": self.range.least, "most": self.range.most, **_places(work)}

    def _tiles(self, loaded: dict, work: ItemWork) -> list[tuple[Model, tvm.IRModule]]:
        made = []
        for items in tiles(self.range.most):
            model, mod = loaded[items] if items in loaded else self._loaded(items)
            self._require_same(loaded[self.probes[0]][1], mod, items)
            facts = {
                "group": self.number,
                "items": items,
                "cost": cost(work, items),
                "work": work.per_item,
                "least": self.range.least,
                "most": self.range.most,
                **_places(work),
            }
            mod[MAIN] = mod[MAIN].with_attr(TILE, json.dumps(facts))
            made.append((model, mod))
        return made

    def _loaded(self, items: int) -> tuple[Model, tvm.IRModule]:
        model = self.at(items)
        return model, self.load(model)

    def _of_length(self, length: int) -> tuple[Model, tvm.IRModule]:
        return of_length(self.at(length), self.load)

    def _proved(self, loaded: Mapping[int, tuple[Model, tvm.IRModule]]) -> ItemWork:
        modules = [loaded[items][1] for items in self.probes]
        require_same_graph(*modules, self.probes)
        work = item_work(*(LOOPS(_WRITTEN_OUT(mod)) for mod in modules), self.probes)
        if not any(work.inputs):
            raise UserError(f"No input of the model has the dimension that {self.range} leaves open.")
        return work

    def _require_same_at_bound(self, loaded: Mapping) -> None:
        """Refuse a model that cuts more items than the probes have, as a slice of the first 50."""
        most = self.range.most
        if most not in loaded:
            require_same_graph(loaded[self.probes[0]][1], self._loaded(most)[1], (self.probes[0], most))

    def _require_same(self, one: tvm.IRModule, other: tvm.IRModule, items: int) -> None:
        try:
            require_same_graph(one, other, (self.probes[0], items))
        except Mixed as reason:
            raise self.refusal(reason) from None

    def refusal(self, reason: Mixed) -> UserError:
        """Return the error for a dimension that does not stay open."""
        model = self.at(self.range.most)
        return UserError(
            f"{model.name}: a dimension given as {self.range} stays open if a longer one begins in the same way, and "
            f"{reason}: give a list of sizes instead, as in --shape 'x:{{1,4,8}},3,224,224'."
        )


def _is_counted(mod: tvm.IRModule) -> bool:
    """Whether a function counts as a size: of the tiles of a group only the first does, as few are compiled."""
    facts = tile_of(mod[MAIN])
    return facts is None or "work" not in facts or facts["items"] == 1


def _places(work: ItemWork) -> dict:
    return {
        "inputs": [share and share.facts() for share in work.inputs],
        "outputs": [share and share.facts() for share in work.outputs],
    }

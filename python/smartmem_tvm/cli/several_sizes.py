# SPDX-License-Identifier: Apache-2.0
"""``--shape`` with lists of sizes or an open size, and the model at each of the sizes."""

from __future__ import annotations

import argparse
import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UserError, shape_text
from .console import Result, megabytes, step
from .model import parse_rows, parse_shapes, parse_values

if TYPE_CHECKING:
    import tvm
    from rich.console import Console

    from ..frontend import Model
    from ..frontend.open_dimension import Opened
    from ..frontend.spec import Spec

_LIST = re.compile(r"\{(\d+(?:,\d+)*)\}|(\d+\.\.\d+)|(\d+)")
_DRAWN = 4  # sizes of an open dimension between its ends that are verified. Chosen: each takes a reference's run
_SHAPE = re.compile(r"(?:--shape=)?(.+):\d+(?:,\d+)*")


@dataclass(frozen=True, eq=False)
class Sizes:
    """A file at the sizes of ``--shape``, imported.

    Attributes
    ----------
    models : list of Model
        The model at the size of each function, in their order; one for one size.
    module : tvm.IRModule
    open : Opened or None
        The model with its open size; None without one.
    """

    models: list[Model]
    module: tvm.IRModule
    open: Opened | None = None

    def to_verify(self, seed: int) -> list[Model]:
        """Return the model at each size that is compared: of an open size at both ends, and at drawn ones."""
        if self.open is None:
            return self.models
        drawing = random.Random(seed)
        chosen = [_numbers(span.least, span.most, drawing) for span in self.open.ranges]
        count = max(map(len, chosen))
        pairs = zip(*(each * count for each in chosen))  # both ends together, and numbers between
        return [model for numbers in sorted(set(itertools.islice(pairs, count))) for model in self.open.at(*numbers)]


def _numbers(least: int, most: int, drawing: random.Random) -> list[int]:
    """Return both ends of a range, and drawn numbers between."""
    between = range(least + 1, most)
    return [least, most, *drawing.sample(between, min(_DRAWN, len(between)))]


def has_lists(args: argparse.Namespace) -> bool:
    """Whether a ``--shape`` has a list of sizes."""
    return any("{" in text.rpartition(":")[2] for text in args.shape)


def has_range(args: argparse.Namespace) -> bool:
    """Whether a ``--shape`` leaves a size open."""
    return any(".." in text.rpartition(":")[2] for text in args.shape)


def parse_lists(texts: Sequence[str]) -> dict[str, list[tuple[int, ...] | str]]:
    """Return the sizes of each dimension by input name, from texts like ``x:{1,4,8},3,224,224``.

    A range like ``1..64`` stays a text.

    Raises
    ------
    UserError
        If a text is none of that form, or a name is repeated.
    """
    lists: dict[str, list[tuple[int, ...] | str]] = {}
    for text in texts:
        name, colon, sizes = text.rpartition(":")
        found = list(_LIST.finditer(sizes))
        if not (name and colon) or ",".join(each[0] for each in found) != sizes:
            raise UserError(
                f"--shape {text} must be a name, a colon, and for each dimension a size, a list in braces, or a range, "
                f"as in --shape 'x:{{1,4,8}},3,224,224' or --shape x:1..8,3,224,224."
            )
        if name in lists:
            raise UserError(f"--shape gives '{name}' twice; give each input one shape, with lists in braces.")
        lists[name] = [each[2] or tuple(map(int, (each[1] or each[3]).split(","))) for each in found]
    return lists


def refuse_taken_apart(argv: Sequence[str]) -> None:
    """Refuse shapes of one input in a row, which a shell makes of a list in braces that has no quotes.

    Raises
    ------
    UserError
    """
    names = [found[1] if (found := _SHAPE.fullmatch(str(each))) else None for each in argv]
    for name, run in itertools.groupby(zip(names, argv), key=lambda pair: pair[0]):
        shapes = [str(each).rpartition(":")[2].split(",") for _, each in run]
        if name is None or len(shapes) == 1:
            continue
        sizes = [list(dict.fromkeys(each)) for each in zip(*shapes)]
        lists = ",".join(f"{{{','.join(each)}}}" if len(each) > 1 else each[0] for each in sizes)
        raise UserError(
            f"'{name}' is given several shapes in a row, as the shell takes a list in braces apart: put it between "
            f"quotes, as in --shape '{name}:{lists}'."
        )


def import_sizes(args: argparse.Namespace) -> Sizes:
    """Read the file MODEL once, and return it at the sizes of ``--shape``, imported."""
    from ..frontend import from_onnx, read_open

    if has_range(args):
        with step(f"Reading and importing {args.model} with an open size"):
            found = read_open(args.model, parse_lists(args.shape), parse_values(args.value))
        return Sizes(found.models, found.module, found)
    models = read_sizes(args)
    with step(f"Importing {args.model}{f' at {len(models)} sizes' if len(models) > 1 else ''}"):
        return Sizes(models, from_onnx(models))


def read_sizes(args: argparse.Namespace) -> list[Model]:
    """Read the file MODEL once, and return it at each of the sizes of ``--shape``; one without lists."""
    from .model import read_model

    return _at_lists(args.model, args) if has_lists(args) else [read_model(args)]


def sizes_of(path: str, args: argparse.Namespace) -> list[Spec]:
    """Return the inputs of each size of a file that the lists of ``--shape`` ask for."""
    return [each.inputs for each in _at_lists(path, args)]


def _at_lists(path: str, args: argparse.Namespace) -> list[Model]:
    """Read a file once, and return it at each of the sizes that the lists of ``--shape`` ask for."""
    from ..frontend import read_sizes
    from ..frontend.several_sizes import expanded

    values, rows = parse_values(args.value), parse_rows(getattr(args, "cache", []))
    with step(f"Reading {path}"):
        lists = parse_lists(args.shape)
        return read_sizes(path, lambda graph: expanded(lists, graph), values, rows)


def at_each_size(args: argparse.Namespace, execute: Callable[[argparse.Namespace], Result]) -> Result:
    """Return the results of a command for each size that the lists of ``--shape`` ask for, as of a model of that size.

    Raises
    ------
    UserError
        If the command would write a file for each size under one name.
    """
    if getattr(args, "output", None) is not None:
        raise UserError("-o takes what is shown of one size, and --shape gives a list: give one size.")
    found = []
    for spec in sizes_of(args.model, args):
        shapes = [f"{name}:{','.join(map(str, shape))}" for name, shape in shape_of(spec).items()]
        found.append((spec, execute(argparse.Namespace(**{**vars(args), "shape": shapes}))))

    def render(console: Console) -> None:
        for spec, each in found:
            console.print(f"{args.model}, {size_text(spec)}")
            each.render(console)

    sizes = [{"shapes": shape_of(spec), **each.data} for spec, each in found]
    return Result({"model": args.model, "sizes": sizes}, render, max(each.exit_code for _, each in found))


def shape_of(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a size's inputs by name."""
    return {name: shape for name, (shape, _) in spec.items()}


def size_text(spec: Spec) -> str:
    """Return the shapes of a size's inputs, for a table or a sentence."""
    return ", ".join(f"{name} {shape_text(shape)}" for name, (shape, _) in spec.items())


def weights_text(manifest: dict) -> str:
    """Return what the weights of several sizes take as a sentence; empty for a model of one size."""
    sizes = manifest.get("sizes", ())
    if not sizes:
        return ""
    whole, most = manifest["memory_bytes"]["weights"], max(each["weight_bytes"] for each in sizes)
    more = whole - manifest["constant_bytes"] - most
    why = ", as kernels of some sizes read them in another form" if more else ""
    return f"Weights take {megabytes(whole)}, {megabytes(more)} more than those of the largest size{why}.\n"


def chosen_function(args: argparse.Namespace, manifest: Mapping) -> str:
    """Return the function of the size of a compiled folder that ``--shape`` asks for.

    Raises
    ------
    UserError
        If none of the sizes has these shapes.
    """
    from ..deploy.manifest import input_spec

    sizes = {each["function"]: input_spec(each["inputs"]) for each in manifest["sizes"]}
    chosen = chosen_size(argparse.Namespace(model=args.model, shape=args.shape, input=None), sizes)
    return next(name for name, each in sizes.items() if each is chosen)


def chosen_size(
    args: argparse.Namespace, sizes: Mapping[str, Spec], asked: bool = True, groups: Sequence[Mapping] = ()
) -> Spec:
    """Return the inputs of the size to run: by ``--shape`` or the shapes in ``--input``, otherwise the first.

    Parameters
    ----------
    sizes : mapping
        Function of each size -> its inputs.
    asked : bool
        Whether ``--shape`` chooses among the sizes; otherwise it made them.
    groups : sequence of mapping
        Of a model with an open dimension: `ir.several_sizes.tile_groups`.

    Raises
    ------
    UserError
        If ``--shape`` is that of none of the sizes.
    """
    first = next(iter(sizes.values()))
    if asked and args.shape:
        wanted = parse_shapes(args.shape)
        if groups:
            return _open_size(args.model, sizes, groups, wanted)
        fits = [each for each in sizes.values() if all(each.get(name, ((),))[0] == wanted[name] for name in wanted)]
        if not fits:
            known = "; ".join(map(size_text, sizes.values()))
            raise UserError(f"{args.model} has no size of --shape {' '.join(args.shape)}: give one of {known}.")
        return fits[0]
    if args.input is None:
        return first
    from ..frontend.inputs import read_arrays

    given = {name: array.shape for name, array in read_arrays(args.input, list(first)).items()}
    for each in sizes.values():
        if all(shape == given.get(name) for name, (shape, _) in each.items()):
            return each
    if groups and first.keys() <= given.keys():
        return _open_size(args.model, sizes, groups, {name: given[name] for name in first})
    if len(sizes) == 1 or not first.keys() <= given.keys():
        return first  # whose check says which input is missing or of another shape
    there = ", ".join(f"{name} {shape_text(given[name])}" for name in first)
    known = "; ".join(map(size_text, sizes.values()))
    raise UserError(f"{args.model} has no size for {args.input}, which holds {there}: give one of {known}.")


def _open_size(
    path: str, sizes: Mapping[str, Spec], groups: Sequence[Mapping], wanted: Mapping[str, tuple[int, ...]]
) -> Spec:
    """Return the inputs of a model with an open dimension that have the wanted shapes, which may be of some inputs.

    Raises
    ------
    UserError
        If the model takes no such shapes.
    """
    for group in groups:
        tile = group["tiles"][0]
        spec, found = sizes[tile["function"]], {}
        for items in _counts(spec, group, wanted):
            found = _scaled(spec, group, tile["items"], items)
        for items in _counts(spec, group["around"], wanted) if found and "around" in group else ():
            found = _scaled(found, group["around"], 1, items)
        if found and all(found.get(name, ((),))[0] == shape for name, shape in wanted.items()):
            return found
    known = "; or ".join(_open_text(sizes[group["tiles"][0]["function"]], group) for group in groups)
    asked = ", ".join(f"{name} {shape_text(shape)}" for name, shape in wanted.items())
    raise UserError(f"{path} does not take {asked}: give {known}.")


def _open_text(spec: Spec, group: Mapping) -> str:
    from ..ir.several_sizes import open_shape

    inputs = enumerate(spec.items())
    return ", ".join(f"{name} {shape_text(open_shape(group, shape, at))}" for at, (name, (shape, _)) in inputs)


def _counts(spec: Spec, group: Mapping, wanted: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Return the number of items that a wanted shape has, as a list of at most one."""
    from ..ir.several_sizes import places_of

    for name, share in zip(spec, group["inputs"], strict=True):
        for place in places_of(share):
            if len(wanted.get(name, ())) > place["axis"]:
                items = wanted[name][place["axis"]] // place["each"]
                return [items] if group["least"] <= items <= group["most"] else []
    return []


def _scaled(spec: Spec, group: Mapping, before: int, items: int) -> Spec:
    """Return inputs with another number of items."""
    from ..ir.several_sizes import places_of

    found = {}
    for (name, (shape, dtype)), share in zip(spec.items(), group["inputs"], strict=True):
        along = {each["axis"] for each in places_of(share)}
        sizes = (dim // before * items if axis in along else dim for axis, dim in enumerate(shape))
        found[name] = tuple(sizes), dtype
    return found

# SPDX-License-Identifier: Apache-2.0
"""``smartmem accesses``: count memory accesses and cache misses of a network from its kernels' index expressions."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import UserError, reason_of
from .console import Result, step, table
from .model import add_cache, add_compilation, add_model, import_baseline, import_model, options, read_model
from .several_sizes import at_each_size, has_lists

if TYPE_CHECKING:
    import tvm
    from rich.console import Console

    from ..analysis.network_access import KernelAccesses
    from ..tables.targets import Row

NAME = "accesses"
HELP = "model memory accesses and cache misses on a device, against TVM's pipelines"
EXAMPLE = """\
  smartmem accesses models/cswin_s.onnx --target adreno-740
  smartmem accesses models/cswin_s.onnx --target adreno-740 --kernels     of each kernel, too
  smartmem accesses llama.onnx --target adreno-740 --cache auto           a token, with all rows of the caches taken

The device need not be there. The index expressions of the scheduled kernels give the addresses that threads load and
store, which pass through a model of the device's caches. Figures that are not published are estimates, and listed."""

ROWS = {
    "loads and stores of threads, M": lambda each: each["loads"] + each["stores"],
    "of which texels, M": lambda each: each["texel_loads"] + each["texel_stores"],
    "lines that caches are asked for, M": lambda each: each["load_lines"] + each["store_lines"],
    "lines from the second level, M": lambda each: each["l1_misses"],
    "lines from memory, M": lambda each: each["l2_misses"],
}
"""The figures shown for each side: title, and the function of the counts of `Accesses`."""
_KERNELS = ("kernel", "launches", "lines, M", "from memory, M")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    add_compilation(parser)
    add_cache(parser)
    parser.add_argument("--kernels", action="store_true", help="list every kernel of every column")


def execute(args: argparse.Namespace) -> Result:
    """Schedule the graph in every compared way, and count."""
    if has_lists(args):
        return at_each_size(args, execute)
    from ..analysis.network_access import network_accesses
    from ..deploy.schedules import sides
    from ..deploy.textures import staged
    from ..target import parse_target, target_row

    target = parse_target(args.target)
    row = target_row(target)
    if row is None:
        raise UserError(f"target '{args.target}' has no caches in smartmem_tvm.tables.targets; use adreno-740, say.")
    chosen = replace(options(args), schedule=True)
    model = read_model(args)
    ours = import_model(args, model)  # first: TVM's importer may hang on a model that is refused here
    found, known, left_out = {}, {}, {}
    for name, side in sides(target, chosen).items():
        imported = import_baseline(args, model) if side.baseline else ours
        try:
            with step(f"Scheduling kernels of {name}"):
                mod: tvm.IRModule = side.schedule(imported)
        except Exception as error:
            if not side.baseline:
                raise
            left_out[side.label] = reason_of(error)  # TVM's schedules for Adreno know no kernel that writes rows
            continue
        with step(f"Counting accesses of {name}"):
            found[name] = {"label": side.label, **_side(network_accesses(staged(mod, target), row, known=known))}
    data = {"model": args.model, "target": args.target, "device": _device(row), "sides": found, "left_out": left_out}
    return Result(data, lambda console: _render(console, data, args.kernels))


def _device(row: Row) -> dict:
    caches = (
        "sub_group",
        "cores",
        "sector_bytes",
        "buffer_l1_bytes",
        "texture_l1_bytes",
        "l1_ways",
        "l2_bytes",
        "l2_ways",
    )
    return {
        "name": row.name,
        **{key: getattr(row, key) for key in caches},
        "estimates": sorted(row.estimates & {*caches}),
    }


def _side(kernels: list[KernelAccesses]) -> dict:
    from ..analysis.network_access import total

    return {
        **total(kernels).as_dict(),
        "launches": sum(each.launches for each in kernels),
        "not_modelled": sum(each.launches for each in kernels if each.accesses is None),
        "kernels": [each.as_dict() for each in kernels],
    }


def _render(console: Console, data: dict, kernels: bool) -> None:
    found = list(data["sides"].values())
    rows = [("kernels launched", *(side["launches"] for side in found), _ratio([side["launches"] for side in found]))]
    for label, value in ROWS.items():
        values = [value(side) for side in found]
        rows.append((label, *(f"{each / 1e6:.2f}" for each in values), _ratio(values)))
    titles = ("", *(side["label"] for side in found), "first / last")
    console.print(table(data["model"], titles, rows, numbers=tuple(range(1, len(titles)))))
    if kernels:
        for side in found:
            rows = [_kernel(each) for each in side["kernels"]]
            console.print(table(side["label"], _KERNELS, rows, numbers=(1, 2, 3)))
    left = sum(side["not_modelled"] for side in found)
    device = data["device"]
    console.print(
        f"Model of {device['name']}: lines of {device['sector_bytes']} bytes, caches empty before each kernel"
        + (f"; estimates: {', '.join(device['estimates'])}" if device["estimates"] else "")
        + (f"; {left} launches access what depends on data, and are not counted." if left else ".")
    )
    for label, reason in data["left_out"].items():
        console.print(f"{label} is left out: TVM cannot schedule this network there ({reason}).")


def _kernel(each: dict) -> tuple[str, int, str, str]:
    if "not_modelled" in each:
        return each["kernel"], each["launches"], "-", each["not_modelled"]
    lines = each["load_lines"] + each["store_lines"]
    return each["kernel"], each["launches"], f"{lines / 1e6:.3f}", f"{each['l2_misses'] / 1e6:.3f}"


def _ratio(values: list[float]) -> str:
    return f"{values[0] / values[-1]:.2f}x" if values[0] and values[-1] else "-"

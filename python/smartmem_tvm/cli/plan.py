# SPDX-License-Identifier: Apache-2.0
"""``smartmem plan``: show the memory of an inference, and the place and lifetime of each tensor in it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..whole_file import check_output
from .console import Result, megabytes, step, table
from .model import add_cache, add_compilation, add_memory_budget, add_model, import_model, options
from .several_sizes import at_each_size, chosen_function, has_lists

if TYPE_CHECKING:
    from rich.console import Console

    from ..options import Options

NAME = "plan"
HELP = "show the memory of an inference: which tensor lies where, from which step to which, and the peak"
EXAMPLE = """\
  smartmem plan models/swin_t.onnx                         storages and the largest tensors
  smartmem plan models/swin_t.onnx -o arena.svg            and a picture, addresses over time
  smartmem plan swin --all                                 every tensor of a folder of `smartmem compile`
  smartmem plan sizes --shape x:4,3,224,224                one size of a folder of several; without, the largest
  smartmem plan models/swin_t.onnx --target cuda --json    the same for machines
  smartmem plan models/smt_s.onnx --layout fluid           and the order of each tensor's dimensions, with costs

Nothing is run, and no code is made. A step is the launch of a kernel. The least possible size of a storage is the
largest sum of its tensors that are in use at one step. Weights are not in it: they are there all the time."""

_STORAGES = ("storage", "scope", "bytes", "least possible", "ratio", "tensors")
_TENSORS = ("storage", "offset", "bytes", "first", "last", "kind", "shape", "written by", "last used by")
_LAYOUTS = ("tensor", "shape", "order", "all kernels in other orders")
_LARGEST = 20
_OLD = {"tensors": [{}]}  # of a folder without plans of its sizes, which is refused as one without offsets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser, "an ONNX or .pt2 file, or a folder of `smartmem compile`")
    parser.add_argument("-o", "--output", metavar="FILE", help="draw a picture: .svg, .png or .pdf")
    parser.add_argument("--all", action="store_true", help=f"show every tensor, and not the {_LARGEST} largest only")
    add_compilation(parser)
    add_memory_budget(parser)
    add_cache(parser)


def execute(args: argparse.Namespace) -> Result:
    """Plan a model or read a compiled one, and draw the plan."""
    if has_lists(args):
        return at_each_size(args, execute)
    from ..tools.bench.plot import require_matplotlib
    from ..tools.page.tensors import memory

    if args.output is not None:
        require_matplotlib(Path(args.output), "-o")
        check_output(Path(args.output), source=Path(args.model))
    manifest, plan, decisions = _read(args) if Path(args.model).is_dir() else _planned(args)
    found = memory(plan, manifest)
    for each in found["tensors"]:
        each |= {"writer": found["steps"][each["first"]], "last_user": found["steps"][each["last"]]}
    layouts = [each for each in decisions if each["pass"] == "PlanLayout"]
    data = {"model": args.model, "target": manifest["target"], "output": args.output, "layouts": layouts, **found}
    data |= {"largest_of": len(manifest["sizes"])} if manifest.get("sizes") and not args.shape else {}
    if args.output is not None:
        from ..tools.page.arena_plot import draw_plan

        with step(f"Drawing {args.output}"):
            draw_plan(found, f"{Path(args.model).stem}: {_sentence(data)}", Path(args.output))
    return Result(data, lambda console: _render(console, data, args.all))


def _read(args: argparse.Namespace) -> tuple[dict, dict, list[dict]]:
    """Return the manifest of a compiled folder, its plan, and the decisions of passes.

    Of several sizes the plan is that of ``--shape``, by default of the size that takes the most memory.
    """
    from ..tools.page.read_sources import read_sources

    folder = args.model
    _, manifest, explanation = read_sources([folder], several=True).models[0]
    plan = explanation.get("memory") or {}
    if manifest.get("sizes") and args.shape:
        plan = explanation.get("memory_by_size", {}).get(chosen_function(args, manifest), _OLD)
    if not all("kind" in each for each in plan.get("tensors", ({},))):
        raise UserError(f"{folder} was compiled by an older version, without offsets; compile the model again.")
    return manifest, plan, explanation.get("decisions", [])


def _planned(args: argparse.Namespace) -> tuple[dict, dict, list[dict]]:
    """Return the same three for an ONNX file, with only the fields that are used here."""
    from ..deploy.build import lower, optimize, sliced_to_fit
    from ..deploy.weights import constant_bytes
    from ..ir.graph import read_log
    from ..target import parse_target

    target, mod = parse_target(args.target), import_model(args)

    def planned(chosen: Options) -> tuple:
        with target:
            graph = optimize(mod, options=chosen)
            lowered = lower(graph, target, chosen)
        return lowered.memory, graph, lowered.weights

    with step("Running the passes"):
        plan, graph, weights = sliced_to_fit(options(args), planned)
    held = [{"shape": list(each.tensor.shape), "dtype": str(each.tensor.dtype)} for each in weights]
    manifest = {"target": str(target), "weights": held, "constant_bytes": constant_bytes(graph)}
    return manifest, plan, read_log(graph)


def _sentence(data: dict) -> str:
    return (
        f"{megabytes(data['planned_bytes'])} in {len(data['storages'])} allocations for {len(data['tensors'])} "
        f"tensors; in use at once at most {megabytes(data['live_bytes'])}."
    )


def _render(console: Console, data: dict, everything: bool) -> None:
    storages = [
        (
            *(number, each["scope"], f"{each['bytes']:,}", f"{each['live_bytes']:,}"),
            f"{each['bytes'] / each['live_bytes']:.3f}" if each["live_bytes"] else "-",
            each["tensors"],
        )
        for number, each in enumerate(data["storages"])
    ]
    console.print(table("Storages", _STORAGES, storages, numbers=(0, 2, 3, 4, 5)))
    largest = sorted(data["tensors"], key=lambda each: -each["bytes"])[: None if everything else _LARGEST]
    rows = [
        (
            *("-" if each["storage"] is None else each["storage"], f"{each['offset']:,}", f"{each['bytes']:,}"),
            *(each["first"], each["last"], each["kind"]),
            f"{each['dtype']} {'x'.join(map(str, each['shape']))}",
            *(each["writer"], each["last_user"]),
        )
        for each in sorted(largest, key=lambda each: (each["first"], each["offset"]))
    ]
    _render_layouts(console, data["layouts"], everything)
    left = len(data["tensors"]) - len(rows)
    title = f"Tensors, without {left} smaller ones (--all shows them)" if left else "Tensors"
    console.print(table(title, _TENSORS, rows, numbers=(0, 1, 2, 3, 4)))
    if "largest_of" in data:
        console.print(f"Of {data['largest_of']} sizes this is the one that takes the most; --shape shows another one.")
    weights = f" Weights take {megabytes(data['weight_bytes'])} more." if data["weight_bytes"] is not None else ""
    console.print(_sentence(data) + weights + (f"\n{data['output']} shows it." if data["output"] else ""))


def _render_layouts(console: Console, layouts: list[dict], everything: bool) -> None:
    """Print the layout of each tensor, and the extra time of all kernels with another layout."""
    chosen = [each for each in layouts if "tensor" in each]
    shown = [each for each in chosen if everything or each["action"] != "kept"]
    rows = []
    for each in shown:
        order = " ".join(map(str, each["order"]))
        best = each["seconds"][order]
        others = [f"{_more(seconds, best)} as {name}" for name, seconds in each["seconds"].items() if name != order]
        shape = "x".join(map(str, each["shape"]))
        rows.append((each["tensor"], shape, order, ", ".join(others)))
    if rows:
        left = len(chosen) - len(shown)
        title = (
            f"Order of dimensions, without {left} tensors that stay (--all shows them)"
            if left
            else "Order of dimensions"
        )
        console.print(table(title, _LAYOUTS, rows))
    for each in layouts:
        if "planner" in each:
            console.print(
                f"Planner of layouts: {each['planner']}; {each['moved']} of {each['tensors']} tensors moved. Kernels "
                f"take {_ms(each['seconds'])} ms, {_ms(each['seconds_now'])} as tensors were before."
            )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"


def _more(seconds: float | None, best: float | None) -> str:
    return "not measured" if seconds is None or best is None else f"+{(seconds - best) * 1e6:.1f} us"

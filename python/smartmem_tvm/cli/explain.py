# SPDX-License-Identifier: Apache-2.0
"""``smartmem explain``: where each layout operator went, and what each kernel computes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import UserError
from .console import Result, step, table
from .model import add_compilation, add_model, import_model, options

if TYPE_CHECKING:
    from rich.console import Console

NAME = "explain"
HELP = "say for each layout operator where it went, and for each kernel what it computes"
EXAMPLE = """\
  smartmem explain models/swin_t.onnx
  smartmem explain models/swin_t.onnx --op transpose      only what has this in its name
  smartmem explain models/swin_t.onnx --json              everything, for machines"""

_LAYOUT = ("layout operator", "map: its indices -> where it reads")
_KERNELS = ("kernel", "operators computed", "layout operators it reads or writes through")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    parser.add_argument("--op", metavar="NAME", help="only operators and kernels whose name contains this")
    add_compilation(parser)


def execute(args: argparse.Namespace) -> Result:
    """Run the graph passes and read their decisions."""
    from ..deploy.build import optimize
    from ..deploy.target import parse_target
    from ..report import explain

    mod = import_model(args)
    with step("Running the passes"), parse_target(args.target):
        found = explain(optimize(mod, options(args)))
    if args.op is not None:
        found = _only(found, args.op)
    data = {"model": args.model, **found}
    return Result(data, lambda console: _render(console, data))


def _only(found: dict, text: str) -> dict:
    """The entries that mention `text`.

    Raises
    ------
    UserError
        If there are none.
    """
    wanted = text.lower()
    layout = [each for each in found["layout_operators"] if wanted in each["operator"].lower()]
    kernels = [each for each in found["kernels"] if wanted in " ".join((*_names(each), *each["views"])).lower()]
    if not layout and not kernels:
        raise UserError(f"No operator or kernel has '{text}' in its name; leave out --op to see all names.")
    decisions = [each for each in found["decisions"] if wanted in each.get("operator", "").lower()]
    return {"layout_operators": layout, "kernels": kernels, "decisions": decisions}


def _names(kernel: dict) -> tuple[str, ...]:
    return (kernel["kernel"], kernel["result"], *kernel["members"])


def _render(console: Console, data: dict) -> None:
    layout, kernels = data["layout_operators"], data["kernels"]
    if layout:
        rows = ((f"{each['operator']}\n  {_fate(each)}", each["map"]) for each in layout)
        console.print(table(f"{data['model']}: layout operators", _LAYOUT, rows))
    if kernels:
        rows = ((_title(each), "\n".join(each["members"]), "\n".join(each["views"]) or "-") for each in kernels)
        console.print(table("Kernels", _KERNELS, rows))
    gone = sum(each["action"] == "eliminated" for each in layout)
    console.print(f"{gone} of {len(layout)} layout operators eliminated; {len(kernels)} kernels.")


def _fate(entry: dict) -> str:
    into = ", ".join(entry["into"])
    target = f" into {into}" if into else ""
    return f"{entry['action']}{target}" + (f": {entry['reason']}" if entry["reason"] else "")


def _title(kernel: dict) -> str:
    return f"{kernel['kernel']}\n= {kernel['result']}"

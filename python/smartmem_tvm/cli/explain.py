# SPDX-License-Identifier: Apache-2.0
"""``smartmem explain``: the facts of operators, the fate of layout operators, and the operators of kernels, and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import UserError
from .console import Result, step
from .explain_schedules import explain_schedules
from .explain_tables import full_tables, summary_tables
from .explain_why import explain_why
from .model import add_cache, add_compilation, add_memory_budget, add_model, add_threads, import_model, options
from .several_sizes import at_each_size, has_lists

if TYPE_CHECKING:
    from rich.console import Console

NAME = "explain"
HELP = "say what each operator is, where each layout operator went, what each kernel computes, and who decided"
EXAMPLE = """\
  smartmem explain models/swin_t.onnx
  smartmem explain models/swin_t.onnx --op transpose      only what has this in its name, one by one
  smartmem explain models/swin_t.onnx --all               every operator and kernel, one by one
  smartmem explain models/swin_t.onnx --schedules         which rule made each kernel's schedule, its time, its tuning
  smartmem explain models/swin_t.onnx --why 3             how kernel 3 is run, at which price, and what was rejected
  smartmem explain models/swin_t.onnx --json              the same for machines

Mapping types are those of DNNFusion, the classes of operators those of SmartMem. Fusion is decided by DNNFusion's
Table 3, by what `smartmem profile` measured, or by the cost model; each decision says by which."""

# Models with more operators than this are summarised, unless --all or --op asks for each operator.
_MOST_OPERATORS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    parser.add_argument("--op", metavar="NAME", help="only operators and kernels whose name contains this")
    text = f"list all one by one (default: summarised by kind above {_MOST_OPERATORS} operators)"
    parser.add_argument("--all", action="store_true", help=text)
    text = "instead: each kernel's rule, what tuning brought and, on a machine with the target's device, its time"
    parser.add_argument("--schedules", action="store_true", help=text)
    text = "instead: one kernel's rule, its decisions, its price by terms, its time, and what the other rules say"
    parser.add_argument("--why", metavar="KERNEL", help=f"{text}; KERNEL is a name or a number")
    add_threads(parser)
    add_compilation(parser)
    add_memory_budget(parser)
    add_cache(parser)


def execute(args: argparse.Namespace) -> Result:
    """Run the graph passes, collecting the operators on the way and the decisions at the end."""
    if has_lists(args):
        return at_each_size(args, execute)
    if args.why is not None:
        return explain_why(args)
    if args.schedules:
        return explain_schedules(args)
    from ..deploy.build import optimize
    from ..graph_report import explain, operators
    from ..target import parse_target

    mod = import_model(args)
    seen: list[dict] = []

    def look(phase: str, mod) -> None:
        if phase == "legalize":
            seen.extend(operators(mod))

    with step("Running the passes"), parse_target(args.target):
        found = {"operators": seen, **explain(optimize(mod, options=options(args), observe=look))}
    if args.op is not None:
        found = _only(found, args.op)
    data = {"model": args.model, **found}
    one_by_one = args.all or args.op is not None or len(seen) <= _MOST_OPERATORS
    return Result(data, lambda console: _render(console, data, one_by_one))


def _only(found: dict, text: str) -> dict:
    """Return the entries that mention `text`; `UserError` if there are none."""
    wanted = text.lower()
    chosen = {
        section: [each for each in entries if wanted in _words(each).lower()] for section, entries in found.items()
    }
    if not any(chosen.values()):
        raise UserError(f"No operator or kernel has '{text}' in its name; leave out --op to see all names.")
    return chosen


def _words(entry: dict) -> str:
    """Return the names in an entry of any section."""
    if "kernel" in entry:
        return " ".join((entry["kernel"], entry["result"], *entry["members"], *entry["views"]))
    return entry.get("operator") or entry.get("tensor", "")


def _render(console: Console, data: dict, one_by_one: bool) -> None:
    console.print(f"{data['model']}\n")
    for table in (full_tables if one_by_one else summary_tables)(data):
        console.print(table)
    layout = data["layout_operators"]
    gone = sum(each["action"] == "eliminated" for each in layout)
    console.print(f"{gone} of {len(layout)} layout operators eliminated; {len(data['kernels'])} kernels.")
    if not one_by_one:
        console.print("Summarised by kind: --op NAME shows one by one what has NAME in its name, --all everything.")

# SPDX-License-Identifier: Apache-2.0
"""``smartmem records``: check, repair, prune, merge and export the files of ``smartmem tune``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from . import argument_types
from .console import Result, table

if TYPE_CHECKING:
    from rich.console import Console

NAME = "records"
HELP = "check, repair, merge, prune or export what `smartmem tune` has found"
EXAMPLE = """\
  smartmem records check tuning_logs/*.records.jsonl      exit code 1 if a line is of no use
  smartmem records repair FILE                            removes such lines
  smartmem records merge FILE FILE -o ALL                 what is in any of them, once
  smartmem records prune FILE --keep 8                    the 8 fastest of each kernel and run, winners, wrong ones
  smartmem records export FILE -o FOLDER                  as the JSON database of TVM's MetaSchedule

Files may be checked, repaired, merged into and pruned while another process adds to them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("action", choices=tuple(_ACTIONS), help="what to do")
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of records")
    parser.add_argument("-o", "--output", metavar="PATH", help="of merge: a file; of export: a folder")
    text = "of prune: records of each kernel and run that stay (default: 16)"
    parser.add_argument("--keep", type=argument_types.positive, default=16, metavar="N", help=text)


def execute(args: argparse.Namespace) -> Result:
    """Run the action on each file."""
    if args.action in ("merge", "export") and args.output is None:
        raise UserError(f"`smartmem records {args.action}` needs to know where to: give --output.")
    if args.action == "export" and len(args.files) > 1:
        raise UserError("`smartmem records export` writes one file's records: merge the files first.")
    return _ACTIONS[args.action](args)


def _check(args: argparse.Namespace) -> Result:
    from ..tune.record_lines import check

    found = {file: check(_existing(file)) for file in args.files}
    data = {"files": {file: {**each.counts, "problems": each.problems} for file, each in found.items()}}

    def render(console: Console) -> None:
        rows = [(file, *each.counts.values(), len(each.problems)) for file, each in found.items()]
        columns = ("file", *next(iter(found.values())).counts, "problems")
        console.print(table("Records", columns, rows, numbers=range(1, len(columns))))
        for file, each in found.items():
            for problem in each.problems:
                console.print(f"{file}: {problem}")

    return Result(data, render, int(any(each.problems for each in found.values())))


def _repair(args: argparse.Namespace) -> Result:
    from ..tune.record_lines import sift

    return _rewritten(args.files, lambda lines: sift(lines)[1])


def _prune(args: argparse.Namespace) -> Result:
    from ..tune.record_lines import prune

    return _rewritten(args.files, lambda lines: prune(lines, args.keep))


def _rewritten(files: list[str], change: Callable[[list[dict]], list[dict]]) -> Result:
    from ..tune.json_lines import rewrite
    from ..tune.record_lines import check_is_records

    for file in files:
        check_is_records(_existing(file))
    lines = {file: rewrite(Path(file), change) for file in files}
    data = {"files": {file: {"lines_before": old, "lines": new} for file, (old, new) in lines.items()}}

    def render(console: Console) -> None:
        for file, (old, new) in lines.items():
            console.print(f"{file}: {old - new} of {old} lines removed.")

    return Result(data, render)


def _merge(args: argparse.Namespace) -> Result:
    from ..tune.json_lines import read, rewrite
    from ..tune.record_lines import check_is_records, merge

    check_is_records(Path(args.output))
    files = [read(_existing(file))[0] for file in args.files]
    old, new = rewrite(Path(args.output), lambda lines: merge([lines, *files]))
    data = {"output": args.output, "lines_before": old, "lines": new}
    return Result(data, lambda console: console.print(f"{args.output}: {new} lines, {new - old} of them new."))


def _export(args: argparse.Namespace) -> Result:
    from ..tune.records import export

    count = export(_existing(args.files[0]), Path(args.output))
    data = {"output": args.output, "records": count}
    return Result(data, lambda console: console.print(f"{args.output}: {count} records, as MetaSchedule keeps them."))


def _existing(file: str) -> Path:
    if not Path(file).exists():
        raise UserError(f"Records {file} do not exist; `smartmem tune MODEL --records {file}` makes them.")
    return Path(file)


_ACTIONS = {"check": _check, "repair": _repair, "merge": _merge, "prune": _prune, "export": _export}

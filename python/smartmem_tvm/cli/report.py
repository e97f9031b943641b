# SPDX-License-Identifier: Apache-2.0
"""``smartmem report``: write one HTML page about compiled models, tuning and measurements."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..whole_file import check_output
from .console import Result, step

if TYPE_CHECKING:
    from rich.console import Console

NAME = "report"
HELP = "show compiled models, tuning and measurements in one HTML page that needs no network"
EXAMPLE = """\
  smartmem report swin -o swin.html                          a folder of `smartmem compile`
  smartmem report swin tuning_logs/*.records.jsonl -o swin.html       and what tuning tried
  smartmem report swin phone.json laptop.json bench.json -o swin.html    and measurements, side by side

What goes in: folders of `smartmem compile`, records (.jsonl) of `smartmem tune`, and the JSON of `smartmem bench -o`
(with --ablation: what each technique brings), `smartmem measure --json` and `smartmem explain --schedules --json`. The
page says which command brings what is missing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("sources", nargs="+", metavar="DIR|LOG", help="folders of compiled models, files of results")
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help="the page (default: report.html)")


def execute(args: argparse.Namespace) -> Result:
    """Read the sources and write the page."""
    from ..json_data import plain
    from ..tools.bench.results import write
    from ..tools.page.html import page, report_data
    from ..tools.page.read_sources import read_sources

    output = Path(args.output)
    check_output(output, ending=".html")
    with step("Reading"):
        found = plain(report_data(read_sources(args.sources, several=True)))
    text = page(found)
    write(output, text)
    data = {
        "output": args.output,
        "bytes": len(text.encode()),
        "models": [
            {"name": each["name"], "folder": each["folder"], "inputs": each["about"]["inputs"], **each["facts"]}
            for each in found["models"]
        ],
        "curves": len(found["curves"]),
        "ablations": len(found["ablations"]),
        "devices": len(found["devices"]),
    }
    return Result(data, lambda console: _render(console, data))


def _render(console: Console, data: dict) -> None:
    for each in data["models"]:
        console.print(
            f"{each['name']} ({'; '.join(each['inputs'])}): {each['operators']} operators, {each['kernels']} kernels, "
            f"{each['layout_eliminated']} of {each['layout_operators']} layout operators eliminated."
        )
    console.print(
        f"{data['output']}: {data['bytes'] / 1e6:.1f} MB, with {data['curves']} curves of tuning, {data['ablations']} "
        f"ablations and {data['devices']} latencies. Open it in a browser."
    )

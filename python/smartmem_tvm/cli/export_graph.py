# SPDX-License-Identifier: Apache-2.0
"""``smartmem export-graph``: write the graph of kernels as an ONNX file for viewers."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..whole_file import check_output
from .console import Result, step
from .model import add_compilation, add_model, import_model, options

if TYPE_CHECKING:
    from rich.console import Console

NAME = "export-graph"
HELP = "write the optimised graph as ONNX, one custom node per kernel, to look at in Netron"
EXAMPLE = """\
  smartmem export-graph models/swin_t.onnx -o kernels.onnx
  smartmem export-graph swin -o kernels.onnx                        a folder of `smartmem compile`, as it was compiled
  smartmem export-graph swin -o kernels.onnx --times phone.json     and the time of each kernel

Each kernel is a node of the domain smartmem.kernels. Its attributes say which operators it computes, which layout
operators it reads through, which rule scheduled it, where its results are and in which layout, and its weights by type
and shape. The file is for looking at: it holds no weights and no code, and nothing can run it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser, "an ONNX or .pt2 file, or a folder of `smartmem compile`")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the ONNX file to write")
    text = "times of kernels: the JSON of `smartmem measure` or of `smartmem explain --schedules`"
    parser.add_argument("--times", metavar="FILE", help=text)
    add_compilation(parser)


def execute(args: argparse.Namespace) -> Result:
    """Compile a model or read a compiled one, and write the graph."""
    from ..tools.page.network import network
    from ..tools.page.onnx_graph import onnx_graph, write_onnx
    from ..tools.page.read_sources import read_sources

    output = Path(args.output)
    check_output(output, ".onnx", Path(args.model))
    sources = read_sources(filter(None, (args.times, args.model if Path(args.model).is_dir() else None)))
    manifest, explanation = sources.models[0][1:] if sources.models else _compiled(args)
    graph = explanation.get("graphs", {}).get("after")
    if graph is None:
        raise UserError(f"{args.model} was compiled by an older version, without its graph; compile the model again.")
    found = network(args.model, manifest, explanation)
    times = _times(args, sources.measurements, found)
    with step(f"Writing {output}"):
        size = write_onnx(onnx_graph(graph, found, times), output)
    data = {"output": args.output, "bytes": size, "kernels": len(found["kernels"]), "timed": len(times)}
    return Result(data, lambda console: _render(console, data))


def _times(args: argparse.Namespace, measurements: list, found: dict) -> dict[str, dict]:
    """Return kernel -> its time; raise `UserError` if the given times are those of another model."""
    from ..tools.page.device_times import kernel_times

    if args.times is None:
        return {}
    fitting = kernel_times(measurements, found)
    if not fitting:
        raise UserError(f"{args.times} has no times of {found['name']}'s kernels; measure this model for this target.")
    return fitting[0]["kernels"]


def _compiled(args: argparse.Namespace) -> tuple[dict, dict]:
    """Return the description of the graph as in a compiled folder, without generating code."""
    from ..deploy.build import lower, optimize
    from ..deploy.record_graph import record_graph
    from ..graph_report import explain
    from ..target import parse_target

    target, mod, chosen = parse_target(args.target), import_model(args), options(args)
    with step("Running the passes"), target:
        graph = optimize(mod, options=chosen)
        rules = lower(graph, target, chosen).rules
    manifest = {"model": args.model, "target": str(target), "precision": args.precision}
    graphs = {"before": record_graph(mod), "after": record_graph(graph)}
    return json.loads(json.dumps([manifest, {**explain(graph), "graphs": graphs, "rules": rules}]))


def _render(console: Console, data: dict) -> None:
    timed = f", {data['timed']} kernel programs with times" if data["timed"] else ""
    console.print(
        f"{data['output']}: {data['kernels']} kernels{timed}, {data['bytes'] / 1e3:.0f} kB. Open it in Netron."
    )

# SPDX-License-Identifier: Apache-2.0
"""``smartmem stats``: compare kernels, bytes and latency with TVM's default pipeline."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import UserError, reason_of
from ..peak_memory import peak_mb
from ..tools.bench.beside import latencies
from ..tools.bench.names import ONNXRUNTIME, UNSCHEDULED
from ..tools.bench.slow_share import slow_kernels
from ..tools.bench.turns import inference, medians
from ..tune.host import set_threads
from .argument_types import positive
from .console import Result, peak_text, step, table
from .model import (
    add_compilation,
    add_model,
    add_threads,
    compile_model,
    import_baseline,
    import_model,
    options,
    parse_shapes,
    parse_values,
    read_model,
)
from .several_sizes import at_each_size, has_lists

if TYPE_CHECKING:
    import tvm
    from rich.console import Console

NAME = "stats"
HELP = "compare kernels, layout kernels and bytes moved with TVM's default pipeline"
EXAMPLE = """\
  smartmem stats models/swin_t.onnx            kernels and bytes of both
  smartmem stats models/swin_t.onnx --run      and their latencies, with our schedules and on a CPU with TVM's own,
                                               beside ONNX Runtime's"""

_COLUMNS = ("", "TVM default", "smartmem", "ratio")
_PATIENCE = 60.0  # seconds for a step of a system that is measured only for its latency
_OTHERS = {UNSCHEDULED: "latency of TVM's default pipeline, ms", ONNXRUNTIME: "latency of ONNX Runtime, ms"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    add_compilation(parser)
    parser.add_argument(
        "--run", action="store_true", help="build and run TVM's graph and ONNX Runtime too, and compare latencies"
    )
    parser.add_argument("--repeat", type=positive, default=20, metavar="N", help="runs of each (default: 20)")
    add_threads(parser)


def execute(args: argparse.Namespace) -> Result:
    """Count kernels and bytes; smartmem's launches are counted in a run, TVM's too with ``--run``.

    For a device of another machine the kernels of the graph are counted.
    """
    if has_lists(args):
        return at_each_size(args, execute)
    from ..frontend import check_inputs
    from ..frontend.inputs import id_limits, random_inputs
    from ..frontend.walk_graph import count_nodes
    from ..graph_report import graph_cost
    from ..target import device_of, is_elsewhere, is_gpu, parse_target

    here = args.run or not is_elsewhere(parse_target(args.target))
    if args.run:
        device_of(parse_target(args.target))  # raises for a missing device before minutes of work
    model = read_model(args)
    mod = import_model(args, model)  # first: TVM's importer may hang on a model that is refused here
    nodes, layout_nodes = count_nodes(model.proto)
    arrays = check_inputs(model.inputs, random_inputs(model.inputs, id_limits(model.proto)))
    threads = set_threads(args.threads)
    # TVM's first: without --run its weights are freed before ours are packed.
    theirs = _compile_default(args, import_baseline(args, model)) if args.run else None
    graph = theirs.graph if theirs else _default_graph(args, import_baseline(args, model))
    sides = {"tvm_default": graph_cost(graph).as_dict()}
    del graph
    spec = model.inputs
    del model
    before = {}

    def look(phase: str, graph: tvm.IRModule) -> None:
        if phase not in ("textures", "layout"):  # tensors have no memory or layout assigned yet
            before["layouts"] = graph

    ours = compile_model(args, mod, look)
    sides["smartmem"] = graph_cost(ours.graph).as_dict()
    transitions = graph_cost(before["layouts"]).layout_transitions
    _count_launches(sides, {"tvm_default": theirs, "smartmem": ours} if here else {}, arrays)
    data = {
        "model": args.model,
        "target": str(ours.target),
        "threads": threads,
        "onnx_nodes": nodes,
        "onnx_layout_nodes": layout_nodes,
        "compile_seconds": sum(ours.seconds.values()),
        "compile_steps": ours.seconds,
        "before_layouts": {"layout_transitions": transitions},
        **sides,
    }
    if theirs is not None:
        _measure(args, data, {"tvm_default": theirs, "smartmem": ours}, arrays)
        if not is_gpu(ours.target):
            data["beside"] = _beside(args, dict(zip(spec, arrays)), threads)
    data["peak_mb"] = peak_mb()
    return Result(data, lambda console: _render(console, data))


def _count_launches(sides: dict[str, dict], compiled: dict, arrays: list) -> None:
    """Replace the count of kernels in the graph by that of launches, for sides that run here."""
    from ..runtime.launches import count_launches

    for side in sides.values():
        side["kernels_in_graph"] = side["kernels"]
    for name, each in compiled.items():
        if each is not None:
            with step(f"Counting kernel launches of {name}"):
                sides[name]["kernels"] = sum(count_launches(each, arrays).values())


def _default_graph(args: argparse.Namespace, mod):
    from .._tvm import without_warnings
    from ..pipeline import BASELINE_PHASES, Options, run_phases
    from ..target import parse_target

    with without_warnings(), step("TVM's default passes"), parse_target(args.target), _tvm_refuses(args):
        return run_phases(mod, BASELINE_PHASES, Options())


def _compile_default(args: argparse.Namespace, mod):
    from .._tvm import without_warnings
    from ..deploy.build import compile_baseline
    from ..target import parse_target

    with without_warnings(), step("Compiling TVM's default graph"), _tvm_refuses(args):
        return compile_baseline(mod, parse_target(args.target), schedule=options(args).schedule)


@contextlib.contextmanager
def _tvm_refuses(args: argparse.Namespace) -> Iterator[None]:
    """Turn an error of TVM's pipeline into a UserError that names the comparison, not this package."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # TVM raises many types
        raise UserError(
            f"TVM's default pipeline cannot compile {args.model} ({reason_of(error)}), so there is nothing to compare "
            f"with; `smartmem explain` shows the kernels that it has here."
        ) from error


def _measure(args: argparse.Namespace, data: dict, compiled: dict, arrays: list) -> None:
    """Add median latencies, measured in turns, and the speed-up of smartmem."""
    calls = [inference(each.vm, arrays) for each in compiled.values()]
    with step(f"Running each {args.repeat} times"):
        seconds = medians(calls, args.repeat)
    for name, value in zip(compiled, seconds):
        data[name]["latency_ms"] = value * 1e3
    data["speedup"] = seconds[0] / seconds[1]
    with step("Timing kernels"):
        for name, each in compiled.items():
            data[name] |= {} if each.kernels_per_graph else slow_kernels(each, arrays)


def _beside(args: argparse.Namespace, inputs: dict, threads: int) -> dict[str, dict]:
    """Measure TVM without schedules for a CPU, and ONNX Runtime; see `bench.beside`."""
    from ..tools.bench.systems import prepare

    common = {"path": args.model, "shapes": parse_shapes(args.shape), "values": parse_values(args.value)}
    common |= {"threads": threads, "seed": 0, "options": {}, "target": args.target}
    names = _OTHERS if args.schedule else (ONNXRUNTIME,)  # without schedules TVM's side is the same already
    with step(f"Running {' and '.join(names)}"):
        return latencies(prepare, [{**common, "system": name} for name in names], inputs, args.repeat, _PATIENCE)


def _render(console: Console, data: dict) -> None:
    before, after = data["tvm_default"], data["smartmem"]
    rows = [
        _row("kernels", before["kernels"], after["kernels"]),
        _row("of which layout", before["layout_kernels"], after["layout_kernels"]),
        _row("layout transitions", before["layout_transitions"], after["layout_transitions"]),
        ("before layouts are chosen", "-", str(data["before_layouts"]["layout_transitions"]), "-"),
        _row("activations moved, MB", *(side["bytes_moved"]["activations"] / 1e6 for side in (before, after))),
        _row("weights read, MB", *(side["bytes_moved"]["weights"] / 1e6 for side in (before, after))),
    ]
    if "latency_ms" in before:
        label = "latency, ms (median)" if "beside" not in data else "latency with the same schedules, ms"
        rows.append(_row(label, before["latency_ms"], after["latency_ms"]))
    beside = data.get("beside", {})
    known = {name: each["latency_ms"] for name, each in beside.items() if "latency_ms" in each}
    rows += [_row(_OTHERS[name], latency, after["latency_ms"]) for name, latency in known.items()]
    if None not in (before.get("slow_share"), after.get("slow_share")):
        rows.append(("share of kernels 4x off", f"{before['slow_share']:.1%}", f"{after['slow_share']:.1%}", "-"))
    console.print(table(data["model"], _COLUMNS, rows, numbers=(1, 2, 3)))
    console.print(
        f"ONNX file: {data['onnx_nodes']} nodes, {data['onnx_layout_nodes']} of them layout operators. "
        f"Compiled in {data['compile_seconds']:.1f} s. Threads: {data['threads']}, {peak_text(data)}."
    )
    for each in beside.values():
        if "error" in each:
            console.print(f"No latency: {each['error']}")
    if beside:
        console.print(_what_it_brings(data))


def _what_it_brings(data: dict) -> str:
    """Return sentences on the gain from the smaller graph and from schedules."""
    before, after = data["tvm_default"], data["smartmem"]
    kernels = before["kernels"] - after["kernels"]
    megabytes = (before["bytes_moved"]["activations"] - after["bytes_moved"]["activations"]) / 1e6
    return (
        f"The smaller graph alone ({kernels} kernels and {megabytes:.0f} MB of activations less) is worth "
        f"{data['speedup']:.2f}x on this CPU, where a copy that stays in a cache costs little and schedules count; on "
        f"mobile GPUs, where each copy goes through memory, it is what the papers gain."
    )


def _row(label: str, before: float, after: float) -> tuple[str, str, str, str]:
    ratio = f"{before / after:.2f}x" if after else "-"
    form = "{:.1f}" if isinstance(before, float) else "{}"
    return label, form.format(before), form.format(after), ratio

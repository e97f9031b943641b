# SPDX-License-Identifier: Apache-2.0
"""``smartmem bench``: measure models against other systems, one model or a whole suite."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..tables.suite import SUITES
from ..tools.bench.names import BASELINES, CPU, ONNXRUNTIME, SERVING, SMARTMEM, SystemSpec, parse_systems
from ..tune.host import RECORDS_VARIABLE, STORE_VARIABLE, thread_count
from ..whole_file import check_output
from . import argument_types
from .argument_types import positive
from .console import Result, least_width, step, table, tuning_text
from .model import TARGET_HELP, add_cache, add_threads, add_values, parse_caches, parse_rows, parse_shapes, parse_values
from .open_sizes import add_sizes, at_numbers
from .several_sizes import has_lists, has_range, parse_lists, shape_of, size_text, sizes_of

if TYPE_CHECKING:
    from rich.console import Console

    from ..tools.bench.plan_measurements import Network, Plan
    from ..tools.bench.throughput import RequestEffort
    from ..tools.bench.turns import RunEffort

NAME = "bench"
HELP = "measure kernels, bytes, latency, memory and error against TVM and ONNX Runtime"
_OURS = {
    SMARTMEM: "this package, for another target",
    "no-TECHNIQUE": "this package without one of its techniques, by the name that compile has for it: no-cuda-graph",
    "no-tuned": "this package without what was found by tuning",
    "tuned=FILE": "this package with the records of a file",
}
EXAMPLE = """\
  smartmem bench models/swin_t.onnx                            against TVM's graph and ONNX Runtime
  smartmem bench swin_t.onnx vit.onnx --threads 1 --csv b.csv  several models, on one core
  smartmem bench --suite smartmem18 -o results.json            SmartMem's Table 7, as far as it fits in 8 GB
  smartmem bench swin_t.onnx --requests 200 --streams 2        inferences a second, two at a time
  smartmem bench rec.onnx --shape 'x:1,3,48,{160,320}'         a row for each of several sizes
  smartmem bench bert.onnx --shape ids:1,1..128                an open length, compiled once: a row for some lengths
  smartmem bench llama.onnx --cache auto                       a token; caches are put back before each run
  smartmem bench swin_t.onnx --ablation --plot gains.png       what each technique brings, as SmartMem's Figure 8
  smartmem bench swin_t.onnx --target cuda --against no-cuda-graph,smartmem@opencl,tvm,tvm@opencl,onnxruntime

Each system runs in a process of its own; their runs are taken in turns, so that their latencies compare.
Results go to the file of -o one model at a time. The same command goes on where it was interrupted, and measures
again what has changed since. The exit code is 2 if a model or a system failed; the others are measured all the same.

On a GPU an inference takes from the call until the device is done; inputs, weights and outputs stay on the device. All
systems are compiled at the same time, and onnxruntime runs once, on the CPU, for the right results.

Of a range in --shape ours is compiled once and takes any size; the other systems get each size by itself. Ours is then
timed from arrays to arrays, as `run` takes and gives them: it cuts them into tiles, or fills them up to a capacity.

With --requests a system gets the next request whenever one is done, --streams at a time, and shares --threads among
them: ours and tvm have a session for each, onnxruntime has threads that call one session, openvino its queue of
requests (throughput hint). Latencies are then those of requests.

systems to compare with, each for --target or, with @TARGET after its name, for another:
""" + "\n".join(f"  {name:18} {what}" for name, what in {**_OURS, **BASELINES}.items())

_DEFAULT = f"tvm,{ONNXRUNTIME}"
_ALL = "all"
_BUDGET = 5.0
_TUNE = "tune MODEL --records"  # the command that makes records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="*", help="ONNX and .pt2 files; with --suite, its models to measure"
    )
    parser.add_argument("--suite", choices=SUITES, help="measure the models of a suite")
    parser.add_argument("--models", metavar="DIR", default="models", help="where they are (default: models)")
    parser.add_argument("--large", action="store_true", help="of the suite only those that take up to 20 GB of memory")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME:SIZES", help="as for compile")
    add_sizes(parser)
    add_values(parser)
    add_cache(parser)
    group = parser.add_argument_group("measuring")
    group.add_argument("--target", default=CPU, help=TARGET_HELP)
    text = "what `smartmem profile` measured, for ours (default: $SMARTMEM_PROFILES if it is set, otherwise nothing)"
    group.add_argument("--profiles", metavar="FILE", default=os.environ.get(STORE_VARIABLE), help=text)
    records = "what `smartmem tune` found, for ours (default: $SMARTMEM_RECORDS if it is set, otherwise nothing)"
    group.add_argument("--records", metavar="FILE", default=os.environ.get(RECORDS_VARIABLE), help=records)
    text = f"systems to compare with, separated by commas, or none (default: {_DEFAULT}; see below)"
    group.add_argument("--against", default=_DEFAULT, metavar="SYSTEMS", help=text)
    text = "also compile with none of these techniques (fields of Options, separated by commas), then add one by one"
    group.add_argument("--ablation", nargs="?", const=_ALL, metavar="TECHNIQUES", help=f"{text}; default: {_ALL}")
    add_threads(group)
    text = f"seconds of timed runs for each system of a model, 3 to 50 runs, on a GPU 100 (default: {_BUDGET:.0f})"
    group.add_argument("--budget", type=_seconds, metavar="SECONDS", help=text)
    text = "untimed runs of a system before each timed one, so that it finds the device as it left it (default: 0)"
    group.add_argument("--settle", type=_count, metavar="RUNS", help=text)
    text = "measure inferences a second with so many requests to each system, in rounds"
    group.add_argument("--requests", type=positive, metavar="N", help=text)
    group.add_argument("--streams", type=positive, metavar="S", help="requests at a time (default: 1)")
    text = "the first dimension of all inputs, also where the model has a batch of 1 written into it"
    group.add_argument("--batch", type=positive, metavar="B", help=text)
    group.add_argument("--apart", action="store_true", help="measure one system after the other: takes less memory")
    group.add_argument("--seed", type=argument_types.seed, default=0, help="of the random input (default: 0)")
    group.add_argument("--timeout", type=_seconds, default=3600.0, metavar="SECONDS", help="for one step of a system")
    group = parser.add_argument_group("results")
    group.add_argument("-o", "--output", metavar="FILE", help="result file: finished models are not measured again")
    group.add_argument("--again", action="store_true", help="measure what is finished, too")
    group.add_argument("--csv", metavar="FILE", help="write one line for each model and system")
    group.add_argument("--plot", metavar="FILE", help="draw the ablation: .png, .svg or .pdf")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of runs")
    return value


def execute(args: argparse.Namespace) -> Result:
    """Measure one model after the other; write each result when it is complete."""
    plan = _plan(args)
    with contextlib.closing(plan.processes):
        return _measured(args, plan)


def _measured(args: argparse.Namespace, plan: Plan) -> Result:
    from ..tools.bench.columns import csv_text, one_line
    from ..tools.bench.plot import draw
    from ..tools.bench.results import Results, failures, write

    networks = _networks(args)
    for file in filter(None, (args.output, args.csv, args.plot)):
        check_output(Path(file))
    results = Results(Path(args.output) if args.output else None)
    rows = []
    for number, network in enumerate(networks, start=1):
        label = f"[{number}/{len(networks)}] {network.name}"
        with step(label):
            rows.append(plan.row(network, results, args.again))
        if len(networks) > 1:
            print(f"{label}: {one_line(rows[-1])}", file=sys.stderr, flush=True)
    if args.csv is not None:
        write(Path(args.csv), csv_text(rows))
    if args.plot is not None:
        with step(f"Drawing {args.plot}"):
            draw(rows, Path(args.plot))
    failed = any(failures(row) for row in rows)
    data = {"suite": args.suite, "rows": rows}
    return Result(data, lambda console: _render(console, rows), exit_code=UserError.EXIT_CODE if failed else 0)


def _networks(args: argparse.Namespace) -> list[Network]:
    """Return the networks to measure, in order; `UserError` if there is none, or a name is not in the suite."""
    from ..tools.bench.plan_measurements import networks_of

    if args.suite is not None:
        parse_shapes(args.shape)  # refuses a list: a suite's models have other inputs
        return networks_of(args.suite, args.model, Path(args.models), args.large, args.apart)
    if not args.model:
        raise UserError("smartmem bench needs something to measure; give MODEL files or --suite.")
    return [each for path in args.model for each in _sizes_of(args, path)]


def _sizes_of(args: argparse.Namespace, path: str) -> list[Network]:
    """Return a network for each size of a file that a list or a range in ``--shape`` asks for; one without them."""
    from ..tools.bench.plan_measurements import Network

    ranges = parse_lists(args.shape) if has_range(args) else None
    whole = Network(Path(path).stem, path, Path(path), apart=args.apart, ranges=ranges)
    if not (has_lists(args) or ranges) or not whole.path.is_file():
        return [whole]
    specs = sizes_of(path, args, at_numbers(args.shape, args.sizes) if ranges else ())
    texts = [size_text(each) for each in specs]
    return [
        replace(whole, name=f"{whole.name}, {text}", key=f"{path}, {text}", shapes=shape_of(spec))
        for spec, text in zip(specs, texts, strict=True)
    ]


def _plan(args: argparse.Namespace) -> Plan:
    from ..deploy.streams import share_of_threads
    from ..tools.bench.plan_measurements import Plan, devices_of, techniques

    ablation = None
    if args.ablation is not None:
        ablation = techniques(None if args.ablation == _ALL else args.ablation.split(","))
    if args.plot is not None:
        if ablation is None:
            raise UserError("--plot draws what each technique brings; give --ablation too.")
        from ..tools.bench.plot import require_matplotlib

        require_matplotlib(Path(args.plot))
    _refuse_together(args)
    threads = thread_count(args.threads)
    each_has_own = args.suite is None and (has_lists(args) or has_range(args))
    shapes, values = {} if each_has_own else parse_shapes(args.shape), parse_values(args.value)
    against = parse_systems(args.against, args.target)
    devices = devices_of([args.target, *(system.target for system in against)])
    effort = _effort(args, args.target in devices)
    if args.requests is not None:
        _refuse_not_serving(against)
        share_of_threads(args.streams or 1, max(threads // (args.streams or 1), 1))  # raises if they are too many
    if args.batch is not None and ONNXRUNTIME not in (system.kind for system in against):
        raise UserError("--batch is checked with ONNX Runtime's results for each sample; add onnxruntime to --against.")
    files = (_given(args.profiles, "profile MODEL --profiles"), _given(args.records, _TUNE))
    for system in against:
        _given(system.records, _TUNE)
    common = (args.target, against, ablation, shapes, threads, args.seed, effort, args.timeout, devices)
    return Plan(*common, *files, args.batch, values, parse_caches(args.cache), parse_rows(args.cache))


def _refuse_together(args: argparse.Namespace) -> None:
    """Raise `UserError` if one option has no effect with another."""
    if args.sizes is not None and not has_range(args):
        raise UserError("--sizes names numbers within a range; give one, as in --shape ids:1,1..128.")
    if has_range(args):
        for option, given in (("--batch", args.batch), ("--requests", args.requests), ("--cache", args.cache or None)):
            if given is not None:
                raise UserError(f"{option} does not go with a range in --shape: give one size, or a list of sizes.")
    if args.batch is not None and args.cache:
        raise UserError("--batch is checked sample by sample, and caches are of one batch: give it by --shape instead.")
    if args.requests is None and args.streams is not None:
        raise UserError("--streams says how many requests there are at a time; give --requests too.")
    if args.requests is None:
        return
    for option, given in (("--ablation", args.ablation), ("--budget", args.budget), ("--settle", args.settle)):
        if given is not None:
            raise UserError(f"{option} is for single runs, and --requests measures several at a time; leave one out.")
    if args.requests < (args.streams or 1):
        raise UserError(f"--requests {args.requests} leaves some of --streams {args.streams} idle; give more requests.")


def _refuse_not_serving(against: Sequence[SystemSpec]) -> None:
    for system in against:
        if system.kind not in SERVING:
            known = ", ".join(sorted(SERVING))
            raise UserError(f"--requests does not measure {system.name}, only {known}; leave it out of --against.")


def _effort(args: argparse.Namespace, on_device: bool) -> RunEffort | RequestEffort:
    from ..tools.bench.throughput import RequestEffort
    from ..tools.bench.turns import RunEffort

    if args.requests is not None:
        return RequestEffort(args.requests, args.streams or 1, args.batch or 1)
    # Systems on a GPU leave no CPU threads spinning, and many runs take little time.
    limits = {"most": 100, "pause": 0.0} if on_device else {}
    return RunEffort(args.budget if args.budget is not None else _BUDGET, settle=args.settle or 0, **limits)


def _given(file: str | None, remedy: str) -> Path | None:
    """Return a file that the user names; a machine's default file must not influence results.

    Raise `UserError` if the file does not exist.
    """
    if file and not Path(file).is_file():
        raise UserError(f"File {file} does not exist; `smartmem {remedy} {file}` makes it.")
    return Path(file) if file else None


def _print_table(console: Console, title: str, titles: Sequence[str], models: Sequence[Sequence[tuple]]) -> None:
    """Print one table, or one for each model under its name if one table would be too wide."""
    numbers = range(2, len(titles))
    lines = [line for each in models for line in each]
    together = table(title, titles, lines, numbers=numbers, whole=range(len(titles)))
    if least_width(console, together) <= console.width:
        console.print(together)
        return
    for each in models:
        rows = [line[1:] for line in each]
        own = table(f"{title}: {each[0][0]}", titles[1:], rows, [n - 1 for n in numbers], range(len(titles) - 1))
        console.print(own)


def _render(console: Console, rows: list[dict]) -> None:
    from ..tools.bench.columns import ABLATION_TITLES, ablation_cells, cells, columns_of, conditions, means, titles
    from ..tools.bench.results import failures

    columns = columns_of(rows)
    _print_table(console, "smartmem bench", titles(columns), [cells(row, columns) for row in rows])
    steps = [ablation_cells(row) for row in rows if "ablation" in row]
    if steps:
        _print_table(console, "ablation", ABLATION_TITLES, steps)
    for sentence in [*means(rows), *(f"failed: {each}" for row in rows for each in failures(row))]:
        console.print(sentence)
    for sentence in conditions(rows):
        console.print(sentence)
    for row in rows:
        for name, facts in row.get("systems", {}).items():
            if "tuning" in facts:
                console.print(f"{row['name']}, {name}: {tuning_text(facts['tuning'])}")

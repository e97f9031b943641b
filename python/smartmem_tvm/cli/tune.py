# SPDX-License-Identifier: Apache-2.0
"""``smartmem tune``: search better schedules for the kernels of a model, and keep what was found."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from . import timing
from .console import Result, step, table
from .model import TARGET_HELP, add_model, import_model
from .session import handling

if TYPE_CHECKING:
    from rich.console import Console
    from tvm.target import Target

    from ..tune.campaign import Campaign, Effort
    from ..tune.records import Records

NAME = "tune"
HELP = "search better schedules for the kernels of a model, and keep what was found"
EXAMPLE = """\
  smartmem tune models/swin_t.onnx                        half an hour; Ctrl-C at any time, the next call goes on
  smartmem tune models/swin_t.onnx --effort rapid         five minutes
  smartmem tune models/swin_t.onnx --effort exhaustive    over night
  smartmem compile models/swin_t.onnx -o out              finds the records and uses them

Time goes to the kernel that promises the most: its share of the model's time, times what its last candidates have
gained. The fastest candidates of each kernel are compared with the untuned kernel, in their outputs and in turns in
their times, before one of them counts. Records are of a target, a number of threads, a version of TVM and of this
package's schedules; $SMARTMEM_RECORDS names another file for all commands."""

EFFORTS = ("rapid", "normal", "exhaustive")  # a test compares these: `campaign` and `metaschedule` import TVM
STRATEGIES = ("genetic", "evolutionary", "replay")
_INTERRUPTED = 130
_COLUMNS = ("kernel", "launches", "share", "trials", "untuned us", "tuned us", "gain", "end")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    parser.add_argument("--target", default="cpu", help=TARGET_HELP)
    parser.add_argument("-o", "--output", metavar="FILE", help="file to add to (default: in tuning_logs/ here)")
    text = "how long to go on: 32, 192 or 1024 candidates of a kernel, for 5 minutes, 30, or as long as it takes"
    parser.add_argument("--effort", choices=EFFORTS, default="normal", help=f"{text} (default: normal)")
    parser.add_argument("--trials", type=timing.positive, metavar="N", help="candidates of a kernel at most")
    parser.add_argument("--minutes", type=_minutes, metavar="M", help="begin nothing new after this time")
    text = "genetic: the decisions of our schedules; evolutionary, replay: TVM's searches, in TVM's own schedules"
    parser.add_argument("--strategy", choices=STRATEGIES, default="genetic", help=f"{text} (default: genetic)")
    parser.add_argument("--seed", type=_seed, default=0, help="of the search (default: 0)")
    text = "draw the best time of each kernel over the trials (default: beside the records, if matplotlib is there)"
    parser.add_argument("--plot", metavar="FILE", help=text)
    timing.add_threads(parser)


def _minutes(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of minutes")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def execute(args: argparse.Namespace) -> Result:
    """Tune until it is enough, and say what came of it."""
    from ..deploy.profile import measured_target
    from ..schedule.gpu_launch import has_textures

    start = time.monotonic()
    target = measured_target(args.target)
    if has_textures(target):
        raise UserError(
            f"Target '{args.target}' keeps tensors in textures, which kernels are not tuned for; use opencl."
        )
    path, plot = _files(args, target)
    threads = timing.set_threads(args.threads)
    campaign = _campaign(args, target, path, threads)
    campaign.deadline = start + 60 * campaign.effort.minutes
    with _interruptible(campaign):
        _run(campaign)
    if plot is not None:
        from ..bench.tuning_plot import draw

        draw(campaign.kernels, plot)
    data = _data(args, campaign, time.monotonic() - start)
    data |= {
        "target": str(target),
        "threads": campaign.records.where["threads"],
        "plot": str(plot) if plot is not None else None,
    }
    return Result(data, lambda console: _render(console, data), _INTERRUPTED if campaign.stopping else 0)


def _files(args: argparse.Namespace, target: Target) -> tuple[Path, Path | None]:
    """The records and the picture.

    Raises
    ------
    UserError
        If no file of records is named and $SMARTMEM_RECORDS is set to nothing, or the picture cannot be drawn.
    """
    from ..bench.plot import require_matplotlib
    from ..deploy.tuned import default_records

    path = Path(args.output) if args.output is not None else default_records(target)
    if path is None:
        raise UserError("SMARTMEM_RECORDS is empty, which means no records; name a file with --output FILE.")
    if path.is_dir():
        raise UserError(f"Records {path} are a folder; name a file with --output FILE.")
    if args.plot is not None:
        require_matplotlib(Path(args.plot))
        return path, Path(args.plot)
    there = importlib.util.find_spec("matplotlib") is not None
    return path, path.with_suffix(".svg") if there else None


def _campaign(args: argparse.Namespace, target: Target, path: Path, threads: int) -> Campaign:
    from ..deploy.build import optimize
    from ..deploy.judge import judge
    from ..deploy.tuned import measured
    from ..tune.build import local_builder
    from ..tune.campaign import Campaign
    from ..tune.metaschedule import cost_model
    from ..tune.runner import local_runner
    from ..tune.session import Tools, learn
    from ..tune.tasks import tasks_of

    model = cost_model(args.strategy)
    records = _records(args, target, path, threads)
    mod = import_model(args)
    with step("Running the passes"), target:
        tasks = tasks_of(optimize(mod), target)
    del mod
    with step("Measuring the kernels as they are"):
        tasks, seconds = measured(tasks, target)
    with step("Learning from earlier records"):
        learn(model, records, target, args.strategy)
    tools = Tools(local_builder(timing.usable_cores()), local_runner(), records, model)
    return Campaign(tasks, seconds, target, args.strategy, tools, judge, _effort(args), args.seed)


def _records(args: argparse.Namespace, target: Target, path: Path, threads: int) -> Records:
    from ..deploy.target import device_of
    from ..deploy.tuned import here
    from ..runtime.device import describe
    from ..schedule.gpu_launch import is_gpu
    from ..tune.host import cpu_name
    from ..tune.records import Records

    facts = describe(device_of(target)) if is_gpu(target) else {"name": cpu_name(), "driver": ""}
    run = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["smartmem", *sys.argv[1:]]),
        "device": facts["name"],
        "driver": facts["driver"],
        "strategy": args.strategy,
        "model": Path(args.model).name,
    }
    return Records(path, here(target, threads), run)


def _effort(args: argparse.Namespace) -> Effort:
    from ..tune.campaign import EFFORTS

    asked = {"trials": args.trials, "minutes": args.minutes}
    return replace(EFFORTS[args.effort], **{name: value for name, value in asked.items() if value is not None})


@contextlib.contextmanager
def _interruptible(campaign: Campaign) -> Iterator[None]:
    """The first Ctrl-C ends the search after this batch, and what it found is judged; the second ends it at once."""

    def stop(number: int, frame: object) -> None:
        if campaign.stopping:
            raise KeyboardInterrupt
        campaign.stopping = True
        print("smartmem: ending after this batch; press Ctrl-C again to end at once", file=sys.stderr)

    with handling(stop, signal.SIGINT, signal.SIGTERM):
        yield


def _run(campaign: Campaign) -> None:
    """Tune, with a live table if stderr is a terminal."""
    if not sys.stderr.isatty():
        campaign.run()
        return
    from rich.console import Console
    from rich.live import Live

    from .tune_table import live_table

    # stdout leads to stderr already while a command works, and must not be caught a second time.
    options = {"console": Console(stderr=True), "transient": True, "redirect_stdout": False, "refresh_per_second": 2}
    with Live(get_renderable=lambda: live_table(campaign), **options) as live:
        campaign.run(lambda _: live.refresh())


def _data(args: argparse.Namespace, campaign: Campaign, seconds: float) -> dict:
    return {
        "model": args.model,
        "strategy": args.strategy,
        "records": str(campaign.records.path),
        "seconds": seconds,
        "stopped": campaign.stopping,
        "gain": 1 / sum(kernel.share / kernel.gain for kernel in campaign.kernels),
        "kernels": [
            {
                "names": list(kernel.task.names),
                "launches": kernel.task.launches,
                "share": kernel.share,
                "trials": len(kernel.times),
                "tried_now": kernel.tried,
                "failed": kernel.times.count(None),
                "machine_failed": kernel.machine_failed,
                "wrong": kernel.wrong,
                "untuned_us": kernel.untuned * 1e6,
                "best_us": kernel.best * 1e6 if kernel.best is not None else None,
                "gain": kernel.gain,
                "state": kernel.state,
            }
            for kernel in campaign.kernels
        ],
    }


def _render(console: Console, data: dict) -> None:
    rows = [
        (
            kernel["names"][0] + (f" +{len(kernel['names']) - 1}" if len(kernel["names"]) > 1 else ""),
            kernel["launches"],
            f"{100 * kernel['share']:.1f}%",
            kernel["trials"],
            f"{kernel['untuned_us']:.1f}",
            f"{kernel['untuned_us'] / kernel['gain']:.1f}",
            f"{kernel['gain']:.2f}x",
            kernel["state"],
        )
        for kernel in data["kernels"]
    ]
    console.print(table(data["model"], _COLUMNS, rows, numbers=(1, 2, 3, 4, 5, 6)))
    names = ("tried_now", "failed", "machine_failed", "wrong")
    threads = f", on {data['threads']} threads" if data["threads"] else ""
    total = {name: sum(kernel[name] for kernel in data["kernels"]) for name in names}
    console.print(
        f"Kernels in all: {data['gain']:.2f} times as fast as untuned, by strategy {data['strategy']}"
        f"{threads}; {total['tried_now']} candidates tried in {data['seconds'] / 60:.1f} minutes.\n"
        f"Candidates that failed: {total['failed']}; that the machine failed at: {total['machine_failed']}; with wrong "
        f"outputs: {total['wrong']}.\n"
        f"Records: {data['records']}" + (f", picture: {data['plot']}" if data["plot"] else "")
    )
    if data["stopped"]:
        console.print("The search was interrupted; run the command again to go on.")

# SPDX-License-Identifier: Apache-2.0
"""``smartmem tune``: search better schedules for the kernels of a model, and record them."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..tune.progress import result_data
from ..whole_file import check_output
from . import argument_types
from .console import Result
from .executors import add_tracker, check_tracker
from .model import TARGET_HELP, TECHNIQUES, add_cache, add_profiles, add_shapes, add_techniques, add_threads
from .process_setup import handling
from .tune_judge import JUDGES
from .tune_table import show_progress, show_result

if TYPE_CHECKING:
    from tvm.target import Target

    from ..tune.campaign import Campaign

NAME = "tune"
HELP = "search better schedules for the kernels of a model, and keep what was found"
EXAMPLE = """\
  smartmem tune models/swin_t.onnx                        half an hour; Ctrl-C at any time, the next call goes on
  smartmem tune models/swin_t.onnx --effort rapid         five minutes
  smartmem tune models --effort exhaustive                over night: all models of a folder, kernels they share once
  smartmem tune models/swin_t.onnx --cores 2-3            measures on these two cores, builds on the others
  smartmem tune models/swin_t.onnx --target adreno-740 --tracker 127.0.0.1:9190 --key pixel    measures on phones
  smartmem tune models/swin_t.onnx --target adreno-740 --judge mesa    without the phone, by Mesa's compiler and a model
  smartmem compile models/swin_t.onnx -o out              finds the records and uses them

Time goes to the kernel that promises the most: its share of the models' time, times what its last candidates have
gained. Several models weigh the same. The fastest candidates of each kernel are compared with the untuned kernel, in
their outputs and in turns in their times, before one of them counts. Each candidate is on record as soon as it is
measured, in processes that may crash and hang: stop the command when you like, and run it again to go on. Records are
of a target, a number of threads, a version of TVM and of this package's schedules; $SMARTMEM_RECORDS names another
file for all commands."""

EFFORTS = ("rapid", "normal", "exhaustive")  # a test compares these: `campaign` and `metaschedule` import TVM
STRATEGIES = ("genetic", "evolutionary", "replay")
_OF_ALL = ("schedule", "arena", "cuda_graph")  # tuned kernels are scheduled, and launched one by one
_INTERRUPTED = 130
_logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="ONNX and .pt2 files, or folders of them")
    add_shapes(parser)
    parser.add_argument("--target", default="cpu", help=TARGET_HELP)
    text = "file to add to, as all commands take it (default: in tuning_logs/ here)"
    parser.add_argument("--records", "-o", "--output", dest="output", metavar="FILE", help=text)
    text = "how long to go on: 32, 192 or 1024 candidates of a kernel, for 5 minutes, 30, or as long as it takes"
    parser.add_argument("--effort", choices=EFFORTS, default="normal", help=f"{text} (default: normal)")
    parser.add_argument(
        "--trials",
        type=argument_types.positive,
        metavar="N",
        help="candidates of a kernel at most, those of earlier runs included",
    )
    parser.add_argument("--minutes", type=_minutes, metavar="M", help="end about then, verdicts included")
    text = "genetic: the decisions of our schedules; evolutionary, replay: TVM's searches, in TVM's own schedules"
    parser.add_argument("--strategy", choices=STRATEGIES, default="genetic", help=f"{text} (default: genetic)")
    parser.add_argument("--seed", type=argument_types.seed, default=0, help="of the search (default: 0)")
    text = "draw the best time of each kernel over the trials (default: beside the records, if matplotlib is there)"
    parser.add_argument("--plot", metavar="FILE", help=text)
    text = "CPU cores to measure on, as in 0,2-3; candidates are built on the others (default: all, for both)"
    parser.add_argument("--cores", type=core_list, metavar="LIST", help=text)
    add_threads(parser)
    add_tracker(parser)
    text = "price candidates for an Adreno without the phone: mesa compiles them, a model of accesses does the rest"
    parser.add_argument("--judge", choices=JUDGES, help=text)
    group = parser.add_argument_group("which kernels there are, as for compile")
    add_profiles(group)
    add_cache(group)
    add_techniques(group, [name for name in TECHNIQUES if name not in _OF_ALL])


def _minutes(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of minutes")
    return value


def core_list(text: str) -> tuple[int, ...]:
    """Return the numbers in a text like ``0,2-3``."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() and int(first) <= int(last) if dash else True)):
            raise argparse.ArgumentTypeError(f"{text} is no list of cores; write it like 0,2-3")
        found |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def execute(args: argparse.Namespace) -> Result:
    """Tune until the effort is spent, and report the result."""
    from ..deploy.fill_profiles import measured_target
    from ..target import parse_target
    from ..tune.host import cores_to_measure
    from ..tune.scratch import scratch
    from .tune_judge import judged_campaign, judged_target
    from .tune_plan import campaign_of, models_of

    start = time.monotonic()
    check_tracker(args)
    if args.judge is not None:
        target = judged_target(args)
    else:
        target = measured_target(args.target) if args.tracker is None else parse_target(args.target)
    models, cores = models_of(args.models), cores_to_measure(args.cores)
    path, plot = _files(args, target)
    judged = args.judge is not None
    planned = judged_campaign(args, models, target, path) if judged else campaign_of(args, models, target, path, cores)
    with scratch(), planned as campaign:
        campaign.deadline = start + 60 * campaign.effort.minutes
        with _interruptible(campaign), show_progress(campaign) as show:
            campaign.run(show)
    plot = _drawn(campaign, plot)
    data = {
        "target": str(target),
        "strategy": args.strategy,
        "judge": campaign.records.judge,
        "plot": str(plot) if plot is not None else None,
        "seconds": time.monotonic() - start,
        **result_data(campaign, models),
    }
    return Result(data, lambda console: show_result(console, data), _INTERRUPTED if campaign.stopping else 0)


def _drawn(campaign: Campaign, plot: Path | None) -> Path | None:
    """Draw the plot; return None if that fails, so that the summary of a long tuning is not lost."""
    from ..tools.bench.tuning_plot import draw

    if plot is not None:
        try:
            draw(campaign.kernels, plot)
        except UserError as error:
            _logger.warning("%s", error)
            return None
    return plot


def _files(args: argparse.Namespace, target: Target) -> tuple[Path, Path | None]:
    """Return the files of records and of the plot.

    Raises
    ------
    UserError
        If no file of records is named and $SMARTMEM_RECORDS is empty, or one of the files cannot be written.
    """
    from ..deploy.tuned import default_records
    from ..tools.bench.plot import require_matplotlib
    from ..tune.json_lines import append

    path = default_records(target) if args.output is None else Path(args.output) if args.output else None
    if path is None:
        what = "SMARTMEM_RECORDS" if args.output is None else "--records"
        raise UserError(f"{what} is empty, which means no records; name a file with --records FILE.")
    if path.is_dir():
        raise UserError(f"Records {path} are a folder; name a file with --records FILE.")
    there = importlib.util.find_spec("matplotlib") is not None
    plot = Path(args.plot) if args.plot is not None else path.with_suffix(".svg") if there else None
    if args.plot is not None:
        require_matplotlib(plot)
        check_output(plot)
    append(path, [])  # an error now instead of at the first measured candidate
    return path, plot


@contextlib.contextmanager
def _interruptible(campaign: Campaign) -> Iterator[None]:
    """End the search after the current batch at the first Ctrl-C and judge its finds; end at once at the second."""

    def stop(number: int, frame: object) -> None:
        if campaign.stopping:
            raise KeyboardInterrupt
        campaign.stopping = True
        # Not `print`: the signal may have interrupted one.
        os.write(2, b"smartmem: ending after this batch; press Ctrl-C again to end at once\n")

    with handling(stop, signal.SIGINT, signal.SIGTERM):
        yield

# SPDX-License-Identifier: Apache-2.0
"""``smartmem profile``: measure what decides fusion and textures where no table does, and keep the answers."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..tune.host import cpu_name, default_store
from .console import Result, step
from .model import add_compilation, add_model, add_threads, import_model, options
from .profile_site import Site, site_of, warn_if_busy
from .tune_site import add_tracker, check_tracker

if TYPE_CHECKING:
    import tvm
    from rich.console import Console

    from ..deploy.profile import Filled
    from ..remote.profiling import Library
    from ..tune.profile_store import ProfileStore

NAME = "profile"
HELP = "measure which kernels are faster fused, or with textures, and keep the answers"
EXAMPLE = """\
  smartmem profile models/swin_t.onnx                     fill tuning_logs/<this cpu>.jsonl
  smartmem profile models/swin_t.onnx --budget 60         for a minute; the next call goes on
  smartmem compile models/swin_t.onnx -o out              finds that file and uses it
  smartmem explain models/swin_t.onnx                     which decisions it made
  smartmem profile models/swin_t.onnx --target opencl-texture    which tensors a GPU should have in textures
  smartmem profile models/swin_t.onnx --target adreno-740 --tracker 127.0.0.1:9190 --key pixel    on phones

Latencies depend on the CPU and the threads, or on the GPU, on TVM and this package's schedules: a store may hold those
of several, and only the fitting ones are used. $SMARTMEM_PROFILES names another store for all commands. For a target
with textures each kernel is measured as often as its tensors may be placed differently."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    parser.add_argument("--store", metavar="FILE", help="file to add to (default: tuning_logs/<device>.jsonl here)")
    parser.add_argument(
        "--budget", type=_seconds, default=float("inf"), metavar="SECONDS", help="measure for this long (default: all)"
    )
    add_threads(parser)
    add_tracker(parser)
    add_compilation(parser, profiles=False)


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def execute(args: argparse.Namespace) -> Result:
    """Run the passes with the store, measure what they ask, until they ask nothing new."""
    check_tracker(args)
    with site_of(args) as site:
        return _execute(args, site)


def _execute(args: argparse.Namespace, site: Site) -> Result:
    from ..deploy.profile import open_store
    from ..report import graph_cost

    path = _path(args.store, site)
    mod = import_model(args)
    store = open_store(path, site.target, site.threads, site.device, site.cpu)
    known = store.kernels
    warn_if_busy(site)
    start = time.monotonic()
    modelled, filled = _fill(args, mod, store, site)
    textures = _place(args, filled.module, store, site, start + args.budget)
    data = {
        **_data(args, filled),
        "seconds": time.monotonic() - start,
        "kernels": {"cost_model": graph_cost(modelled).kernels, "profile": graph_cost(filled.module).kernels},
        "textures": textures,
        "kernels_measured": store.kernels - known,
        "kernels_in_store": store.kernels,
        "damaged_lines": store.damaged,
        "store": str(path),
        "target": str(site.target),
        "cpu": cpu_name() if site.lent is None else site.cpu,
        "device": site.device,
        "threads": site.threads,
        "servers": dict(site.lent.measured) if site.lent is not None else {},
    }
    return Result(data, lambda console: _render(console, data))


def _fill(args: argparse.Namespace, mod, store: ProfileStore, site: Site) -> tuple[tvm.IRModule, Filled]:
    """The module that the cost model alone makes, and what filling the store came to; no tensor is in a texture yet."""
    from ..deploy.measure import compiled
    from ..deploy.profile import fill, measure_on
    from ..pipeline import graph_phases, run_phases

    target, lent, chosen = site.target, site.lent, options(args)
    asking = replace(chosen, dump_dir=None, profiles=store)
    # The phases before the one that asks run once.
    phases = graph_phases(target)
    names = [phase.name for phase in phases]
    first, last = names.index("fuse"), names.index("textures") if "textures" in names else len(names)
    with target:
        with step("Running the passes"):
            legal = run_phases(mod, phases[:first], chosen)
            modelled = run_phases(legal, phases[first:last], replace(asking, profiles=None))
        with _bar() as progress:
            ask = partial(fill, store, partial(run_phases, legal, phases[first:last], asking))
            if lent is None:
                return modelled, ask(measure_on(target), args.budget, progress)

            def prepare(functions) -> Library:
                return lent.prepare(compiled(functions, target))

            return modelled, ask(lent.seconds, args.budget, progress, prepare, lent.lanes)


def _place(args: argparse.Namespace, mod, store: ProfileStore, site: Site, end: float) -> dict | None:
    """Place tensors in textures, measuring each kernel that this asks about; None where there are no textures."""
    from ..deploy.texture_times import TextureTimes
    from ..ir.graph import read_log
    from ..pipeline import graph_phases, run_phases
    from ..target import has_textures

    target, lent = site.target, site.lent
    if not (has_textures(target) and args.textures):
        return None

    placing = tuple(phase for phase in graph_phases(target) if phase.name == "textures")

    def placed(ask) -> tvm.IRModule:
        return run_phases(mod, placing, replace(options(args), dump_dir=None, measure=ask))

    with _bar() as progress, target:
        times = TextureTimes(store, target, end - time.monotonic(), lambda done: progress(done, None), lent)
        if lent is not None and lent.lanes > 1:
            times.ahead(placed)
        log = read_log(placed(times))
    memories = [entry["memory"] for entry in log if entry["pass"] == "PlaceTextures"]
    chosen = {memory: memories.count(memory) for memory in ("texture", "buffer")}
    return {**chosen, "measured_now": times.measured, "failed": times.failed, "unanswered": times.open}


def _path(text: str | None, site: Site) -> Path:
    """The file to fill, by default the one where compilations for the target look.

    Raises
    ------
    UserError
        If none is named and $SMARTMEM_PROFILES is set to nothing.
    """
    path = Path(text) if text is not None else default_store(site.device or site.cpu)
    if path is None:
        raise UserError("SMARTMEM_PROFILES is empty, which means no profile store; name one with --store FILE.")
    return path


def _data(args: argparse.Namespace, filled: Filled) -> dict:
    return {
        "model": args.model,
        "questions": filled.fused + filled.kept + filled.open + filled.failed,
        "answered_fused": filled.fused,
        "answered_kept": filled.kept,
        "unanswered": filled.open,
        "measured_now": filled.measured,
        "failed": filled.failed,
        "sweeps": filled.sweeps,
    }


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr, if that is a terminal, and the function that moves it."""
    if not sys.stderr.isatty():
        yield lambda done, asked: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # stdout leads to stderr already while a command works, and must not be caught a second time.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task("Measuring", total=None)
        yield lambda done, asked: progress.update(task, completed=done, total=asked)


def _render(console: Console, data: dict) -> None:
    kernels = data["kernels"]
    where = data["device"] or f"Threads: {data['threads']}, {data['cpu']}"
    console.print(
        f"{data['model']}: questions of the passes: {data['questions']}, measured now: {data['measured_now']}, "
        f"in {data['seconds']:.1f} s. {where}.\n"
        f"Faster as one kernel: {data['answered_fused']}. Faster apart: {data['answered_kept']}. "
        f"Left to the cost model: {data['unanswered'] + data['failed']}.\n"
        f"Kernels of the model: {kernels['cost_model']} by the cost model alone, {kernels['profile']} by the profile.\n"
        f"Kernels measured there so far: {data['kernels_in_store']}, in {data['store']}."
    )
    for server, count in data["servers"].items():
        console.print(f"Measured by {server}: {count}.")
    textures = data["textures"] or {"unanswered": 0}
    if data["textures"]:
        console.print(
            f"Tensors in textures: {textures['texture']}, in buffers: {textures['buffer']}. Kernels measured for that "
            f"now, with textures and without: {textures['measured_now']}; could not be measured: {textures['failed']}."
        )
    if data["unanswered"] or textures["unanswered"]:
        console.print("The time was up before everything was measured; run the command again to go on.")

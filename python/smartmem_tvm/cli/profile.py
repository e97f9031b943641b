# SPDX-License-Identifier: Apache-2.0
"""``smartmem profile``: measure kernels for decisions on fusion and textures without a table; store the results."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..tune.host import cpu_name, default_store, usable_cores
from .console import Result, step
from .executors import add_tracker, check_tracker, profiling_executor
from .model import PLANNERS, add_cache, add_compilation, add_model, add_threads, import_model, options

if TYPE_CHECKING:
    import tvm
    from rich.console import Console

    from ..deploy.fill_profiles import Filled
    from ..executor.job_devices import Executor
    from ..tune.profile_store import ProfileStore

_logger = logging.getLogger(__name__)
NAME = "profile"
HELP = "measure which kernels are faster fused, or with textures, and keep the answers"
EXAMPLE = """\
  smartmem profile models/swin_t.onnx                     fill tuning_logs/<this cpu>.jsonl
  smartmem profile models/swin_t.onnx --budget 60         for a minute; the next call goes on
  smartmem compile models/swin_t.onnx -o out              finds that file and uses it
  smartmem explain models/swin_t.onnx                     which decisions it made
  smartmem profile models/swin_t.onnx --layout fluid      and in which order each tensor should be stored
  smartmem profile models/swin_t.onnx --target opencl-texture    which tensors a GPU should have in textures
  smartmem profile models/swin_t.onnx --target adreno-740 --tracker 127.0.0.1:9190 --key pixel    on phones

Latencies depend on the CPU and the threads, or on the GPU, on TVM and this package's schedules: a store may hold those
of several, and only the fitting ones are used. $SMARTMEM_PROFILES names another store for all commands. For a target
with textures each kernel is measured as often as its tensors may be placed differently."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    text = "file to add to, as all commands take it (default: tuning_logs/<device>.jsonl here)"
    parser.add_argument("--profiles", "--store", dest="store", metavar="FILE", help=text)
    parser.add_argument(
        "--budget", type=_seconds, default=float("inf"), metavar="SECONDS", help="measure for this long (default: all)"
    )
    add_threads(parser)
    add_tracker(parser)
    add_compilation(parser, profiles=False)
    add_cache(parser)


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def execute(args: argparse.Namespace) -> Result:
    """Run the passes with the store and measure the kernels that they request, until they request no new ones."""
    check_tracker(args)
    from ..tune.scratch import scratch

    with scratch("profile"), profiling_executor(args) as executor:
        return _execute(args, executor, _Names.of(args, executor))


@dataclass(frozen=True)
class _Names:
    """The names under which a store keeps measurements.

    Attributes
    ----------
    device : str or None
        The GPU, None for a CPU.
    cpu : str or None
        The CPU of another machine; None for this one's and for a GPU.
    threads : int or None
        Threads of a CPU; None for a GPU of another machine.
    """

    device: str | None
    cpu: str | None
    threads: int | None

    @classmethod
    def of(cls, args: argparse.Namespace, executor: Executor) -> _Names:
        """Return the names; a remote device is named by its target if a compilation here cannot know its own name."""
        from ..deploy.fill_profiles import device_name, other_cpu
        from ..target import device_kind, is_elsewhere, is_gpu

        target = executor.devices.target
        if not executor.devices.is_elsewhere:
            return cls(device_name(target), None, executor.threads)
        if is_gpu(target):
            return cls(device_name(target) if is_elsewhere(target) else executor.name, None, None)
        # TVM's own server does not report its CPU.
        told = executor.name if executor.name != device_kind(target) else args.key
        return cls(None, other_cpu(target) or told, executor.threads)


def _execute(args: argparse.Namespace, executor: Executor, names: _Names) -> Result:
    from ..deploy.fill_profiles import open_store
    from ..graph_report import graph_cost

    path, target, servers = _path(args.store, names), executor.devices.target, Counter()
    mod = import_model(args)
    store = open_store(path, target, names.threads, names.device, names.cpu)
    known = store.kernels
    _warn_if_busy(executor)
    start = time.monotonic()
    modelled, filled = _fill(args, mod, store, executor, servers)
    placed, textures = _place(args, filled.module, store, executor, servers, start + args.budget)
    layouts = _lay_out(args, placed, store, executor, servers, start + args.budget)
    data = {
        **_data(args, filled),
        "seconds": time.monotonic() - start,
        "kernels": {"cost_model": graph_cost(modelled).kernels, "profile": graph_cost(filled.module).kernels},
        "textures": textures,
        "layouts": layouts,
        "kernels_measured": store.kernels - known,
        "kernels_in_store": store.kernels,
        "damaged_lines": store.damaged,
        "store": str(path),
        "target": str(target),
        "cpu": names.cpu if executor.devices.is_elsewhere else cpu_name(),
        "device": names.device,
        "threads": names.threads,
        "servers": {address: count for address, count in servers.items() if address},
    }
    return Result(data, lambda console: _render(console, data))


def _warn_if_busy(executor: Executor) -> None:
    """Warn about busy cores: they distort the times of several threads."""
    from ..target import is_gpu

    if executor.devices.is_elsewhere or is_gpu(executor.devices.target):
        return
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, usable_cores()
    if load + executor.threads > cores + 1:
        _logger.warning("this machine is busy (load %.1f, %d cores): answers are better when it is idle.", load, cores)


def _fill(
    args: argparse.Namespace, mod, store: ProfileStore, executor: Executor, servers: Counter[str]
) -> tuple[tvm.IRModule, Filled]:
    """Return the module of the cost model alone and the result of filling the store; without textures yet."""
    from ..deploy.fill_profiles import fill, measured_by
    from ..pipeline import graph_phases, run_phases

    target, chosen = executor.devices.target, options(args)
    asking = replace(chosen, dump_dir=None, profiles=store)
    # The phases before the one that requests measurements run once.
    phases = graph_phases(target)
    names = [phase.name for phase in phases]
    first, last = names.index("fuse"), min(names.index(name) for name in ("textures", "layout") if name in names)
    with target:
        with step("Running the passes"):
            legal = run_phases(mod, phases[:first], chosen)
            modelled = run_phases(legal, phases[first:last], replace(asking, profiles=None))
        with _bar() as progress:
            run_passes = partial(run_phases, legal, phases[first:last], asking)
            return modelled, fill(store, run_passes, measured_by(executor, servers), args.budget, progress)


def _place(
    args: argparse.Namespace, mod, store: ProfileStore, executor: Executor, servers: Counter[str], end: float
) -> tuple[tvm.IRModule, dict | None]:
    """Place tensors in textures and measure each kernel that this requests; return None without textures."""
    from ..deploy.texture_times import TextureTimes
    from ..ir.graph import read_log
    from ..pipeline import graph_phases, run_phases
    from ..target import has_textures

    target = executor.devices.target
    if not (has_textures(target) and args.textures):
        return mod, None

    placing = tuple(phase for phase in graph_phases(target) if phase.name == "textures")

    def placed(ask) -> tvm.IRModule:
        return run_phases(mod, placing, replace(options(args), dump_dir=None, measure=ask))

    with _bar() as progress, target:
        times = TextureTimes(store, target, executor, end - time.monotonic(), lambda done: progress(done, None))
        if executor.workers.count > 1:
            times.ahead(placed)
        mod = placed(times)
    log = read_log(mod)
    servers.update(times.servers)
    memories = [entry["memory"] for entry in log if entry["pass"] == "PlaceTextures"]
    chosen = {memory: memories.count(memory) for memory in ("texture", "buffer")}
    return mod, {**chosen, "measured_now": times.measured, "failed": times.failed, "unanswered": times.open}


def _lay_out(
    args: argparse.Namespace, mod, store: ProfileStore, executor: Executor, servers: Counter[str], end: float
) -> dict | None:
    """Measure the kernels with other layouts of their tensors, if the chosen planner uses these times."""
    from ..deploy.layout_times import measure_layouts

    if args.layout not in PLANNERS[1:]:
        return None
    with _bar() as progress:
        return asdict(measure_layouts(store, mod, executor, end - time.monotonic(), progress, servers))


def _path(text: str | None, names: _Names) -> Path:
    """Return the file to fill, by default the one that compilations for the target read.

    Raises
    ------
    UserError
        If none is named and $SMARTMEM_PROFILES is empty.
    """
    path = Path(text) if text is not None else default_store(names.device or names.cpu)
    if path is None:
        raise UserError("SMARTMEM_PROFILES is empty, which means no profile store; name one with --profiles FILE.")
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
    """Show a bar on stderr, if that is a terminal, and yield the function that advances it."""
    if not sys.stderr.isatty():
        yield lambda done, asked: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # stdout is already redirected to stderr while a command runs, and must not be redirected again.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task("Measuring", total=None)
        yield lambda done, asked: progress.update(task, completed=done, total=asked)


def _render(console: Console, data: dict) -> None:
    kernels = data["kernels"]
    where = data["device"] or f"Threads: {data['threads']}, {data['cpu']}"
    console.print(
        f"{data['model']}: questions of the passes: {data['questions']}, measured now: {data['measured_now']}, "
        f"in {data['seconds']:.1f} s. {where}.\n"
        f"Faster as one kernel: {data['answered_fused']}. Faster as separate ones: {data['answered_kept']}. "
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
    layouts = data["layouts"] or {"open": 0}
    if data["layouts"]:
        console.print(
            f"Forms of kernels with tensors in other orders: {layouts['forms']} of {layouts['kernels']} kernels. "
            f"Measured now: {layouts['measured']}; could not be measured: {layouts['failed']}."
        )
    if data["unanswered"] or textures["unanswered"] or layouts["open"]:
        console.print("The time was up before everything was measured; run the command again to go on.")

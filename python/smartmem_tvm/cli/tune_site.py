# SPDX-License-Identifier: Apache-2.0
"""Where `smartmem tune` has kernels measured: on this machine, or on devices of a tracker."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..errors import UserError
from . import argument_types

if TYPE_CHECKING:
    import numpy as np
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from ..deploy.apart import Apart
    from ..deploy.build import Compiled
    from ..tune.build import Export
    from ..tune.workers import Workers


@dataclass(frozen=True)
class Site:
    """Where kernels are measured.

    Attributes
    ----------
    name, driver : str
        Of the device.
    threads : int
        Of a CPU.
    devices : int
        Candidates that are measured at a time.
    runner : ms.Runner
    apart : Apart
    export : callable
        Writes candidates as the runner wants them.
    seconds : callable or None
        Kernel -> seconds of a launch, of a compiled model with some inputs; None where each kernel is asked for.
    """

    name: str
    driver: str
    threads: int
    devices: int
    runner: ms.Runner
    apart: Apart
    export: Export
    seconds: Callable[[Compiled, list[np.ndarray]], dict[str, float]] | None = None


def add_tracker(parser: argparse.ArgumentParser) -> None:
    """Add ``--tracker``, ``--key`` and ``--timeout``."""
    group = parser.add_argument_group("devices of a tracker instead of this machine")
    group.add_argument(
        "--tracker", metavar="ADDRESS", help="host:port of a tracker; all devices of a key share the work"
    )
    group.add_argument("--key", help="which kind of device")
    text = "seconds to wait for a free device (default: 60)"
    group.add_argument("--timeout", type=argument_types.seconds, default=60.0, metavar="S", help=text)


def check_tracker(args: argparse.Namespace) -> None:
    """Refuse a tracker without a key, or the reverse.

    Raises
    ------
    UserError
    """
    if (args.tracker is None) != (args.key is None):
        given, missing = ("--tracker", "--key") if args.key is None else ("--key", "--tracker")
        raise UserError(f"Option {given} needs {missing}: together they name the devices to measure on.")


@contextlib.contextmanager
def site_of(args: argparse.Namespace, target: Target, cores: Collection[int], builders: Workers) -> Iterator[Site]:
    """Where the arguments say, and the processes that measure there."""
    open_site = _here if args.tracker is None else _there
    with open_site(args, target, cores, builders) as site:
        yield site


@contextlib.contextmanager
def _here(args: argparse.Namespace, target: Target, cores: Collection[int], builders: Workers) -> Iterator[Site]:
    from ..deploy.apart import Apart
    from ..deploy.device_clock import clock_of
    from ..runtime.device import describe
    from ..target import device_of, is_gpu
    from ..tune.build import archive
    from ..tune.host import cpu_name, memory_bytes, set_threads, usable_cores
    from ..tune.runner import local_runner, measuring_worker

    gpu = is_gpu(target)
    threads = set_threads(args.threads or (usable_cores(cores) if cores else None))
    facts = describe(device_of(target)) if gpu else {"name": cpu_name(), "driver": ""}
    # A kernel cannot take the memory of this machine on a GPU, whose driver maps more than there is.
    worker = measuring_worker(cores=cores, memory=None if gpu else memory_bytes() // 2, gpu=gpu)
    with contextlib.closing(worker):
        runner, apart = local_runner(worker, clock_of(target)), Apart(worker, builders)
        seconds = _launched_seconds if gpu else None
        yield Site(facts["name"], facts["driver"], threads, 1, runner, apart, archive, seconds)


def _launched_seconds(compiled: Compiled, inputs: list[np.ndarray]) -> dict[str, float]:
    """A GPU's clock sees the kernels of an inference one by one, which takes less time than to compile each alone."""
    from ..runtime.launch_times import kernel_seconds
    from ..tune.gpu_turn import gpu_turn

    with gpu_turn():
        return kernel_seconds(compiled, inputs)


@contextlib.contextmanager
def _there(args: argparse.Namespace, target: Target, cores: Collection[int], builders: Workers) -> Iterator[Site]:
    from ..deploy.apart import Apart
    from ..deploy.link import linked
    from ..remote import borrowed, tuning
    from ..target import is_gpu
    from ..tune.runner import runner
    from ..tune.workers import Workers

    if cores:
        raise UserError("Option --cores names cores of this machine, and --tracker another one; leave one of them out.")
    found = tuning.find(args.tracker, args.key, args.timeout, target, args.threads)
    lent = borrowed.Borrowed(args.tracker, args.key, args.timeout, None if is_gpu(target) else found.threads)
    workers = Workers(found.count, lent.patience, imports=[borrowed.__name__])
    with contextlib.closing(workers):
        apart = Apart(workers, builders, lent.patience_of_verdicts, lent.at)
        seconds = partial(tuning.kernel_seconds, run=lent.run)
        yield Site(
            found.name, found.driver, found.threads, found.count, runner(workers, lent.seconds), apart, linked, seconds
        )

# SPDX-License-Identifier: Apache-2.0
"""Executors that measure kernels for `smartmem tune` and `smartmem profile`: this machine or a tracker's devices."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from ..errors import UserError
from . import argument_types
from .console import step

if TYPE_CHECKING:
    from tvm.target import Target

    from ..executor.job_devices import Executor

# Modules with the functions of jobs: workers import them before their first job.
_IMPORTS = tuple(
    f"{__package__.rpartition('.')[0]}.{name}" for name in ("deploy.fill_profiles", "tune.measure_candidates")
)


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
    """Refuse a tracker without a key, or a key without a tracker.

    Raises
    ------
    UserError
    """
    if (args.tracker is None) != (args.key is None):
        given, missing = ("--tracker", "--key") if args.key is None else ("--key", "--tracker")
        raise UserError(f"Option {given} needs {missing}: together they name the devices to measure on.")


@contextlib.contextmanager
def tuning_executor(args: argparse.Namespace, target: Target, cores: Collection[int]) -> Iterator[Executor]:
    """Yield the executor of candidates and finalists, on these cores of this machine or on the tracker's devices."""
    from ..runtime.device import describe
    from ..target import device_of, is_gpu
    from ..tune.host import cpu_name, memory_bytes, set_threads, usable_cores

    if args.tracker is not None:
        if cores:
            raise UserError(
                "Option --cores names cores of this machine, and --tracker another one; leave one of them out."
            )
        with _tracked(args, target, quietly=True, tries=2, cool_down=3.0) as executor:
            yield executor
        return
    gpu = is_gpu(target)
    threads = set_threads(args.threads or (usable_cores(cores) if cores else None))
    facts = describe(device_of(target)) if gpu else {"name": cpu_name(), "driver": ""}
    # No limit for a GPU: its kernels take none of this machine's memory, and its driver maps more than there is.
    confines = {"cores": cores, "memory": None if gpu else memory_bytes() // 2, "gpu": gpu}
    with _local(target, facts["name"], facts["driver"], threads, **confines) as executor:
        yield executor


@contextlib.contextmanager
def profiling_executor(args: argparse.Namespace) -> Iterator[Executor]:
    """Yield the executor that measures for passes, here or on the tracker's devices."""
    from ..deploy.fill_profiles import device_name, measured_target
    from ..target import parse_target
    from ..tune.host import cpu_name, set_threads

    if args.tracker is not None:
        with _tracked(args, parse_target(args.target)) as executor:
            yield executor
        return
    target = measured_target(args.target)
    name = device_name(target) or cpu_name()
    with _local(target, name, threads=set_threads(args.threads), takes_turns=True) as executor:
        yield executor


@contextlib.contextmanager
def _local(
    target: Target, name: str, driver: str = "", threads: int = 0, takes_turns: bool = False, **confines
) -> Iterator[Executor]:
    from ..deploy.this_machine import ThisMachine, measuring_worker
    from ..executor.job_devices import Executor

    with contextlib.closing(measuring_worker(_IMPORTS, **confines)) as worker:
        yield Executor(ThisMachine(target, takes_turns), worker, name, driver, threads)


@contextlib.contextmanager
def _tracked(args: argparse.Namespace, target: Target, quietly: bool = False, **tries) -> Iterator[Executor]:
    from ..executor.job_devices import Executor
    from ..executor.workers import Workers
    from ..remote import tracked_devices as tracked
    from ..remote.tuning import find
    from ..target import is_gpu

    with contextlib.nullcontext() if quietly else step(f"Looking at a device of key {args.key}"):
        found = find(args.tracker, args.key, args.timeout, target, args.threads)
    threads = None if is_gpu(target) else found.threads
    devices = tracked.TrackedDevices(args.tracker, args.key, target, args.timeout, threads, **tries)
    workers = Workers(found.count, devices.patience(devices.limits.candidate), imports=[*_IMPORTS, tracked.__name__])
    with contextlib.closing(workers):
        yield Executor(devices, workers, found.name, found.driver, found.threads)

# SPDX-License-Identifier: Apache-2.0
"""Where `smartmem profile` has kernels measured: on this machine, or on devices of a tracker."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..tune.host import set_threads, usable_cores
from .console import step

if TYPE_CHECKING:
    from tvm.target import Target

    from ..remote.profiling import Lent

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Site:
    """Where kernels are measured, as a store goes by it.

    Attributes
    ----------
    target : Target
    device : str or None
        The GPU, None for a CPU.
    cpu : str or None
        The CPU, None for this machine's and for a GPU.
    threads : int or None
    lent : Lent or None
        Who measures there; None for this machine.
    """

    target: Target
    device: str | None
    cpu: str | None
    threads: int | None
    lent: Lent | None = None


@contextlib.contextmanager
def site_of(args: argparse.Namespace) -> Iterator[Site]:
    """Where the arguments say."""
    with (_here if args.tracker is None else _there)(args) as site:
        yield site


@contextlib.contextmanager
def _here(args: argparse.Namespace) -> Iterator[Site]:
    from ..deploy.profile import device_name, measured_target

    target = measured_target(args.target)
    yield Site(target, device_name(target), None, set_threads(args.threads))


@contextlib.contextmanager
def _there(args: argparse.Namespace) -> Iterator[Site]:
    """The devices of a key; they go by the target's name where a compilation here knows no other."""
    from ..deploy.profile import device_name, other_cpu
    from ..remote.attempts import Attempts
    from ..remote.deployed import kind_of
    from ..remote.profiling import Lent
    from ..remote.tuning import find
    from ..target import is_elsewhere, is_gpu, parse_target

    target = parse_target(args.target)
    with step(f"Looking at a device of key {args.key}"):
        found = find(args.tracker, args.key, args.timeout, target, args.threads)
    device = cpu = threads = None
    if is_gpu(target):
        device = device_name(target) if is_elsewhere(target) else found.name
    else:
        # A server of TVM's own does not tell what its CPU is.
        told = found.name if found.name != kind_of(target) else args.key
        cpu, threads = other_cpu(target) or told, found.threads
    attempts = Attempts(args.tracker, args.key, timeout=args.timeout)
    with Lent(attempts, target, found.count, threads) as lent:
        yield Site(target, device, cpu, threads, lent)


def warn_if_busy(site: Site) -> None:
    """What several threads take says little where other programs take their cores away."""
    if site.lent is not None or site.device is not None:
        return
    threads = site.threads
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, usable_cores()
    if load + threads > cores + 1:
        _logger.warning("this machine is busy (load %.1f, %d cores): answers are better when it is idle.", load, cores)

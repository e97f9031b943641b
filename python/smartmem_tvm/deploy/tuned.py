# SPDX-License-Identifier: Apache-2.0
"""Tuned kernels of this machine: where their records are, and what a model is compiled with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from tvm.target import Target

from .._version import installed_version
from ..errors import UserError
from ..schedule.gpu_launch import has_textures, is_gpu
from ..tune.apply_records import ApplyRecords
from ..tune.host import RECORDS_VARIABLE, default_file, run_threads
from ..tune.records import circumstances, winners
from ..tune.tasks import Task
from .judge import untuned_seconds
from .profile import device_name

_logger = logging.getLogger(__name__)


def default_records(target: Target) -> Path | None:
    """Where records for a target are kept: $SMARTMEM_RECORDS, else a file in ``tuning_logs/`` here.

    Its name tells the device, the kind of target and TVM's version.

    Returns
    -------
    Path or None
        None if the variable is set and empty: no records.
    """
    kind = target.kind.name + ("-texture" if has_textures(target) else "")
    ending = f"-{kind}-tvm-{installed_version('apache-tvm')}.records.jsonl"
    return default_file(RECORDS_VARIABLE, device_name(target), ending)


def here(target: Target, threads: int | None = None) -> dict:
    """The circumstances of what is measured for `target` now; `threads` are TVM's by default."""
    return circumstances(target, None if is_gpu(target) else threads or run_threads())


def open_tuned(path: Path, target: Target, threads: int | None = None) -> ApplyRecords | None:
    """The pass that gives kernels the schedules on record; None if nothing in the file counts here.

    Raises
    ------
    UserError
        If the file cannot be read.
    """
    found = winners(path, here(target, threads))
    return ApplyRecords(found) if len(found) else None


def measured(
    tasks: Sequence[Task], target: Target, progress: Callable[[int, int], None] = lambda done, of: None
) -> tuple[list[Task], list[float]]:
    """The tasks that can be measured, and the seconds of one launch of each, untuned.

    Parameters
    ----------
    progress : callable
        Is told after each how many are done, and of how many.

    Raises
    ------
    UserError
        If there is none.
    """
    found: list[Task] = []
    seconds: list[float] = []
    for number, task in enumerate(tasks, start=1):
        try:
            taken = untuned_seconds(task.mod, target)
        except UserError:
            raise
        except Exception as error:  # TVM raises several kinds here
            reason = (str(error).strip().splitlines() or ["no message"])[-1]
            _logger.warning("kernel %s is left out, as it cannot be run alone (%s).", task.names[0], reason)
        else:
            found.append(task)
            seconds.append(taken)
        progress(number, len(tasks))
    if not found:
        raise UserError(
            "The model has no kernel that can be run alone, so there is nothing to tune; compile it as it is."
        )
    return found, seconds

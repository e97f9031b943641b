# SPDX-License-Identifier: Apache-2.0
"""Tuning records of this machine: their files, and their use when a model is compiled."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tvm

from .._version import installed_version
from ..errors import UserError
from ..target import has_textures, is_elsewhere, is_gpu
from ..tune.apply_records import LEFT_OUT, ApplyRecords
from ..tune.host import RECORDS_VARIABLE, default_file, run_threads
from ..tune.records import circumstances, lines_of
from ..tune.select_winners import Winner, choose
from ..tune.tasks import Task
from .fill_profiles import device_name, other_cpu
from .judge import untuned_seconds

RUN = ("strategy", "date", "device", "driver", "threads", "judge")
"""The facts that are reported of the run of ``smartmem tune`` that found a schedule; a run without a judge measured."""
_logger = logging.getLogger(__name__)


def default_records(target: tvm.target.Target) -> Path | None:
    """Return the file of records for a target: $SMARTMEM_RECORDS, else a file in ``tuning_logs/`` here.

    The default file's name contains the device, the kind of target and TVM's version.

    Returns
    -------
    Path or None
        None, for no records, if the variable is set and empty.
    """
    kind = target.kind.name + ("-texture" if has_textures(target) else "")
    ending = f"-{kind}-tvm-{installed_version('apache-tvm')}.records.jsonl"
    return default_file(RECORDS_VARIABLE, device_name(target) or other_cpu(target), ending)


def here(target: tvm.target.Target, threads: int | None = None) -> dict:
    """Return the circumstances of measurements for `target`; `threads` are by default TVM's, on this machine's CPU."""
    if is_gpu(target):
        return circumstances(target, None)
    return circumstances(target, threads or (None if other_cpu(target) else run_threads()))


def open_tuned(path: str | Path, target: tvm.target.Target, threads: int | None = None) -> ApplyRecords:
    """Return the pass that gives kernels their recorded schedules when a model is compiled.

    Parameters
    ----------
    path : str or Path
        File of records, which is only read; a torn or damaged line is skipped, with a warning.

    Raises
    ------
    UserError
        If the file cannot be read.
    """
    device = None if is_elsewhere(target) else device_name(target)
    chosen = choose(lines_of(Path(path)), here(target, threads), device)
    told = {key: {LEFT_OUT: reason} for key, reason in chosen.left_out.items()}
    told |= {key: _told(winner) for key, winner in chosen.winners.items()}
    return ApplyRecords(chosen.database, {key: {"records": str(path), **facts} for key, facts in told.items()})


def _told(winner: Winner) -> dict:
    run = {name: winner.run.get(name) for name in RUN}
    return {**run, "gain": winner.gain, "seconds": winner.seconds, "untuned": winner.untuned, "record": winner.record}


def tuning_report(tuning: Mapping[str, Mapping], kernels: int) -> dict:
    """Return the effect of tuning on a model, as plain data for JSON.

    Parameters
    ----------
    tuning : mapping
        `Compiled.tuning`.
    kernels : int
        Number of kernels of the model, tuned or not.

    Returns
    -------
    dict
        ``kernels``, and the number of them that are ``tuned``; ``runs`` of the tuner: ``records`` (the file), `RUN`,
        and the number ``tuned`` by each; ``left_out``: ``reason`` and number of ``kernels`` whose records do not count;
        ``gains``: kernel -> ``gain`` (its speedup over the untuned kernel), ``seconds`` of a launch in that run,
        ``strategy``, ``judge`` (the model whose prices these are; None if they were measured) and ``decisions``, None
        for a schedule of TVM's.
    """
    tuned = {name: facts for name, facts in tuning.items() if LEFT_OUT not in facts}
    runs = Counter(tuple(facts[name] for name in ("records", *RUN)) for facts in tuned.values())
    reasons = Counter(facts[LEFT_OUT] for facts in tuning.values() if LEFT_OUT in facts)
    shown = ("gain", "seconds", "strategy", "judge", "decisions")
    return {
        "kernels": kernels,
        "tuned": len(tuned),
        "runs": [{**dict(zip(("records", *RUN), run, strict=True)), "tuned": count} for run, count in runs.items()],
        "left_out": [{"reason": reason, "kernels": count} for reason, count in reasons.items()],
        "gains": {name: {key: facts[key] for key in shown} for name, facts in tuned.items()},
    }


def measured(
    tasks: Sequence[Task],
    target: tvm.target.Target,
    progress: Callable[[int, int], None] = lambda done, of: None,
    seconds_of: Callable[[Task], float] | None = None,
    problem: str = "it cannot be run alone",
) -> tuple[list[Task], list[float]]:
    """Return the tasks that can be measured, and the seconds of one untuned launch of each.

    Parameters
    ----------
    progress : callable
        Called after each task with the number of tasks done, and of all tasks.
    seconds_of : callable
        Measures one task; by default in this process.
    problem : str
        The sentence for a task that `seconds_of` fails at.

    Raises
    ------
    UserError
        If no task can be measured.
    """
    found: list[Task] = []
    seconds: list[float] = []
    seconds_of = seconds_of or (lambda task: untuned_seconds(task.mod, target))
    for number, task in enumerate(tasks, start=1):
        try:
            taken = seconds_of(task)
        except UserError:
            raise
        except Exception as error:  # TVM raises several kinds here
            reason = (str(error).strip().splitlines() or ["no message"])[-1]
            _logger.warning("kernel %s is left out, as %s (%s).", task.names[0], problem, reason.rstrip("."))
        else:
            found.append(task)
            seconds.append(taken)
        progress(number, len(tasks))
    if not found:
        raise UserError(
            "The model has no kernel that can be run alone, so there is nothing to tune; compile it as it is."
        )
    return found, seconds

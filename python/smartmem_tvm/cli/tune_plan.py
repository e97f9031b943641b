# SPDX-License-Identifier: Apache-2.0
"""Plan `smartmem tune`: its models, kernels, cores and executors."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import logging
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from .console import step
from .executors import tuning_executor
from .model import graph_options, import_model

if TYPE_CHECKING:
    import numpy as np
    from tvm.target import Target

    from ..deploy.compiled import Compiled
    from ..executor.job_devices import Executor
    from ..tune.campaign import Campaign, TuningEffort
    from ..tune.records import Records
    from ..tune.tasks import Task

_logger = logging.getLogger(__name__)


def models_of(arguments: Sequence[str]) -> dict[str, Path]:
    """Return the models in files and folders, by short names.

    Raises
    ------
    UserError
        If one of them does not exist, or a folder has no model.
    """
    found: list[Path] = []
    for each in map(Path, arguments):
        files = sorted((*each.glob("*.onnx"), *each.glob("*.pt2"))) if each.is_dir() else [each]
        if not files:
            raise UserError(f"Folder {each} has no file that ends with .onnx or .pt2; name a model, or another folder.")
        found += files
    found = list(dict.fromkeys(found))
    missing = next((each for each in found if not each.exists()), None)
    if missing is not None:
        raise UserError(f"Model {missing} does not exist; name an ONNX or .pt2 file, or a folder of them.")
    stems = [each.stem for each in found]
    return {each.stem if stems.count(each.stem) == 1 else str(each.with_suffix("")): each for each in found}


@contextlib.contextmanager
def campaign_of(
    args: argparse.Namespace, models: Mapping[str, Path], target: Target, path: Path, cores: Collection[int]
) -> Iterator[Campaign]:
    """Yield the campaign for the arguments while its worker processes run."""
    from ..deploy.judge_in_worker import WorkerJudge
    from ..deploy.kernel_code import kernel_code
    from ..deploy.link import linked
    from ..deploy.tuned import measured
    from ..tune.build_candidates import archive, building_workers, local_builder
    from ..tune.campaign import Campaign
    from ..tune.host import usable_cores
    from ..tune.kernel_search import Tools, learn
    from ..tune.measure_candidates import CandidateRunner
    from ..tune.metaschedule import cost_model

    model = cost_model(args.strategy)
    others = sorted(os.sched_getaffinity(0) - set(cores)) if cores else []
    builders = building_workers(usable_cores(others), cores=others)
    with contextlib.closing(builders), tuning_executor(args, target, cores) as executor:
        judge, export = WorkerJudge(executor, builders), linked if executor.devices.is_elsewhere else archive
        about = {"device": executor.name, "driver": executor.driver}
        records = records_of(args, models, target, path, executor.threads, about)
        known: dict[str, float] = {}
        tasks = tasks_of_models(args, models, lambda one, prefix: _tasks_of_model(one, target, executor, known, prefix))
        with step("Measuring the kernels as they are"):
            tasks, seconds = measured(
                tasks,
                target,
                seconds_of=lambda task: known.get(task.names[0]) or judge.untuned_seconds(task.mod, target),
            )
        with step("Learning from earlier records"):
            learn(model, records, target, args.strategy)
        builder, devices = local_builder(builders, kernel_code, export), executor.workers.count
        tools = Tools(builder, CandidateRunner(executor), records, model, devices)
        yield Campaign(tasks, seconds, target, args.strategy, tools, judge.judge, effort_of(args), args.seed)


def tasks_of_models(
    args: argparse.Namespace, models: Mapping[str, Path], of_model: Callable[[argparse.Namespace, str], list[Task]]
) -> list[Task]:
    """Return the kernels of all models.

    Parameters
    ----------
    of_model : callable
        Returns the kernels of a model, given the arguments with ``model``, and what the names of its kernels begin with
        among those of several models.

    Raises
    ------
    UserError
        If the only model cannot be read; of several, an unreadable one is skipped.
    """
    from ..tune.tasks import joined

    found: dict[str, list[Task]] = {}
    for name, path in models.items():
        try:
            one = argparse.Namespace(**{**vars(args), "model": str(path)})
            found[name] = of_model(one, "" if len(models) == 1 else f"{name}/")
        except UserError as error:
            if len(models) == 1:
                raise
            _logger.warning("model %s is left out: %s", path, error)
    if not found:
        raise UserError("None of the models could be read; the reasons are above.")
    return joined(found) if len(models) > 1 else found[next(iter(models))]


def _tasks_of_model(
    args: argparse.Namespace, target: Target, executor: Executor, known: dict[str, float], prefix: str
) -> list[Task]:
    """Return the kernels of a model; where an inference was timed, `known` gets the seconds of a launch by name."""
    from ..deploy.build import compile, optimize
    from ..frontend import input_spec
    from ..frontend.inputs import random_inputs
    from ..target import is_gpu
    from ..tune.tasks import tasks_of

    mod, options = import_model(args), graph_options(args)
    if not (executor.devices.is_elsewhere or is_gpu(target)):  # every kernel is tuned
        with step(f"Running the passes on {args.model}"), target:
            return tasks_of(optimize(mod, options=options), target, options)
    after = {}
    with step(f"Compiling {args.model} as it is"):
        options = replace(options, cuda_graph=False)
        compiled = compile(mod, target, options, lambda phase, graph: after.update(graph=graph))
        tasks = tasks_of(after["graph"], target, options)
    with step(f"Measuring the kernels of {args.model} as they are"):
        seconds = _seconds_by_kernel(compiled, list(random_inputs(input_spec(mod), {}).values()), executor)
    known |= {f"{prefix}{kernel}": each for kernel, each in seconds.items()}
    return tasks


def _seconds_by_kernel(compiled: Compiled, inputs: list[np.ndarray], executor: Executor) -> dict[str, float]:
    """Return the seconds of a launch of each kernel; a GPU here times each launch of one inference by its own clock."""
    from ..executor.gpu_turn import gpu_turn
    from ..remote import tuning
    from ..runtime.launch_times import kernel_seconds

    if executor.devices.is_elsewhere:
        return tuning.kernel_seconds(compiled, executor.devices)
    with gpu_turn():
        return kernel_seconds(compiled, compiled.without_caches(inputs))


def records_of(
    args: argparse.Namespace,
    models: Mapping[str, Path],
    target: Target,
    path: Path,
    threads: int | None,
    about: Mapping[str, str],
) -> Records:
    """Return the file of records as a database; `about` are facts about the device, or the judge."""
    from ..deploy.tuned import here
    from ..tune.records import Records

    run = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["smartmem", *sys.argv[1:]]),
        **about,
        "strategy": args.strategy,
        "models": list(models),
    }
    return Records(path, here(target, threads), run)


def effort_of(args: argparse.Namespace) -> TuningEffort:
    """Return the limits of a campaign that the arguments ask for."""
    from ..tune.campaign import EFFORTS

    asked = {"trials": args.trials, "minutes": args.minutes}
    return replace(EFFORTS[args.effort], **{name: value for name, value in asked.items() if value is not None})

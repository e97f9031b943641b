# SPDX-License-Identifier: Apache-2.0
"""``smartmem tune --judge mesa``: kernels for an Adreno are tuned by their prices, without the phone."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from .console import step
from .model import graph_options, import_model

if TYPE_CHECKING:
    from tvm.target import Target

    from ..tools.isa.candidates import ModelJudge
    from ..tune.campaign import Campaign
    from ..tune.tasks import Task

JUDGES = ("mesa",)
_PATIENCE = 600.0  # seconds to schedule a candidate and model its accesses: 1 to 5 s of a free core (2026-11-28)
_DEVICES = {"tracker": "--tracker", "cores": "--cores", "threads": "--threads"}


def judged_target(args: argparse.Namespace) -> Target:
    """Return the target of candidates that a judge prices.

    Raises
    ------
    UserError
        If it is no Adreno, or none that Mesa compiles for, if Mesa is not set up here, or if an option is about the
        device that measures.
    """
    from ..target import named_device, parse_target
    from ..tools.isa.compiler import GPUS, gpu_of, require

    for name, option in _DEVICES.items():
        if getattr(args, name) is not None:
            raise UserError(
                f"Option {option} is about what measures, and --judge {args.judge} measures nothing; leave one out."
            )
    target = parse_target(args.target)
    gpu = gpu_of(named_device(target))
    if gpu is None:
        raise UserError(
            f"Option --judge {args.judge} prices kernels for Adreno only, and target '{args.target}' is none; give "
            f"--target adreno-740, or measure without --judge."
        )
    if gpu not in GPUS:
        raise UserError(
            f"Mesa compiles no OpenCL for Adreno {gpu}, so --judge {args.judge} has no price of its kernels; give one "
            f"of {', '.join(f'adreno-{each}' for each in GPUS)}."
        )
    require(gpu)
    return target


@contextlib.contextmanager
def judged_campaign(
    args: argparse.Namespace, models: Mapping[str, Path], target: Target, path: Path
) -> Iterator[Campaign]:
    """Yield the campaign whose candidates Mesa compiles and a model prices, while its worker processes run."""
    from ..deploy.tuned import measured
    from ..mesa_folder import mesa_version
    from ..target import model_of
    from ..tools.isa.candidates import ModelJudge, ModelRunner, Prices, judge_name, modelled, write
    from ..tune.build_candidates import building_workers, local_builder
    from ..tune.campaign import Campaign
    from ..tune.host import usable_cores
    from ..tune.kernel_search import Tools, learn
    from ..tune.metaschedule import cost_model
    from .tune_plan import effort_of, records_of, tasks_of_models

    model, cores = cost_model(args.strategy), usable_cores()
    builders, prices = building_workers(cores, _PATIENCE), Prices(target, cores)
    with contextlib.closing(builders):
        judge = ModelJudge(prices, builders)
        about = {"device": model_of(target), "driver": f"Mesa {mesa_version()}", "judge": judge_name()}
        records = records_of(args, models, target, path, None, about)
        tasks = tasks_of_models(args, models, lambda one, _: _tasks(one, target))
        with step("Pricing the kernels as they are"):
            judge.learn([task.mod for task in tasks], target)
            price = partial(_price, judge, target)
            tasks, seconds = measured(tasks, target, seconds_of=price, problem="it has no price")
        with step("Learning from earlier records"):
            learn(model, records, target, args.strategy)
        tools = Tools(
            local_builder(builders, modelled, write), ModelRunner(prices), records, model, effort_of(args).batch
        )
        yield Campaign(tasks, seconds, target, args.strategy, tools, judge.judge, effort_of(args), args.seed)


def _price(judge: ModelJudge, target: Target, task: Task) -> float:
    return judge.untuned_seconds(task.mod, target)


def _tasks(args: argparse.Namespace, target: Target) -> list[Task]:
    from ..deploy.build import optimize
    from ..tune.tasks import tasks_of

    mod, options = import_model(args), graph_options(args)
    with step(f"Running the passes on {args.model}"), target:
        return tasks_of(optimize(mod, target, options), target, options)

# SPDX-License-Identifier: Apache-2.0
"""Fill a profile store with the times of kernels with their tensors in other orders, for `PlanLayout`."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from ..cpu_code import code_generation
from ..errors import reason_of
from ..executor.job_devices import Devices, Executor
from ..executor.readings import PROFILE
from ..ir.kernel import DECISIONS
from ..pipeline import prepare_passes
from ..schedule import loop_orders
from ..target import is_gpu
from ..transform.layout.plan_layout import Question, layout_questions
from ..tune.profile_store import ProfileStore, kernel_key
from ..tune.tunable_kernel import scheduled
from ..tvm_mends.guard_divisions import GuardDivisions
from .kernel_latency import Kernels, compiled, kernel_seconds, random_arguments
from .weights import Weight

_logger = logging.getLogger(__name__)
_AT_ONCE = 16  # forms in a job: they run in turns, and one that fails makes the whole job fail
_READINGS = replace(PROFILE, most=30, longest=0.5)


@dataclass(frozen=True)
class LayoutsMeasured:
    """The result of `measure_layouts`.

    Attributes
    ----------
    kernels, forms : int
        Kernels of the module with more than one form, and the forms of all of them.
    measured, failed, open : int
        Forms that were measured, that could not be measured, and that were left when the time was up.
    seconds : float
    """

    kernels: int
    forms: int
    measured: int
    failed: int
    open: int
    seconds: float


def measure_layouts(
    store: ProfileStore,
    mod: tvm.IRModule,
    executor: Executor,
    budget: float = float("inf"),
    progress: Callable[[int, int], None] = lambda done, asked: None,
    servers: Counter[str] | None = None,
) -> LayoutsMeasured:
    """Measure the forms that `PlanLayout` needs for a module and the store lacks; each result is saved at once.

    Parameters
    ----------
    mod : tvm.IRModule
        Module after the graph phases before ``layout``.
    budget : float
        Seconds after which no new measurement begins.
    progress : callable
        Called with the number of forms done, and the number of all forms.
    servers : collections.Counter, optional
        Counts the jobs done by each server of a device.
    """
    start, target = time.monotonic(), executor.devices.target
    with target:
        questions = layout_questions(mod, *(() if is_gpu(target) else (loop_orders,)))
    jobs = [job for each in questions for job in _jobs(store, each)]
    asked, measured, failed = sum(map(len, jobs)) - len(jobs), 0, 0
    modules = [tvm.IRModule({f"kernel{number}": func for number, func in enumerate(job)}) for job in jobs]
    limit = executor.devices.limits.question
    for number, answer in executor.results(_seconds, modules, limit, start + budget):
        job = jobs[number]
        if isinstance(answer, Exception):
            _logger.warning("a kernel could not be measured (%s); its tensors stay as they are.", reason_of(answer))
            failed += len(job) - 1
            continue
        address, seconds = answer
        session = os.urandom(8).hex()
        for func, each in zip(job, seconds, strict=True):
            if each is not None:
                store.add(func, each, together=session)
        done = sum(each is not None for each in seconds[1:])
        measured, failed = measured + done, failed + len(job) - 1 - done
        if servers is not None:
            servers[address] += 1
        progress(measured + failed, asked)
    left = asked - measured - failed
    took = time.monotonic() - start
    return LayoutsMeasured(len(questions), sum(len(q.forms) for q in questions), measured, failed, left, took)


def _jobs(store: ProfileStore, question: Question) -> list[list[tirx.PrimFunc]]:
    """Return jobs with the forms that the store lacks, a few in each, and the base form as the first of each job."""
    base = kernel_key(question.base)
    unknown = {kernel_key(func): func for func in question.forms if store.latency(func) is None}
    if unknown.keys() == {base}:
        return [[question.base, question.base]]
    forms = [func for key, func in unknown.items() if key != base]
    return [[question.base, *forms[at : at + _AT_ONCE]] for at in range(0, len(forms), _AT_ONCE)]


def _seconds(devices: Devices, job: tvm.IRModule) -> tuple[str, list[float | None]]:
    """Measure the forms of a kernel in a worker; return the server, and seconds, None for a form without schedule."""
    functions = [job[f"kernel{number}"] for number in range(len(job.functions))]
    if is_gpu(devices.target):
        kernels = compiled(functions, devices.target)
        places: Sequence[int | None] = range(len(functions))
    else:
        kernels, places = _compiled(functions, devices.target)
    limit = devices.limits.question
    address, seconds = devices.run(
        lambda device: (device.address, kernel_seconds(device, kernels, how=_READINGS)), limit
    )
    return address, [None if place is None else seconds[place] for place in places]


def _compiled(functions: Sequence[tirx.PrimFunc], target: Target) -> tuple[Kernels, list[int | None]]:
    """Return compiled CPU kernels with packed constants, and for each function the number of its kernel.

    Functions with the same scheduled code share a kernel. For example, a loop order that a rule does not offer leaves
    the same code as no loop order.
    """
    known: dict[int, int] = {}
    places: list[int | None] = []
    made, data = {}, {}
    for func in functions:
        new = _scheduled(func, target)
        if new is None:
            places.append(None)
            continue
        key = tvm_ffi.structural_hash(tirx.PrimFunc(new.params, new.body, new.ret_type))
        if key not in known:
            name = f"kernel{len(known)}"
            known[key] = len(known)
            made[name] = new.with_attr("global_symbol", name)
            data[name] = _arguments(func, new)
        places.append(known[key])
    with target, code_generation(target) as given:
        code = tvm.compile(GuardDivisions()(tvm.IRModule(made)), given)
    return Kernels(code, data), places


def _scheduled(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Return a kernel scheduled as in a model, None if no rule can schedule it."""
    with target:
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        func = tvm.transform.Sequential(prepare_passes(target))(mod)["main"]
    for each in (func, func.without_attr(DECISIONS)) if DECISIONS in func.attrs else (func,):
        try:
            return scheduled(each, target)
        except ScheduleError:
            continue
    return None


def _arguments(func: tirx.PrimFunc, packed: tirx.PrimFunc) -> list[Weight]:
    """Return random arguments for a kernel whose packed constants have other shapes than in `func`."""
    generator, found = np.random.default_rng(0), []
    for array, param in zip(random_arguments(func), packed.params, strict=True):
        shape = tuple(int(dim) for dim in param.shape)
        if shape != array.shape:
            array = (generator.random(shape, dtype="float32") + 0.5).astype(str(param.dtype))
        found.append(Weight(tvm.runtime.tensor(array)))
    return found

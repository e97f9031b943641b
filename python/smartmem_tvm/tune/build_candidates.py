# SPDX-License-Identifier: Apache-2.0
"""Build candidates in worker processes: from decisions by our schedule rules, or from schedules of TVM's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.builder.local_builder import default_export
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.target import Target

from ..cpu_code import code_generation
from ..executor.workers import Confines, Workers
from ..pipeline import after_schedules
from ..schedule.core.decisions import DECISIONS
from ..target import is_gpu
from ..transform.memory.lift_workspaces import with_parameters, workspaces
from ..tvm_mends.guard_divisions import guarded
from ..tvm_mends.wrap_casts import wrapped
from .host import memory_bytes
from .parameters import Parameter, parameters, write_parameters
from .trace import with_decisions_taken
from .tunable_kernel import scheduled

_LEAST = 2 * 10**9  # least bytes for a worker, which has TVM loaded

Generate = Callable[[tvm.IRModule, Target], tvm.runtime.Module]
"""Scheduled kernels -> code (`deploy.kernel_code`)."""
Export = Callable[[tvm.runtime.Module, Target], str]
"""Writes code into a new folder, and returns the file."""


def plain_code(mod: tvm.IRModule, target: Target) -> tvm.runtime.Module:
    """Generate code as TVM does by default, without textures."""
    with code_generation(target) as given:
        return tvm.tirx.build(mod, target=given)


def archive(module: tvm.runtime.Module, target: Target) -> str:
    """Export an archive of object files, which the process that loads them links."""
    return default_export(module)


@dataclass(frozen=True)
class Candidate:
    """A built candidate: its code, with the function ``main``, and its parameters."""

    module: tvm.runtime.Module
    parameters: Sequence[Parameter]


def build_candidate(mod: tvm.IRModule, target: Target, generate: Generate = plain_code) -> Candidate:
    """Build one candidate: a kernel named ``main`` with decisions in it, or one that a trace of TVM's has scheduled.

    TVM's tensor intrinsics are not imported, which would take many seconds in a worker: a trace has already inserted
    their code.

    Raises
    ------
    ScheduleError
        If no rule can follow the decisions.
    """
    func = with_decisions_taken(mod["main"])
    if DECISIONS in (func.attrs or {}):
        func = scheduled(func, target)
    else:
        func = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)["main"]
    return finished(func, target, generate)


def finished(func: tirx.PrimFunc, target: Target, generate: Generate = plain_code) -> Candidate:
    """Generate the code of a scheduled kernel.

    On a GPU, functions and vectors become what they are in a network, and workspaces become parameters.
    """
    if is_gpu(target):
        with target:
            func = tvm.transform.Sequential(after_schedules(target))(tvm.IRModule({"main": func}))["main"]
        func = with_parameters(func, workspaces(func))
    return Candidate(generate(tvm.IRModule({"main": wrapped(guarded(func))}), target), parameters(func))


@derived_object
class _Builder(PyBuilder):
    """Builds in processes that live from batch to batch, as starting one takes longer than building a kernel."""

    def __init__(self, workers: Workers, generate: Generate, export: Export):
        super().__init__()
        self._workers, self._how = workers, (generate, export)

    def build(self, build_inputs: Sequence[BuilderInput]) -> list[BuilderResult]:
        """Return one artifact for each candidate, or the reason why there is none."""
        jobs = [(each.mod, each.target, *self._how) for each in build_inputs]
        return [BuilderResult(each.value, each.error or None) for each in self._workers.map(_artifact, jobs)]


def _artifact(job: tuple[tvm.IRModule, Target, Generate, Export]) -> str:
    """Build a candidate into a new file, in a worker."""
    mod, target, generate, export = job
    candidate = build_candidate(mod, target, generate)
    artifact = export(candidate.module, target)
    write_parameters(candidate.parameters, Path(artifact))
    return artifact


def building_workers(count: int, patience: float = 60.0, cores: Collection[int] = ()) -> Workers:
    """Return worker processes that build candidates.

    Parameters
    ----------
    count : int
        Number of processes; together they take at most half of this machine's memory, but at least 2 GB each.
    patience : float
        Seconds for one candidate.
    cores : collection of int
        CPU cores that they run on; if empty, those of this process.
    """
    return Workers(count, patience, Confines(cores, max(_LEAST, memory_bytes() // 2 // count)), [__name__])


def local_builder(workers: Workers, generate: Generate = plain_code, export: Export = archive) -> PyBuilder:
    """Return a builder for candidates of any strategy.

    Parameters
    ----------
    workers : Workers
        `building_workers`.
    generate, export : callable
        Functions at the top level of a module, which the workers import.
    """
    return _Builder(workers, generate, export)

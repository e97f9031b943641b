# SPDX-License-Identifier: Apache-2.0
"""How candidates are built, in worker processes: decisions by our rules, schedules of TVM's as they are."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.builder.local_builder import default_export
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.support.popen_pool import PopenPoolExecutor, StatusKind
from tvm.target import Target

from ..schedule.decisions import DECISIONS
from .kernel import scheduled
from .runner import outlive_interrupts
from .trace import with_decisions_taken

_USES = 256  # candidates, after which a worker makes room for a fresh one


def build_candidate(mod: tvm.IRModule, target: Target, _params: object = None) -> tvm.runtime.Module:
    """Build one candidate: a kernel named ``main`` with decisions in it, or one that a trace of TVM's has scheduled.

    Nothing is imported for tensor intrinsics, which takes a worker many seconds: a trace has inserted their code.

    Raises
    ------
    ScheduleError
        If no rule can do as was decided.
    """
    func = with_decisions_taken(mod["main"])
    if DECISIONS in (func.attrs or {}):
        mod = tvm.IRModule({"main": scheduled(func, target)})
    else:
        mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    return tvm.tirx.build(mod, target=target)


@derived_object
class _Workers(PyBuilder):
    """Builds in processes that stay from batch to batch: to start one takes longer than to build a kernel."""

    def __init__(self, workers: int, patience: float):
        import psutil  # noqa: F401  TVM imports it in several threads at once, which fails now and then

        super().__init__()
        options = {"initializer": outlive_interrupts, "maximum_process_uses": _USES}
        self._pool = PopenPoolExecutor(max_workers=workers, timeout=patience, **options)

    def build(self, build_inputs: Sequence[BuilderInput]) -> list[BuilderResult]:
        """One artifact, or the reason why there is none, for each candidate."""
        jobs = [(each.mod, each.target) for each in build_inputs]
        return [_result(each) for each in self._pool.map_with_error_catching(_artifact, jobs)]


def _artifact(job: tuple[tvm.IRModule, Target]) -> str:
    """Build a candidate into a file of its own; runs in a worker."""
    return default_export(build_candidate(*job))


def _result(found) -> BuilderResult:
    if found.status == StatusKind.COMPLETE:
        return BuilderResult(found.value, None)
    return BuilderResult(None, f"the builder took too long or failed: {found.value}")


def local_builder(workers: int, patience: float = 60.0) -> PyBuilder:
    """A builder for candidates of any strategy.

    Parameters
    ----------
    workers : int
        Processes.
    patience : float
        Seconds for one candidate, the start of its worker included.
    """
    return _Workers(workers, patience)

# SPDX-License-Identifier: Apache-2.0
"""The genetic search as a strategy of MetaSchedule, beside its own strategies.

Candidates are traces of decisions (`trace`); builder, runner, cost model and database are MetaSchedule's. The search
continues from the records of a database: those of the same kernel are known results, and the best ones of similar
kernels are guests in the first population.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np
import tvm
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.arg_info import TensorInfo
from tvm.s_tir.meta_schedule.database import Database, TuningRecord
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate, PySearchStrategy
from tvm.s_tir.schedule import ScheduleError

from ..errors import UserError
from .candidate_faults import failure_of
from .genetic import Failure, GeneticSearch, Genome, Known, Settings, nearest
from .trace import genome_of, schedule_of
from .tunable_kernel import TunableKernel

FAILED = 1e9
"""A record of MetaSchedule's with this many seconds or more is one of a failed candidate."""
_GUESTS = 4


@derived_object
class Genetic(PySearchStrategy):
    """Genetic search over the decisions of our schedule rules.

    Parameters
    ----------
    seed : int
    settings : Settings, optional
    """

    def __init__(self, seed: int = 0, settings: Settings | None = None):
        self.seed, self.settings = seed, settings
        self.context = self.kernel = self.search = self.cost_model = None
        self.left = self.batch = 0

    def _initialize_with_tune_context(self, context) -> None:
        self.context = context

    def pre_tuning(self, max_trials, num_trials_per_iter, design_spaces, database=None, cost_model=None) -> None:
        """Start the search from the records of `database`.

        Raises
        ------
        UserError
            If no rule takes a decision about the kernel.
        """
        context = self.context
        self.kernel = TunableKernel.of(context.mod["main"], context.target)
        if self.kernel is None:
            raise UserError(
                f"Kernel {context.task_name} cannot be tuned by strategy genetic: no rule decides anything about it; "
                f"use strategy evolutionary."
            )
        self.left, self.batch, self.cost_model = int(max_trials), int(num_trials_per_iter), cost_model
        records = list(database.get_all_tuning_records()) if database is not None else []
        records = [each for each in records if tvm_ffi.structural_equal(each.target, context.target)]
        guests = nearest(self.kernel.space, relatives(records, context.mod), _GUESTS)
        surrogate = self._costs if cost_model is not None else None
        options = {"seeds": [self.kernel.seed], "guests": guests, "surrogate": surrogate, "settings": self.settings}
        self.search = GeneticSearch(self.kernel.space, self.seed, **options)
        for record in records:
            if tvm_ffi.structural_equal(record.workload.mod, context.mod):
                self._know(record)

    def _know(self, record: TuningRecord) -> None:
        genome, seconds = genome_of(record.trace), seconds_of(record)
        if genome is not None:
            self.search.know(genome, Failure("as recorded") if seconds is None else seconds)

    def post_tuning(self) -> None:
        """End the search."""
        self.left = 0

    def generate_measure_candidates(self) -> list[MeasureCandidate] | None:
        """Return the next genomes as candidates; None if all trials are done or the space is exhausted."""
        wanted, found = min(self.batch, self.left), []
        while len(found) < wanted and (genomes := self.search.ask(wanted - len(found))):
            for genome in genomes:
                try:
                    found.append(self._candidate(genome))
                except ScheduleError as error:
                    self.search.tell(genome, Failure(str(error)))
        self.left -= len(found)
        return found or None

    def notify_runner_results(self, measure_candidates, results) -> None:
        """Pass the measured times to the search."""
        for candidate, result in zip(measure_candidates, results, strict=True):
            genome = genome_of(candidate.sch.trace)
            seconds = median_of(result.run_secs)
            failed = failure_of(str(result.error_msg or "no time was measured"))
            self.search.tell(genome, failed if seconds is None else seconds)

    def clone(self) -> Genetic:
        """Return a new strategy with the same seed."""
        return Genetic(self.seed, self.settings)

    def _candidate(self, genome: Genome) -> MeasureCandidate:
        arguments = [TensorInfo(dtype, shape) for dtype, shape in self.kernel.arguments(genome)]
        return MeasureCandidate(schedule_of(self.context.mod, genome, self.kernel.space), arguments)

    def _costs(self, genomes: Sequence[Genome]) -> np.ndarray:
        """Return the costs of genomes by the cost model, whose scores grow with the speed."""
        schedules = [schedule_of(self.context.mod, genome, self.kernel.space) for genome in genomes]
        return -np.asarray(self.cost_model.predict(self.context, [MeasureCandidate(sch, []) for sch in schedules]))


def seconds_of(record: TuningRecord) -> float | None:
    """Return the median time of a record; None if the candidate failed."""
    seconds = median_of(record.run_secs)
    return seconds if seconds is not None and seconds < FAILED else None


def median_of(seconds: Iterable | None) -> float | None:
    """Return the median of measured times; None if there are none."""
    times = [float(each) for each in seconds or ()]
    return median(times) if times else None


def relatives(records: Iterable[TuningRecord], mod: tvm.IRModule) -> list[Known]:
    """Return the best decisions for each kernel in the records, except `mod`."""
    best: dict[int, tuple[float, TuningRecord]] = {}
    for record in records:
        seconds, key = seconds_of(record), tvm_ffi.structural_hash(record.workload.mod)
        if seconds is not None and genome_of(record.trace) is not None and (key not in best or seconds < best[key][0]):
            best[key] = seconds, record
    best.pop(tvm_ffi.structural_hash(mod), None)
    found = [(record, TunableKernel.of(record.workload.mod["main"], record.target)) for _, record in best.values()]
    return [Known(k.rule, k.space.facts, genome_of(record.trace)) for record, k in found if k is not None]


def best_record(database: Database, mod: tvm.IRModule, target: tvm.target.Target) -> TuningRecord | None:
    """Return the fastest record of a kernel for a target, by any strategy."""
    mine = [
        record
        for record in database.get_all_tuning_records()
        if tvm_ffi.structural_equal(record.target, target) and tvm_ffi.structural_equal(record.workload.mod, mod)
    ]
    return min((record for record in mine if seconds_of(record) is not None), key=seconds_of, default=None)

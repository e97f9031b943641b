# SPDX-License-Identifier: Apache-2.0
"""One kernel tuned from end to end, by two strategies, into one database."""

import json

import pytest
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import ScheduleError

from smartmem_tvm.errors import UserError
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune import kernel_search
from smartmem_tvm.tune.build_candidates import building_workers, local_builder
from smartmem_tvm.tune.kernel_search import SearchSession, Tools, learn
from smartmem_tvm.tune.metaschedule import cost_model
from smartmem_tvm.tune.strategy import best_record, seconds_of
from smartmem_tvm.tune.trace import genome_of
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload
from tunable_kernels import CASES

TARGET = parse_target("llvm")


def mod_of(name: str):
    case = CASES[name]
    return workload(with_constants(case.func(), case.constants))


class Builder(ms.builder.PyBuilder):
    """Builds empty files; every third candidate fails, by its own fault or by the machine's."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def build(self, inputs):
        found = []
        for _ in inputs:
            self.count += 1
            error = {1: "the compiler crashed", 2: "OSError: [Errno 28] No space left on device"}.get(self.count % 6)
            artifact = self.folder / f"built{self.count}" / str(self.count)
            artifact.parent.mkdir(parents=True)
            artifact.touch()
            found.append(ms.builder.BuilderResult(None if error else str(artifact), error))
        return found


class Runner:
    """Times are the numbers of the builds."""

    def run(self, inputs):
        return [
            _Answer(ms.runner.RunnerResult([int(each.artifact_path.rpartition("/")[2]) * 1e-6], None))
            for each in inputs
        ]


class _Answer:
    def __init__(self, result):
        self._result = result

    def result(self):
        return self._result


def test_times_and_failures_of_candidates_are_recorded_and_failures_of_the_machine_are_not(tmp_path):
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    session = SearchSession(
        mod_of("matmul"), TARGET, "genetic", Tools(Builder(tmp_path), Runner(), database), trials=12, batch=6
    )
    while session.step():
        pass
    assert len(session.done) == 12 and session.best == pytest.approx(3e-6)
    errors = [trial.error for trial in session.done if trial.seconds is None]
    assert len(errors) == 4 and sum("No space" in error for error in errors) == 2
    lines = (tmp_path / "database_tuning_record.json").read_text().splitlines()
    seconds = [json.loads(line)[1][1][0] for line in lines]
    assert len(seconds) == 10 and sum(each > 1e9 for each in seconds) == 2
    assert len(list(tmp_path.glob("built*"))) == 4  # what was run is removed
    session.close()
    assert session.step() == []


def test_a_session_goes_on_where_the_last_one_ended(tmp_path):
    def tried(trials, folder):
        database = ms.database.JSONDatabase(work_dir=str(tmp_path))
        session = SearchSession(
            mod_of("matmul"), TARGET, "genetic", Tools(Builder(folder), Runner(), database), trials, batch=6
        )
        while session.step():
            pass
        return [genome_of(record.trace) for record in database.get_all_tuning_records()]

    first, both = tried(12, tmp_path / "one"), tried(12, tmp_path / "two")
    assert len(first) == 10 and len(both) == 20 and len(set(both)) == 20 and set(first) < set(both)


@pytest.mark.parametrize("strategy", ["genetic", "replay"])
def test_a_cost_model_learns_from_the_records_of_its_space(strategy, tmp_path):
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    for which, folder in (("genetic", tmp_path / "g"), ("replay", tmp_path / "r")):
        tools = Tools(Builder(folder), Runner(), database)
        session = SearchSession(mod_of("matmul"), TARGET, which, tools, trials=12, batch=6)
        while session.step():
            pass
    model = cost_model(strategy)
    assert learn(model, database, TARGET, strategy) == 10
    assert model.data_size == 10
    assert learn(model, database, parse_target("cuda"), strategy) == 0


@pytest.mark.slow
def test_two_strategies_tune_one_kernel_into_one_database(tmp_path):
    mod, database = mod_of("matmul with a weight"), ms.database.JSONDatabase(work_dir=str(tmp_path))
    config = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=5)
    runner, builder = ms.runner.LocalRunner(timeout_sec=30, evaluator_config=config), local_builder(building_workers(2))
    for strategy in ("genetic", "replay"):
        tools = Tools(builder, runner, database, cost_model(strategy))
        session = SearchSession(mod, TARGET, strategy, tools, trials=8, batch=4)
        while session.step():
            pass
        assert len(session.done) == 8 and session.best < 0.1, session.done
    records = list(ms.database.JSONDatabase(work_dir=str(tmp_path)).get_all_tuning_records())
    mine = [record for record in records if genome_of(record.trace) is not None]
    assert len(records) == 16 and len(mine) == 8
    assert dict(TunableKernel.of(mod["main"], TARGET).seed) in [dict(genome_of(record.trace)) for record in mine]
    assert seconds_of(best_record(database, mod, TARGET)) == min(seconds_of(r) for r in records if seconds_of(r))


def test_a_kernel_that_a_strategy_cannot_tune_is_named(monkeypatch):
    """TVM's rules raise at some attentions."""

    class Refusing:
        def generate_design_space(self):
            raise ScheduleError("the primitive requires something")

    monkeypatch.setattr(kernel_search, "context", lambda *_: Refusing())
    tools = Tools(None, None, ms.database.MemoryDatabase())
    with pytest.raises(UserError, match="Kernel attention cannot be tuned by strategy evolutionary"):
        SearchSession(mod_of("attention"), TARGET, "evolutionary", tools, 4, name="attention")

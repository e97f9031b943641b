# SPDX-License-Identifier: Apache-2.0
"""The genetic strategy on MetaSchedule's builder, runner, cost model and database, and its records applied."""

import inspect

import numpy as np
import pytest
import tvm
from tvm.s_tir import TensorIntrin
from tvm.s_tir import meta_schedule as ms

from smartmem_tvm.errors import UserError
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.build_candidates import build_candidate
from smartmem_tvm.tune.features import DecisionFeatures, features
from smartmem_tvm.tune.metaschedule import context, cost_model, import_intrinsics
from smartmem_tvm.tune.strategy import Genetic, best_record, relatives, seconds_of
from smartmem_tvm.tune.trace import genome_of, schedule_of, with_decisions_taken
from smartmem_tvm.tune.tunable_kernel import TunableKernel, scheduled, with_constants, workload
from tunable_kernels import CASES, check

TARGET = parse_target("llvm")


def kernel_of(name: str) -> TunableKernel:
    case = CASES[name]
    return TunableKernel.of(with_constants(case.func(), case.constants), TARGET)


def results(candidates, seconds):
    """Runner results; None is a failure."""
    found = []
    for candidate in candidates:
        time = seconds(genome_of(candidate.sch.trace))
        found.append(ms.runner.RunnerResult([time] if time else None, None if time else "it crashed"))
    return found


def started(kernel, database=None, model=None, trials=40, batch=8, settings=None, seed=0):
    task = context(workload(kernel.func), TARGET, "genetic", seed)
    strategy = Genetic(seed, settings)
    strategy._initialize_with_tune_context(task)
    strategy.pre_tuning(trials, batch, [], database, model)
    return strategy


def seconds_by_tile(genome) -> float | None:
    if genome["matmul.unroll"] > 4:  # not what the rule decides, on any processor
        return None
    return 1e-6 * (1 + abs(genome["matmul.height"] - 2) + abs(genome["matmul.width"] - 16) / 8)


def record(database, kernel, genome, seconds, target=TARGET):
    mod = workload(kernel.func)
    sch = schedule_of(mod, genome, kernel.space)
    kept = database.commit_workload(mod)
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod)
    database.commit_tuning_record(ms.database.TuningRecord(sch.trace, kept, [seconds], target, arguments))


@pytest.mark.parametrize("name", ["matmul with a weight", "attention", "channel norm"])
def test_a_trace_replayed_makes_the_same_kernel(name):
    kernel, rng = kernel_of(name), np.random.default_rng(0)
    for genome in (kernel.space.random(rng), kernel.seed):
        sch = schedule_of(workload(kernel.func), genome, kernel.space)
        assert dict(genome_of(sch.trace)) == dict(genome)
        replayed = tvm.s_tir.Schedule(workload(kernel.func))
        stored = sch.trace.as_json()
        tvm.s_tir.schedule.Trace.apply_json_to_schedule(stored, replayed)
        func = with_decisions_taken(replayed.mod["main"])
        tvm.ir.assert_structural_equal(scheduled(func, TARGET), kernel.scheduled(genome))


def test_a_kernel_without_decisions_in_it_is_left_alone():
    func = kernel_of("matmul").func
    assert with_decisions_taken(func).same_as(func)
    assert genome_of(tvm.s_tir.Schedule(workload(func)).trace) is None


def test_the_strategy_asks_first_what_the_rule_decides_and_then_for_better():
    kernel = kernel_of("matmul with a weight")
    strategy = started(kernel)
    asked = []
    while (candidates := strategy.generate_measure_candidates()) is not None:
        asked += [genome_of(candidate.sch.trace) for candidate in candidates]
        strategy.notify_runner_results(candidates, results(candidates, seconds_by_tile))
    assert dict(asked[0]) == kernel.seed and len(set(asked)) == len(asked) == 40
    assert strategy.search.best[1] < seconds_by_tile(kernel.seed)


def test_arguments_of_a_candidate_are_those_that_its_kernel_reads():
    kernel = kernel_of("matmul with a weight")
    strategy = started(kernel)
    for candidate in strategy.generate_measure_candidates():
        genome = genome_of(candidate.sch.trace)
        shapes = [tuple(int(d) for d in info.shape) for info in candidate.args_info]
        assert shapes == [tuple(int(d) for d in param.shape) for param in kernel.scheduled(genome).params]
        assert genome["matmul.swapped"] or shapes[1][-1] == genome["matmul.width"]


def test_what_is_on_record_is_known_and_similar_kernels_are_guests():
    database, kernel, similar = ms.database.MemoryDatabase(), kernel_of("matmul"), kernel_of("long matmul")
    rng = np.random.default_rng(4)
    known, failed, guest = (k.space.random(rng) for k in (kernel, kernel, similar))
    record(database, kernel, known, 1e-9)
    record(database, kernel, failed, 1e10)
    record(database, similar, guest, 1e-6)
    record(database, similar, similar.seed, 2e-6)
    record(
        database, kernel, kernel.space.random(rng), 1e-12, target=tvm.target.Target({"kind": "llvm", "num-cores": 63})
    )
    strategy = started(kernel, database)
    assert strategy.search.best == (known, 1e-9) and strategy.search.trials == 2
    asked = [genome_of(candidate.sch.trace) for candidate in strategy.generate_measure_candidates()]
    assert known not in asked and failed not in asked
    repaired = kernel.space.repair(guest, np.random.default_rng(0))
    assert asked[1]["matmul.height"] == repaired["matmul.height"] and asked[1]["matmul.lanes"] == guest["matmul.lanes"]
    assert seconds_of(best_record(database, workload(kernel.func), TARGET)) == pytest.approx(1e-9)
    assert [each.genome for each in relatives(database.get_all_tuning_records(), workload(kernel.func))] == [guest]


def test_a_small_space_ends_the_search():
    kernel = kernel_of("element-wise")
    strategy = started(kernel, trials=1000, batch=4)
    count = 0
    while (candidates := strategy.generate_measure_candidates()) is not None:
        strategy.notify_runner_results(candidates, results(candidates, lambda genome: 1e-6))
        count += len(candidates)
    assert count == kernel.space.size(1000) and strategy.search.exhausted


def test_a_cost_model_trained_on_one_kernel_ranks_the_candidates_of_another():
    kernel, model = kernel_of("matmul"), cost_model("genetic")
    known = kernel_of("long matmul")
    task, strategy = context(workload(known.func), TARGET, "genetic", 0), started(known, trials=48)
    for _ in range(6):
        candidates = strategy.generate_measure_candidates()
        answers = results(candidates, seconds_by_tile)
        strategy.notify_runner_results(candidates, answers)
        model.update(task, candidates, answers)
    rng, other = np.random.default_rng(0), context(workload(kernel.func), TARGET, "genetic", 0)
    genomes = [g for g in (kernel.space.random(rng) for _ in range(60)) if seconds_by_tile(g)]
    drawn = [ms.MeasureCandidate(schedule_of(workload(kernel.func), g, kernel.space), []) for g in genomes]
    scores = np.asarray(model.predict(other, drawn))
    speeds = [1 / seconds_by_tile(genome) for genome in genomes]
    assert np.corrcoef(np.argsort(np.argsort(scores)), np.argsort(np.argsort(speeds)))[0, 1] > 0.4


def test_features_tell_genomes_and_kernels_apart():
    kernel, rng = kernel_of("matmul"), np.random.default_rng(0)
    rows = {features(kernel.space.random(rng), kernel.space.facts).tobytes() for _ in range(50)}
    assert len(rows) == 50
    assert not np.array_equal(features(kernel.seed, kernel.space.facts), features(kernel.seed, {}))
    task = context(workload(kernel.func), TARGET, "evolutionary", 0)
    foreign = ms.MeasureCandidate(tvm.s_tir.Schedule(workload(kernel.func)), [])
    (none,) = DecisionFeatures().extract_from(task, [foreign])
    assert none.shape[0] == 0


def test_a_candidate_of_either_space_is_built_and_right():
    case, kernel = CASES["matmul"], kernel_of("matmul")
    genome = kernel.space.random(np.random.default_rng(1))
    check(case, kernel.scheduled(genome), TARGET)
    built = build_candidate(schedule_of(workload(kernel.func), genome, kernel.space).mod, TARGET).module
    plain = build_candidate(workload(kernel.func), TARGET).module
    for module in (built, plain):
        arrays = case.arrays()
        out = tvm.runtime.tensor(np.full((37, 45), 7, "float32"))
        module["main"](*map(tvm.runtime.tensor, arrays), out)
        np.testing.assert_allclose(out.numpy(), case.build()[2](*arrays), rtol=2e-5, atol=2e-5)


@pytest.mark.device
@pytest.mark.parametrize("strategy, name", [("genetic", "matmul"), ("evolutionary", "matmul"), ("replay", "attention")])
def test_every_strategy_makes_candidates_of_the_same_task(strategy, name):
    """TVM's search knows blocks by their names, and an attention has two of several."""
    kernel = kernel_of(name)
    task = context(workload(kernel.func), TARGET, strategy, 3)
    task.pre_tuning(8, 4, task.generate_design_space(), ms.database.MemoryDatabase(), cost_model(strategy))
    candidates = task.generate_measure_candidates()
    assert len(candidates) == 4
    assert all((genome_of(each.sch.trace) is not None) == (strategy == "genetic") for each in candidates)


def test_an_unknown_strategy_is_named():
    with pytest.raises(UserError, match="--strategy random does not exist; choose one of genetic"):
        context(workload(kernel_of("matmul").func), TARGET, "random", 0)


def test_importing_intrinsics_leaves_the_inspection_of_frames_as_it_was():
    before = inspect.stack, inspect.getouterframes
    import_intrinsics()
    assert (inspect.stack, inspect.getouterframes) == before
    assert TensorIntrin.get("dot_16x4_vnni") is not None

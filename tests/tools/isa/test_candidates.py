# SPDX-License-Identifier: Apache-2.0
"""Candidates that a model prices in the place of a device, with answers of a compiler that is none."""

import json
from pathlib import Path

import pytest
from tvm.s_tir import meta_schedule as ms

from matmul_model import matmuls
from smartmem_tvm import from_onnx
from smartmem_tvm.deploy.build import optimize
from smartmem_tvm.executor.workers import Answer
from smartmem_tvm.target import parse_target
from smartmem_tvm.tools.isa import candidates
from smartmem_tvm.tools.isa.candidates import ModelJudge, Modelled, ModelRunner, Prices
from smartmem_tvm.tools.isa.compiler import ENDED, Compiled
from smartmem_tvm.tune.candidate_faults import failure_of
from smartmem_tvm.tune.tasks import tasks_of
from smartmem_tvm.tune.trace import schedule_of

TARGET = parse_target("adreno-740")
CODE = """Native code for unnamed CL shader:
mad.f32 r0.y, r0.x, r1.x, r0.y
end
; CL: outputs
; CL prog 1/1: 2 instr, 0 nops, 0 half, 4 full, 16 max_waves, 0 double_threadsize
"""
GRID = "// Work group 64 1 1, grid {} 1 1\n"


class Here:
    """Workers of this process."""

    def map(self, function, jobs):
        return [Answer(function(job)) for job in jobs]


def candidate(*blocks, memory=1e-6):
    return Modelled({f"main{n}": GRID.format(each) for n, each in enumerate(blocks)}, [memory, 0.0, 0.0, 0.0])


def compiling(asked, refused=()):
    """A compiler that refuses some programs, given as (blocks, why)."""
    why = {GRID.format(blocks): reason for blocks, reason in refused}

    def compile_all(sources, gpu):
        asked.append((gpu, len(sources)))
        return {name: Compiled(refused=why[s]) if s in why else Compiled(CODE, 1024) for name, s in sources.items()}

    return compile_all


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_kernels_of_a_batch_are_shared_among_processes_and_prices_are_of_their_candidates(processes):
    asked = []
    prices = Prices(TARGET, processes, compiling(asked))
    alone = [prices.of([each])[0].value for each in (candidate(600), candidate(600, 1200), candidate(1200))]
    asked.clear()
    together = prices.of([candidate(600), candidate(600, 1200), candidate(1200)])
    assert [each.value for each in together] == alone and alone[0] < alone[2] < alone[1]
    assert sum(count for _, count in asked) == 2 and {gpu for gpu, _ in asked} == {740}  # of equal kernels one
    assert len(asked) == min(processes, 2)


@pytest.mark.parametrize(
    ("why", "said", "at_fault"),
    [("input.cl:3: error", "Mesa refuses the kernel: input.cl:3", True), (ENDED, "ended while", False)],
)
def test_a_refused_kernel_is_the_candidate_s_fault_and_an_ended_compiler_is_not(why, said, at_fault):
    found = Prices(TARGET, 2, compiling([], [(60, why)])).of([candidate(600, 60), candidate(600)])
    assert found[0].value is None and said in found[0].error and found[1].value > 0
    assert failure_of(found[0].error).candidate == at_fault


def test_a_kernel_whose_loops_are_not_read_has_no_price():
    loop = CODE.replace("mad", "l1:\nmad").replace("end\n", "br p0.x, #l1\nend\n")
    prices = Prices(TARGET, 1, lambda sources, gpu: dict.fromkeys(sources, Compiled(loop, 1024)))
    (found,) = prices.of([candidate(6)])
    assert found.value is None and "trips of a loop" in found.error and failure_of(found.error).candidate


def test_the_runner_reads_what_workers_wrote():
    good = candidate(600)
    runner = ModelRunner(Prices(TARGET, 1, compiling([], [(6, "no")])))
    files = [candidates.write(each, TARGET) for each in (good, candidate(6, 6))]
    jobs = [ms.runner.RunnerInput(file, "opencl", []) for file in files]
    first, second = (future.result() for future in runner.run(jobs))
    (price,) = Prices(TARGET, 1, compiling([])).of([good])
    assert list(map(float, first.run_secs)) == [price.value] and first.error_msg is None
    assert second.run_secs is None and "refuses" in str(second.error_msg)
    assert json.loads(Path(files[0]).read_text())["memory"] == good.memory


def test_untuned_kernels_are_scheduled_written_and_modelled(tmp_path):
    with TARGET:
        graph = optimize(from_onnx(matmuls(tmp_path / "m.onnx", (64, 96), (96, 80))), TARGET)
        tasks = tasks_of(graph, TARGET)
    asked, mods = [], [task.mod for task in tasks]
    judge = ModelJudge(Prices(TARGET, 1, compiling(asked)), Here())
    judge.learn(mods, TARGET)
    assert asked == [(740, 2)] and len({judge.untuned_seconds(mod, TARGET) for mod in mods}) == 2
    made = candidates.untuned((mods[0], TARGET))
    (source,) = made.sources.values()
    assert "// Work group" in source and "__kernel" in source and max(made.memory) > 0 and len(made.memory) == 4
    record = ms.database.TuningRecord(trace_of(tasks[0]), ms.database.MemoryDatabase().commit_workload(mods[0]), [5e-7])
    (verdict,) = judge.judge(mods[0], TARGET, [record])
    assert verdict.seconds == 5e-7 and verdict.untuned == judge.untuned_seconds(mods[0], TARGET) and not verdict.wrong


def trace_of(task):
    return schedule_of(task.mod, task.kernel.seed, task.kernel.space).trace

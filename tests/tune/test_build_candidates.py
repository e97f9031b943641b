# SPDX-License-Identifier: Apache-2.0
"""Candidates built in workers that stay."""

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.s_tir.meta_schedule import database
from tvm.s_tir.meta_schedule.builder import BuilderInput

from opencl_parser import sources
from opencl_rules import check_opencl
from smartmem_tvm.deploy.kernel_code import kernel_code
from smartmem_tvm.deploy.this_machine import ThisMachine, measuring_worker
from smartmem_tvm.errors import UserError
from smartmem_tvm.executor.job_devices import Executor
from smartmem_tvm.target import device_of, parse_target
from smartmem_tvm.tune.build_candidates import build_candidate, building_workers, local_builder
from smartmem_tvm.tune.candidate_faults import failure_of
from smartmem_tvm.tune.kernel_search import SearchSession, Tools
from smartmem_tvm.tune.measure_candidates import CandidateRunner
from smartmem_tvm.tune.metaschedule import context
from smartmem_tvm.tune.parameters import FILE, arguments
from smartmem_tvm.tune.trace import schedule_of
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload
from tunable_kernels import CASES, textured_tasks

TARGET = parse_target("llvm")


@pytest.mark.slow
def test_one_candidate_that_fails_costs_no_other_in_this_batch_or_the_next():
    mod = workload(with_constants(CASES["matmul"].func(), ()))
    kernel = TunableKernel.of(mod["main"], TARGET)
    good = BuilderInput(schedule_of(mod, kernel.seed, kernel.space).mod, TARGET)
    bad = BuilderInput(good.mod, parse_target("cuda"))  # whose rules know nothing of these decisions
    builder = local_builder(building_workers(1))
    for _ in range(2):
        results = builder.build([good, bad, good])
        assert [result.error_msg is None for result in results] == [True, False, True]
        assert failure_of(str(results[1].error_msg)).candidate
        for result in (results[0], results[2]):
            for file in (Path(result.artifact_path), Path(result.artifact_path).with_name(FILE)):
                file.unlink()
            file.parent.rmdir()


@pytest.mark.slow
def test_a_candidate_that_takes_too_long_is_its_own_fault():
    mod = workload(with_constants(CASES["matmul"].func(), ()))
    kernel = TunableKernel.of(mod["main"], TARGET)
    (result,) = local_builder(building_workers(1, patience=0.01)).build(
        [BuilderInput(schedule_of(mod, kernel.seed, kernel.space).mod, TARGET)]
    )
    assert "took longer than 0.01 s" in result.error_msg and failure_of(str(result.error_msg)).candidate


def candidate(mod, kernel, genes=()):
    return schedule_of(mod, {**kernel.seed, **dict(genes)}, kernel.space).mod


def long_matmul(target):
    """A sum over 520 terms in two halves, which a third device kernel adds up."""
    mod = workload(with_constants(CASES["long matmul"].func(), ()))
    kernel = TunableKernel.of(mod["main"], target)
    return candidate(mod, kernel, {"gpu_matmul.splits": 2, "gpu_matmul.depth": 8, "gpu_matmul.slices": 1}.items())


def test_what_a_kernel_keeps_on_the_device_is_a_parameter():
    target = parse_target("opencl")
    built = build_candidate(long_matmul(target), target, kernel_code)
    assert [each.shape for each in built.parameters[:3]] == [(9, 520), (520, 12), (9, 12)]
    assert len(built.parameters) == 4 and check_opencl(built.module)
    tensors = arguments(built.parameters, device_of(target))
    built.module["main"](*tensors)
    a, b, found = (each.numpy() for each in tensors[:3])
    np.testing.assert_allclose(found, a @ b, rtol=1e-5)


def test_a_candidate_for_a_phone_has_the_functions_of_a_network_there():
    target = parse_target("adreno-740")
    x = te.placeholder((64, 100), name="x")
    func = te.create_prim_func([x, topi.nn.softmax(x)]).with_attr("global_symbol", "main")
    kernel = TunableKernel.of(func, target)
    built = build_candidate(candidate(workload(func), kernel, ()), target, kernel_code)
    assert "native_exp2" in "".join(sources(built.module))


def test_candidates_for_cuda_are_generated_without_a_device():
    target = parse_target("cuda")
    built = build_candidate(long_matmul(target), target, kernel_code)
    if not tvm.cuda(0).exist:
        source = "".join(each.inspect_source() for each in built.module.imports)
        assert source.count("__global__") >= 2
    assert len(built.parameters) == 4


def test_a_candidate_is_built_with_the_textures_of_its_kernel():
    target = parse_target("opencl-texture")
    for task in textured_tasks(target):
        built = build_candidate(candidate(task.mod, task.kernel), target, kernel_code)
        check_opencl(built.module)
        scopes = [str(param.scope()) for param in task.mod["main"].params]
        assert [each.scope for each in built.parameters] == scopes
        assert "image2d_array_t" in "".join(sources(built.module))
        built.module["main"](*arguments(built.parameters, device_of(target)))


def test_a_schedule_of_tvms_that_writes_no_whole_texels_is_refused():
    target = parse_target("opencl-texture")
    task = context(textured_tasks(target)[0].mod, target, "replay", 0)
    task.pre_tuning(4, 4, task.generate_design_space(), database.MemoryDatabase(), None)
    schedule = task.generate_measure_candidates()[0].sch
    with pytest.raises(UserError, match="texel"):
        build_candidate(schedule.mod, target, kernel_code)


@pytest.mark.slow
def test_textures_go_through_workers_and_are_measured():
    target = parse_target("opencl-texture")
    builder, runner = (
        local_builder(building_workers(1), kernel_code),
        CandidateRunner(Executor(ThisMachine(target), measuring_worker())),
    )
    tools = Tools(builder, runner, database.MemoryDatabase())
    for task in textured_tasks(target):
        trials = SearchSession(task.mod, target, "genetic", tools, trials=2, batch=2).step()
        assert len(trials) == 2 and all(trial.seconds is not None for trial in trials), trials

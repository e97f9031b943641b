# SPDX-License-Identifier: Apache-2.0
"""Candidates built in workers that stay."""

from pathlib import Path

import pytest
from tvm.s_tir.meta_schedule.builder import BuilderInput

from smartmem_tvm.deploy.target import parse_target
from smartmem_tvm.tune.build import local_builder
from smartmem_tvm.tune.faults import failure_of
from smartmem_tvm.tune.kernel import TunableKernel, with_constants, workload
from smartmem_tvm.tune.trace import schedule_of
from tunable_kernels import CASES

TARGET = parse_target("llvm")


@pytest.mark.slow
def test_one_candidate_that_fails_costs_no_other_in_this_batch_or_the_next():
    mod = workload(with_constants(CASES["matmul"].func(), ()))
    kernel = TunableKernel.of(mod["main"], TARGET)
    good = BuilderInput(schedule_of(mod, kernel.seed, kernel.space).mod, TARGET)
    bad = BuilderInput(good.mod, parse_target("cuda"))  # whose rules know nothing of these decisions
    builder = local_builder(1)
    for _ in range(2):
        results = builder.build([good, bad, good])
        assert [result.error_msg is None for result in results] == [True, False, True]
        assert failure_of(str(results[1].error_msg)).candidate
        for result in (results[0], results[2]):
            Path(result.artifact_path).unlink()
            Path(result.artifact_path).parent.rmdir()


@pytest.mark.slow
def test_a_candidate_that_takes_too_long_is_its_own_fault():
    mod = workload(with_constants(CASES["matmul"].func(), ()))
    kernel = TunableKernel.of(mod["main"], TARGET)
    (result,) = local_builder(1, patience=0.01).build(
        [BuilderInput(schedule_of(mod, kernel.seed, kernel.space).mod, TARGET)]
    )
    assert "too long or failed" in result.error_msg and failure_of(str(result.error_msg)).candidate

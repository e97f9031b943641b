# SPDX-License-Identifier: Apache-2.0
"""Records of both spaces, in one database, applied to a module."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from helpers import constant, module, run
from smartmem_tvm.ir.exchange_constants import constant_operands
from smartmem_tvm.schedule import PackWeights, ScheduleKernels
from smartmem_tvm.schedule.core.decisions import DECISIONS
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.apply_records import ApplyRecords, of_target
from smartmem_tvm.tune.metaschedule import context, cost_model
from smartmem_tvm.tune.trace import schedule_of
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload

TARGET = parse_target("llvm")
WEIGHT = constant(40, 72)


@pytest.fixture
def model() -> tvm.IRModule:
    """A matmul with a weight, and something that was not tuned."""
    mod = module(lambda x: relax.op.exp(relax.op.matmul(x, WEIGHT)), (31, 40))
    return relax.transform.LegalizeOps()(mod)


def matmul_of(mod):
    gvar = next(g for g in mod.get_global_vars() if g.name_hint == "matmul")
    return gvar, with_constants(mod[gvar], constant_operands(mod)[gvar])


def commit(database, func, sch, seconds, target=TARGET):
    kept = database.commit_workload(workload(func))
    arguments = ms.arg_info.ArgInfo.from_entry_func(workload(func))
    database.commit_tuning_record(ms.database.TuningRecord(sch.trace, kept, [seconds], target, arguments))


def ours(func, width: int):
    kernel = TunableKernel.of(func, TARGET)
    return schedule_of(workload(func), {**kernel.seed, "matmul.width": width}, kernel.space)


def theirs(func):
    """A random candidate of TVM's own space."""
    task = context(workload(func), TARGET, "replay", 0)
    task.pre_tuning(4, 2, task.generate_design_space(), ms.database.MemoryDatabase(), cost_model("replay"))
    return task.generate_measure_candidates()[0].sch


def finished(mod):
    with TARGET:
        return tvm.transform.Sequential([PackWeights(), ScheduleKernels()])(mod)


@pytest.mark.device
@pytest.mark.parametrize("fastest", ["ours", "theirs"])
def test_the_fastest_record_counts_whoever_made_it(model, fastest, tmp_path):
    _, func = matmul_of(model)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    commit(database, func, ours(func, 16), 3.0)
    commit(database, func, ours(func, 32), 1.0 if fastest == "ours" else 2.0)
    commit(database, func, theirs(func), 2.0 if fastest == "ours" else 1.0)
    with TARGET:
        applied = ApplyRecords(ms.database.JSONDatabase(work_dir=str(tmp_path)))(model)
    # TVM names a kernel anew whose constants it has rewritten.
    name = "matmul" if fastest == "ours" else "matmul_prepacked"
    found = applied[next(g for g in applied.get_global_vars() if g.name_hint == name)]
    assert (DECISIONS in found.attrs) == (fastest == "ours")
    assert bool(found.attrs.get("tirx.is_scheduled", 0)) == (fastest == "theirs")
    if fastest == "ours":
        assert found.attrs[DECISIONS]["matmul.width"] == 32
        packed = finished(applied)
        kernel = packed[next(g for g in packed.get_global_vars() if g.name_hint == "matmul")]
        assert int(kernel.params[1].shape[-1]) == 32
    (x,) = (np.random.default_rng(0).standard_normal((31, 40)).astype("float32"),)
    np.testing.assert_allclose(run(finished(applied), x)[0], np.exp(x @ WEIGHT.value.numpy()), rtol=1e-4)


def test_records_for_other_targets_and_failures_do_not_count(model):
    _, func = matmul_of(model)
    database = ms.database.MemoryDatabase()
    commit(database, func, ours(func, 16), 1.0, tvm.target.Target({"kind": "llvm", "num-cores": 61}))
    commit(database, func, ours(func, 32), 1e10)
    assert len(of_target(database, TARGET).get_all_tuning_records()) == 0
    with TARGET:
        tvm.ir.assert_structural_equal(ApplyRecords(database)(model), model)


def test_what_passes_noted_on_a_kernel_stays_and_hides_no_record(model):
    gvar, func = matmul_of(model)
    database = ms.database.MemoryDatabase()
    commit(database, func, ours(func, 16), 1.0)
    noted = model.clone()
    noted[gvar] = model[gvar].with_attr("smartmem.note", "kept")
    with TARGET:
        found = ApplyRecords(database)(noted)[gvar]
    assert found.attrs["smartmem.note"] == "kept" and DECISIONS in found.attrs
    assert "global_symbol" not in found.attrs

# SPDX-License-Identifier: Apache-2.0
"""Kernels get the memory that they work in from the graph."""

import pytest
import tvm
from tvm import relax, te, tirx, topi

from helpers import assert_same_results, bindings, legal, op, random
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.transform import LiftWorkspaces
from smartmem_tvm.transform.memory.lift_workspaces import workspaces

ROWS, COLUMNS = 4, 6


def two_steps(results: int = 1) -> tirx.PrimFunc:
    """The columns' sums, then the exponentials of one or two things computed from them: the sums are between."""
    x = te.placeholder((ROWS, COLUMNS), name="x")
    sums = topi.sum(x, axis=0)
    outputs = [topi.exp(sums), topi.tanh(sums)][:results]
    return te.create_prim_func([x, *outputs]).without_attr("global_symbol")


def graph(func: tirx.PrimFunc, results: int = 1) -> tvm.IRModule:
    """Two calls of the kernel, what both compute, added up."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, COLUMNS), "float32"))
    types = [relax.TensorType((COLUMNS,), "float32")] * results
    with builder.function("main", [x]):
        with builder.dataflow():
            kernel = builder.add_func(func, "two_steps")
            total = None
            for argument in (x, builder.emit(op.multiply(x, relax.const(0.5)))):
                value = builder.emit(relax.call_tir(kernel, argument, types if results > 1 else types[0]))
                for index in range(results):
                    part = builder.emit(relax.TupleGetItem(value, index)) if results > 1 else value
                    total = part if total is None else builder.emit(op.add(total, part))
            output = builder.emit_output(total)
        builder.emit_func_output(output)
    return relax.transform.LegalizeOps()(builder.get())


@pytest.mark.parametrize("results", [1, 2])
def test_the_workspace_becomes_a_result_that_nobody_reads(results):
    before = graph(two_steps(results), results)
    after = LiftWorkspaces()(before)
    (old,), new = workspaces(before["two_steps"]), after["two_steps"]
    assert len(new.params) == len(before["two_steps"].params) + 1
    assert workspaces(new) == [] and tuple(new.params[-1].shape) == tuple(old.shape)
    assert_same_results(before, after, *random((ROWS, COLUMNS)))


def test_scheduled_kernels_stay_scheduled():
    with tvm.target.Target("llvm"):
        before = ScheduleKernels()(graph(two_steps()))
    after = LiftWorkspaces()(before)
    assert dict(after["two_steps"].attrs) == dict(before["two_steps"].attrs)
    assert_same_results(before, after, *random((ROWS, COLUMNS)))


def test_modules_without_workspaces_stay_as_they_are():
    mod = legal(lambda x: op.exp(x), (ROWS, COLUMNS))
    assert LiftWorkspaces()(mod).same_as(mod) or bindings(LiftWorkspaces()(mod)) == bindings(mod)


def test_a_kernel_that_others_can_call_stays_as_it_is():
    before = graph(two_steps().with_attr("global_symbol", "two_steps"))
    assert len(workspaces(LiftWorkspaces()(before)["two_steps"])) == 1


def test_the_input_module_is_not_changed():
    before = graph(two_steps())
    LiftWorkspaces()(before)
    assert len(workspaces(before["two_steps"])) == 1
    assert len(before["two_steps"].params) == 2

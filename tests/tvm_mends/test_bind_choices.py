# SPDX-License-Identifier: Apache-2.0
"""BindChoices: what a choice between numbers reads is read before it."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from smartmem_tvm.ir.walk import collect, contains, loads
from smartmem_tvm.tvm_mends import BindChoices, StoreBound

N = 100


def module(build, dtype="float32") -> tvm.IRModule:
    x, y = (te.placeholder((N,), dtype, name=name) for name in "xy")
    mask = te.placeholder((N,), "bool", name="mask")
    output = te.compute((N,), lambda i: build(x, y, mask, i))
    return tvm.IRModule({"main": te.create_prim_func([x, y, mask, output]).with_attr("global_symbol", "main")})


def masked(x, y, mask, i):
    return tirx.Select(mask[i], x[i], y[i] * 2)


def bound(mod, target="llvm"):
    with tvm.target.Target(target):
        return BindChoices()(mod)


def test_values_are_read_before_the_choice():
    mod = bound(module(masked))
    (select,) = collect(mod["main"].body, tirx.Select)
    assert not loads(select.true_value) and not loads(select.false_value) and loads(select.condition)
    assert len(collect(mod["main"].body, tirx.Bind)) == 2


def test_the_numbers_are_those_that_are_chosen():
    def nested(x, y, mask, i):
        return tirx.Select(x[i] > 0, tirx.Select(mask[i], x[i], y[i]), masked(x, y, mask, i)) + x[i]

    rng = np.random.default_rng(0)
    x, y, mask = rng.standard_normal(N).astype("float32"), rng.standard_normal(N).astype("float32"), rng.random(N) > 0.5
    out = tvm.runtime.tensor(np.zeros(N, "float32"))
    tvm.compile(bound(module(nested)), target="llvm")["main"](*map(tvm.runtime.tensor, (x, y, mask)), out)
    np.testing.assert_array_equal(out.numpy(), np.where(x > 0, np.where(mask, x, y), np.where(mask, x, y * 2)) + x)


def test_nothing_is_bound_in_a_vector_that_is_taken_apart():
    """TVM takes the store of ``asinh`` out of the loop, and would leave behind what is bound there."""
    schedule = s_tir.Schedule(module(lambda x, y, mask, i: tirx.asinh(masked(x, y, mask, i))))
    schedule.vectorize(schedule.split(schedule.get_loops(schedule.get_sblock("compute"))[0], [None, 4])[1])
    mod = bound(schedule.mod)
    assert not contains(mod["main"].body, tirx.Bind)
    tvm.compile(mod, target="llvm")


def test_vectors_of_bfloat16_are_chosen_right():
    """What has a name is in memory: `StoreBound` has an element there for each lane."""
    schedule = s_tir.Schedule(module(lambda x, y, mask, i: tirx.Select(mask[i], x[i], y[i]), "bfloat16"))
    schedule.vectorize(schedule.split(schedule.get_loops(schedule.get_sblock("compute"))[0], [None, 4])[1])
    mod = StoreBound()(bound(schedule.mod))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, N)).astype(ml_dtypes.bfloat16)
    mask, out = rng.random(N) > 0.5, tvm.runtime.tensor(np.zeros(N, ml_dtypes.bfloat16))
    tvm.compile(mod, target="llvm")["main"](*map(tvm.runtime.tensor, (x, y, mask)), out)
    np.testing.assert_array_equal(out.numpy(), np.where(mask, x, y))


def test_llvm_reads_whole_vectors():
    """It reads what is behind a branch lane by lane, or under a mask."""

    def masks(mod) -> bool:
        target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
        return "llvm.masked.load" in tvm.compile(mod, target=target).mod.inspect_source("ll")

    assert masks(module(masked)) and not masks(bound(module(masked)))


@pytest.mark.parametrize(
    "build",
    [
        lambda x, y, mask, i: tirx.Select(i > 0, x[i - 1], y[i]),
        lambda x, y, mask, i: tirx.if_then_else(i > 0, masked(x, y, mask, i - 1), y[i]),
        lambda x, y, mask, i: x[i] + y[i],
    ],
    ids=["a place decides", "within a branch", "no choice"],
)
def test_what_may_not_be_read_stays_behind_its_condition(build):
    mod = module(build)
    assert not contains(bound(mod)["main"].body, tirx.Bind)


def test_other_targets_are_left_alone():
    mod = module(masked)
    assert bound(mod, "opencl").same_as(mod)
    assert BindChoices()(mod).same_as(mod)

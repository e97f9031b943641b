# SPDX-License-Identifier: Apache-2.0
"""The pass: which rule answers, what is left alone, what a failing rule does."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi
from tvm.s_tir.schedule import ScheduleError
from tvm.script import ir as I
from tvm.script import tirx as T

from smartmem_tvm.schedule import (
    CpuParams,
    Elementwise,
    Fallback,
    InSequence,
    Matmul,
    Rows,
    Rule,
    ScheduleKernels,
    default_rules,
)
from smartmem_tvm.schedule.core.rule import record_of
from smartmem_tvm.schedule.cpu.tile import best_tile, column_tiles, fits, step_of
from smartmem_tvm.schedule.schedule_kernels import kernel_rules

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})


def module(inputs, output) -> tvm.IRModule:
    return tvm.IRModule({"main": te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main")})


def doubled() -> tvm.IRModule:
    x = te.placeholder((64,), name="x")
    return module([x], te.compute((64,), lambda i: x[i] + x[i]))


class Fails(Rule):
    def apply(self, func, target):
        tvm.s_tir.Schedule(func).get_loops("no such block")


class Never(Rule):
    def apply(self, func, target):
        return None


def test_the_first_rule_that_answers_wins():
    asked = []

    class Spy(Rule):
        def apply(self, func, target):
            asked.append(target.kind.name)
            return tvm.s_tir.Schedule(func.with_attr("by", "spy"))

    with TARGET:
        result = ScheduleKernels([Never(), Spy(), Fails()])(doubled())
    assert asked == ["llvm"] and result["main"].attrs["by"] == "spy"


def test_a_rule_that_fails_is_recorded_and_the_next_one_asked():
    with TARGET:
        alone = ScheduleKernels([Fails()])(doubled())["main"]
        helped = ScheduleKernels([Fails(), *default_rules()])(doubled())["main"]
    assert "Fails" in alone.attrs["smartmem.schedule_refusals"][0]
    assert "tirx.is_scheduled" not in alone.attrs and helped.attrs["tirx.is_scheduled"]


def rule_of(*tensors) -> dict:
    with TARGET:
        return kernel_rules(ScheduleKernels()(module(tensors[:-1], tensors[-1])))["main"]


def test_the_rule_is_recorded():
    x, w = te.placeholder((32, 32), name="x"), te.placeholder((32, 32), name="w")
    made_by = rule_of(x, w, topi.matmul(x, w))
    assert made_by == {"name": "Matmul", "family": "contractions that have rows and columns", "catch_all": False}


def test_rules_in_sequence_are_recorded_one_by_one():
    x = te.placeholder((70, 33), name="x")
    alone = rule_of(x, topi.argmax(x, axis=1))
    assert (alone["name"], alone["catch_all"]) == ("Fallback + Elementwise", True)
    image, weights = te.placeholder((1, 8, 14, 14), name="x"), te.placeholder((48, 8, 3, 3), name="w")
    padded = rule_of(image, weights, topi.nn.conv2d(image, weights, 1, 1, 1))
    assert " + " in padded["name"] and not padded["catch_all"]
    assert "; then " in padded["family"]


def test_the_rule_is_kept_when_the_kernel_is_lowered():
    with TARGET:
        mod = ScheduleKernels()(doubled())
        lowered = tvm.tirx.transform.BindTarget(TARGET)(mod)
    assert kernel_rules(lowered) == kernel_rules(mod)


def test_kernels_that_no_rule_knows_are_plain_loops():
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    assert rule_of(x, te.compute((n,), lambda i: x[i] + x[i])) == {
        "name": "-",
        "family": "no rule knows it: plain loops",
        "catch_all": True,
    }


def test_kernels_that_tvm_made_are_its_own():
    x = te.placeholder((8, 16), name="x")
    made_by = rule_of(x, topi.sort(x))
    assert (made_by["name"], made_by["catch_all"]) == ("TVM", False)


@pytest.mark.parametrize("rule", default_rules(), ids=lambda rule: rule.name)
def test_rules_say_what_they_are_for(rule):
    assert rule.name and rule.family and not rule.family.endswith(".")


def test_scheduled_functions_stay_as_they_are():
    with TARGET:
        once = ScheduleKernels()(doubled())
        twice = ScheduleKernels()(once)
    assert tvm_ffi.structural_equal(once["main"], twice["main"])


def test_opaque_functions_stay_as_they_are():
    @I.ir_module(s_tir=True)
    class Mod:
        @T.prim_func(s_tir=True)
        def main(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
            for i in range(4):
                with T.sblock("outer"):
                    v = T.axis.spatial(4, i)
                    T.reads(x[v])
                    T.writes(y[v])
                    y[v] = x[v]
                    T.evaluate(T.call_extern("int32", "touch", y.data))

    with TARGET:
        assert tvm_ffi.structural_equal(ScheduleKernels()(Mod)["main"], Mod["main"])


def test_symbolic_shapes_stay_as_they_are():
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    mod = module([x], te.compute((n,), lambda i: x[i] + x[i]))
    with TARGET:
        assert tvm_ffi.structural_equal(ScheduleKernels()(mod)["main"], mod["main"])


@pytest.mark.parametrize(("kind", "other"), [("llvm", "gpu"), ("opencl", "cpu"), ("c", "")])
def test_rules_leave_other_targets_alone(kind, other):
    """A rule lies in the folder of the targets it is for."""
    rules = [rule for rule in default_rules() if f".schedule.{other}" in type(rule).__module__]
    func, target = doubled()["main"], tvm.target.Target(kind, host="llvm")
    assert rules and all(rule.apply(func, target) is None for rule in rules)


def test_the_target_comes_from_the_function_or_the_context():
    mod = doubled()
    with pytest.raises(ValueError, match="with target"):
        ScheduleKernels()(mod)
    bound = tvm.IRModule({"main": mod["main"].with_attr("target", TARGET)})
    assert ScheduleKernels()(bound)["main"].attrs["tirx.is_scheduled"]


def test_the_input_module_is_not_changed():
    mod = doubled()
    before = mod["main"]
    with TARGET:
        ScheduleKernels()(mod)
    assert mod["main"].same_as(before)


def test_kernels_of_several_families_are_cut_into_runs(check):
    """A product and a softmax over its rows, then a product that sums over these rows: two runs, a buffer between."""
    a, b, c = (te.placeholder(s, name=n) for s, n in (((20, 30), "a"), ((30, 40), "b"), ((20, 10), "c")))
    k, q = te.reduce_axis((0, 30), "k"), te.reduce_axis((0, 20), "q")
    scores = te.compute((20, 40), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="scores")
    weights = topi.nn.softmax(scores)
    output = te.compute((40, 10), lambda i, j: te.sum(weights[q, i] * c[q, j], q), name="output")

    def reference(a, b, c):
        e = np.exp(a @ b - (a @ b).max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True)).T @ c

    check([a, b, c], output, reference, "InSequence")


def test_tuple_reductions_run_in_their_own_order(check):
    x = te.placeholder((70, 33), name="x")
    check([x], topi.argmax(x, axis=1), lambda x: x.argmax(1), "InSequence")


def test_two_outputs_of_one_kernel_are_both_written():
    x = te.placeholder((6, 10), name="x")
    a = te.compute((6, 10), lambda i, j: x[i, j] * tirx.const(2.0, "float32"), name="a")
    b = te.compute((6, 10), lambda i, j: a[i, j] + x[i, j], name="b")
    mod = tvm.IRModule({"main": te.create_prim_func([x, a, b]).with_attr("global_symbol", "main")})
    with TARGET:
        library = tvm.compile(ScheduleKernels()(mod), target=TARGET)
    array = np.arange(60, dtype="float32").reshape(6, 10)
    first, second = (tvm.runtime.tensor(np.zeros_like(array)) for _ in range(2))
    library["main"](tvm.runtime.tensor(array), first, second)
    np.testing.assert_array_equal(first.numpy(), 2 * array)
    np.testing.assert_array_equal(second.numpy(), 3 * array)


def test_a_rule_can_be_used_alone():
    x, w = te.placeholder((32, 32), name="x"), te.placeholder((32, 32), name="w")
    func = te.create_prim_func([x, w, topi.matmul(x, w)])
    assert Matmul().apply(func, TARGET) is not None
    assert Matmul().apply(doubled()["main"], TARGET) is None
    assert InSequence([Matmul()]).apply(doubled()["main"], TARGET) is None


def test_a_sequence_keeps_nothing_of_a_kernel():
    """What made a schedule is noted on the kernel, not on the rule that is asked about the next one."""
    sequence, x = InSequence([Rows(), Elementwise(), Fallback()]), te.placeholder((70, 33), name="x")
    before, func = dict(vars(sequence)), te.create_prim_func([x, topi.argmax(x, axis=1)])
    made = sequence.apply(func, TARGET)
    assert record_of(sequence, made)["name"] == "Fallback + Elementwise"
    assert vars(sequence) == before and sequence.record["name"] == "InSequence"


def test_parameters_follow_the_target():
    avx2 = CpuParams.of(tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 6}))
    avx512 = CpuParams.of(tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"}))
    plain = CpuParams.of(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"}))
    assert (avx2.lanes, avx2.registers, avx2.cores) == (8, 16, 6)
    assert (avx512.lanes, avx512.registers) == (16, 32) and plain.lanes == 4


@pytest.mark.parametrize("lanes,registers", [(4, 16), (8, 16), (16, 32)])
def test_the_tile_fits_and_covers(lanes, registers):
    params = CpuParams(lanes=lanes, registers=registers)
    for rows in (1, 2, 5, 49, 96, 197, 3136):
        for columns in (1, 3, 7, 10, 49, 288, 1000):
            tile = best_tile(rows, columns, params)
            assert 1 <= tile.height <= rows and 1 <= tile.width <= columns
            assert fits(tile.height, tile.width, params)
            rest = columns % tile.width
            assert sum(column_tiles(rest, params)) == rest


def test_the_tile_is_chosen_by_cost():
    """49 rows: 7 divides them; a tile that leaves one row over costs another pass."""
    params = CpuParams()
    assert best_tile(3136, 288, params).height * best_tile(3136, 288, params).width >= 64
    tile = best_tile(7, 16, params)
    assert 7 % tile.height == 0 or step_of(7 % tile.height, tile.width, params).cycles(params) > 0
    assert step_of(6, 16, params).cycles(params) < 2 * step_of(3, 16, params).cycles(params) + 1


def test_schedule_errors_are_the_only_ones_swallowed():
    class Broken(Rule):
        def apply(self, func, target):
            raise RuntimeError("a bug")

    with TARGET, pytest.raises(RuntimeError, match="a bug"):
        ScheduleKernels([Broken()])(doubled())
    assert issubclass(ScheduleError, Exception)

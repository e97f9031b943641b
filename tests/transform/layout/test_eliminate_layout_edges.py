# SPDX-License-Identifier: Apache-2.0
"""EliminateLayout at the edges of a graph: results, inputs, neighbours without functional form."""

import numpy as np
import pytest
from tvm import ir
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from helpers import assert_same_results, bindings, calls, count_up, legal, move, nodes, op, random, run
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.movement import movement
from smartmem_tvm.transform import EliminateLayout, FuseOperators, FuseRows


def eliminated(mod):
    return EliminateLayout()(mod)


def decisions(mod) -> dict:
    """Operator name -> (action, reason) of the pass."""
    entries = [e for e in read_log(mod) if e["pass"] == "EliminateLayout"]
    return {e["operator"].split(" ")[0]: (e["action"], e.get("reason")) for e in entries}


def test_a_result_is_written_by_a_kernel_of_its_own():
    """It has no reader that could take it over; fusion may still let its producer write it."""
    before = legal(lambda x: op.permute_dims(op.exp(x)), (4, 6))
    after = eliminated(before)
    assert len(calls(after)) == 2
    assert decisions(after)["transpose"] == ("kept", "it is a result of the function")
    assert_same_results(before, after, *random((4, 6)))


def test_a_result_that_is_also_read():
    """The result stays, its reader still reads past it."""

    def build(x):
        view = op.permute_dims(x)
        return view, op.exp(view)

    before = legal(build, (4, 6))
    after = eliminated(before)
    assert len(calls(after)) == 2
    assert [node.args[0].name for node in nodes(after)] == ["x0", "x0"]
    assert_same_results(before, after, *random((4, 6)))


def test_a_chain_to_a_result_becomes_one_kernel():
    before = legal(lambda x: op.reshape(op.permute_dims(op.reshape(x, (4, 6))), (3, 8)), (24,))
    after = eliminated(before)
    assert len(calls(after)) == 1
    np.testing.assert_array_equal(run(after, count_up(24))[0], count_up(24).reshape(4, 6).T.reshape(3, 8))


def test_identity_chain_to_a_result_of_a_kernel():
    """The kernel in front writes the result itself."""
    before = legal(lambda x: op.permute_dims(op.permute_dims(op.exp(x))), (4, 4))
    after = eliminated(before)
    assert len(calls(after)) == 1
    assert_same_results(before, after, *random((4, 4)))


def test_identity_chain_read_by_others_too():
    def build(x):
        base = op.exp(x)
        return op.permute_dims(op.permute_dims(base)), op.negative(base), op.sqrt(op.permute_dims(base))

    before = legal(build, (4, 4))
    after = eliminated(before)
    assert len(calls(after)) == 3
    assert_same_results(before, after, *random((4, 4)))


def test_identity_of_an_input_is_a_result():
    """The function returns its argument; there is no kernel."""
    before = legal(lambda x: op.permute_dims(op.permute_dims(x)), (4, 4))
    after = eliminated(before)
    assert calls(after) == []
    assert_same_results(before, after, *random((4, 4)))


def test_identity_of_another_result():
    def build(x):
        base = op.exp(x)
        return base, op.reshape(op.reshape(base, (16,)), (4, 4))

    before = legal(build, (4, 4))
    after = eliminated(before)
    assert len(calls(after)) == 1
    assert_same_results(before, after, *random((4, 4)))


def test_two_identities_of_one_kernel():
    def build(x):
        base = op.exp(x)
        return op.reshape(op.reshape(base, (16,)), (4, 4)), op.permute_dims(op.permute_dims(base))

    before = legal(build, (4, 4))
    after = eliminated(before)
    assert len(calls(after)) == 1
    assert_same_results(before, after, *random((4, 4)))


def test_an_input_viewed_as_a_result():
    before = legal(lambda x: op.reshape(x, (3, 8)), (4, 6))
    after = eliminated(before)
    assert len(calls(after)) == 1
    assert_same_results(before, after, *random((4, 6)))


def test_between_two_opaque_operators():
    """sort has no functional form: neither side can take the transpose."""
    before = legal(lambda x: op.sort(op.permute_dims(op.sort(x)), axis=1), (4, 6))
    after = eliminated(before)
    assert decisions(after)["transpose"] == ("kept", "a reader has no functional form")
    assert [b.value.op.name for b in bindings(after)] == ["relax.sort", "relax.call_tir", "relax.sort"]


def test_before_an_opaque_and_a_transparent_reader():
    """The view is kept for the one and read through by the other."""

    def build(x):
        view = op.permute_dims(x)
        return op.sort(view), op.exp(view)

    after = eliminated(legal(build, (4, 6)))
    view, reader = (node for node in nodes(after) if node.kernel is not None)
    assert (movement(view.kernel) is None, movement(reader.kernel) is None) == (False, True)
    assert reader.args[0].name == "x0"


def test_a_chain_before_an_opaque_reader_is_one_movement():
    after = eliminated(legal(lambda x: op.sort(op.permute_dims(op.reshape(x, (4, 6)))), (24,)))
    (view,) = (node for node in nodes(after) if node.kernel is not None)
    x = count_up(24)
    np.testing.assert_array_equal(move(view, x0=x), x.reshape(4, 6).T)


def test_an_opaque_prim_func_is_called_as_before():
    @I.ir_module
    class Module:
        @T.prim_func(private=True)
        def by_hand(x: T.Buffer((6, 4), "float32"), y: T.Buffer((6, 4), "float32")):
            T.func_attr({"tirx.noalias": True})
            for i, j in T.grid(6, 4):
                y[i, j] = x[i, j] * T.float32(2)

        @T.prim_func(private=True, s_tir=True)
        def transpose(x: T.Buffer((4, 6), "float32"), y: T.Buffer((6, 4), "float32")):
            for i, j in T.grid(6, 4):
                with T.sblock("t"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = x[vj, vi]

        @R.function
        def main(x: R.Tensor((4, 6), "float32")) -> R.Tensor((6, 4), "float32"):
            cls = Module
            with R.dataflow():
                a = R.call_tir(cls.transpose, (x,), out_ty=R.Tensor((6, 4), "float32"))
                b = R.call_tir(cls.by_hand, (a,), out_ty=R.Tensor((6, 4), "float32"))
                R.output(b)
            return b

    after = eliminated(Module)
    assert "by_hand" in calls(after)
    ir.assert_structural_equal(after["by_hand"], Module["by_hand"])
    assert decisions(after)["transpose"] == ("kept", "a reader has no functional form")
    (x,) = random((4, 6))
    np.testing.assert_array_equal(run(after, x)[0], x.T * 2)


@I.ir_module
class InPlace:
    """The transpose is read after its source was overwritten: it must have been copied before."""

    @T.prim_func(private=True, s_tir=True)
    def double(x: T.Buffer((4, 4), "float32"), y: T.Buffer((4, 4), "float32")):
        for i, j in T.grid(4, 4):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def transpose(x: T.Buffer((4, 4), "float32"), y: T.Buffer((4, 4), "float32")):
        for i, j in T.grid(4, 4):
            with T.sblock("transpose"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vj, vi]

    @T.prim_func(private=True, s_tir=True)
    def increase(x: T.Buffer((4, 4), "float32")):
        for i, j in T.grid(4, 4):
            with T.sblock("increase"):
                vi, vj = T.axis.remap("SS", [i, j])
                x[vi, vj] = x[vi, vj] + T.float32(100)

    @T.prim_func(private=True, s_tir=True)
    def add(x: T.Buffer((4, 4), "float32"), y: T.Buffer((4, 4), "float32"), z: T.Buffer((4, 4), "float32")):
        for i, j in T.grid(4, 4):
            with T.sblock("add"):
                vi, vj = T.axis.remap("SS", [i, j])
                z[vi, vj] = x[vi, vj] + y[vi, vj]

    @R.function
    def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        cls = InPlace
        with R.dataflow():
            a = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4, 4), "float32"))
            t = R.call_tir(cls.transpose, (a,), out_ty=R.Tensor((4, 4), "float32"))
            b = R.call_tir_inplace(cls.increase, (a,), inplace_indices=[0], out_ty=R.Tensor((4, 4), "float32"))
            c = R.call_tir(cls.add, (t, b), out_ty=R.Tensor((4, 4), "float32"))
            R.output(c)
        return c


@pytest.mark.parametrize("each", [EliminateLayout, FuseRows, FuseOperators])
def test_in_place_calls(each):
    x = count_up(4, 4)
    np.testing.assert_array_equal(run(each()(InPlace), x)[0], 2 * x.T + 2 * x + 100)


def test_one_value_as_two_results():
    before = legal(lambda x: (op.exp(op.permute_dims(x)), op.exp(op.permute_dims(x))), (4, 6))
    after = eliminated(before)
    assert len(calls(after)) <= len(calls(before))
    assert_same_results(before, after, *random((4, 6)))

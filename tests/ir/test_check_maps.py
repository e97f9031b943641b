# SPDX-License-Identifier: Apache-2.0
"""Composed index maps are compared with their chains; wrong ones are found, right ones pass."""

import numpy as np
import pytest
import tvm
from tvm import tirx

import smartmem_tvm as sm
from helpers import constant, module, op
from smartmem_tvm.errors import CheckError
from smartmem_tvm.ir import check_maps as check_module
from smartmem_tvm.ir import graph as graph_module
from smartmem_tvm.ir.check_maps import check_maps, check_rewritten
from smartmem_tvm.ir.kernel import Kernel, Stage
from smartmem_tvm.ir.strength_reduction import Simplifier, strength_reduction

CHECKED = sm.Options(check="maps")


def window(x):
    """A roll and a window partition in front of a softmax, and what undoes both after it."""
    rolled = op.concat([op.strided_slice(x, [1], [3], [8]), op.strided_slice(x, [1], [0], [3])], axis=1)
    windows = op.permute_dims(op.reshape(rolled, (2, 4, 2, 6)), (0, 2, 1, 3))
    return op.reshape(op.permute_dims(op.nn.softmax(windows), (0, 2, 1, 3)), (2, 8, 6))


def padded(x):
    a = op.nn.pad(op.flip(x, 1), (0, 0, 1, 2, 0, 0))
    return op.where(op.greater(a, op.zeros_like(a)), op.exp(a), op.reshape(op.permute_dims(a, (0, 2, 1)), (2, 11, 6)))


def product(x):
    joined = op.matmul(op.reshape(op.permute_dims(x, (0, 2, 1)), (6, 16)), constant(16, 4))
    return op.permute_dims(joined)


def gathered(x):
    index = tvm.relax.const(np.array([5, 0, 3], "int64"))
    return op.reshape(op.nn.relu(op.take(op.permute_dims(x, (2, 0, 1)), index, axis=0)), (6, 8))


NETWORKS = [window, padded, product, gathered]


@pytest.mark.parametrize("build", NETWORKS)
@pytest.mark.parametrize("simplify", [True, False])
def test_right_maps_pass(build, simplify):
    sm.optimize(module(build, (2, 8, 6)), options=sm.Options(check="maps", simplify=simplify))


@pytest.mark.parametrize("build", NETWORKS)
def test_a_wrong_simplification_is_found(build, monkeypatch):
    """An offset that is lost, as TVM's own simplifier does to the second of two rotations."""
    right = Simplifier.index

    def wrong(self, expr):
        simple = right(self, expr)
        return simple.a if isinstance(simple, tirx.Add | tirx.FloorMod | tirx.Sub) else simple

    monkeypatch.setattr(Simplifier, "index", wrong)
    mod = module(build, (2, 8, 6))
    with pytest.raises(CheckError, match=r"Check of index maps: .* at index \[.*\] these read .* and the composed"):
        sm.optimize(mod, options=CHECKED)
    sm.optimize(mod)


def test_a_wrong_condition_is_found(monkeypatch):
    right = Simplifier._lazy_select
    monkeypatch.setattr(
        Simplifier, "_lazy_select", lambda self, call: call.args[1] if len(call.args) == 3 else right(self, call)
    )
    with pytest.raises(CheckError, match="index maps"):
        sm.optimize(module(padded, (2, 8, 6)), options=CHECKED)


def test_the_message_names_operators_index_and_reads(monkeypatch):
    """A merge that reads one row too far; nothing is wrong before it."""
    right = graph_module.merge

    def shifted(*args, **kwargs):
        kernel = right(*args, **kwargs)
        stage = kernel.last
        first = stage.spatial[0]
        point = {first: tirx.floormod(first + 1, stage.extents[first])}
        store = tirx.BufferStore(
            stage.body.buffer, graph_module.substitute(stage.body.value, point), stage.body.indices
        )
        return Kernel(kernel.inputs, kernel.outputs, (*kernel.stages[:-1], Stage(stage.name, stage.iters, store)))

    monkeypatch.setattr(graph_module, "merge", shifted)
    mod = module(lambda x: op.exp(op.permute_dims(x, (1, 0))), (3, 5))
    with pytest.raises(CheckError) as caught:
        sm.optimize(mod, options=CHECKED)
    message = str(caught.value)
    assert "transpose" in message and "exp" in message and "at index [0, 0]" in message
    assert "[0, 0] (value" in message and "[0, 1] (value" in message and "--no-simplify" in message
    assert caught.value.what == "Check of index maps"


def test_large_results_are_sampled(monkeypatch):
    asked = []
    right = check_module._points
    monkeypatch.setattr(check_module, "_points", lambda shape: asked.append(right(shape)) or asked[-1])
    sm.optimize(module(lambda x: op.exp(op.permute_dims(x, (1, 0))), (512, 257)), options=CHECKED)
    for points in asked:
        assert len(points[0]) == 2**14 + 4
        places = set(zip(points[0].tolist(), points[1].tolist()))
        assert {(0, 0), (0, 511), (256, 0), (256, 511)} <= places or {(0, 0), (511, 256)} <= places


def test_costs_nothing_when_off(monkeypatch):
    monkeypatch.setattr(check_module, "check_same", lambda *_: 1 / 0)
    monkeypatch.setattr(graph_module, "check_same", lambda *_: 1 / 0)
    sm.optimize(module(window, (2, 8, 6)))


def test_is_off_again_after_an_error():
    with pytest.raises(ZeroDivisionError), check_maps(True):
        raise ZeroDivisionError
    assert not check_module.checks_maps()


def test_kernels_without_a_functional_form_are_left_alone():
    x, out = (tirx.decl_buffer((4,), "float32", name) for name in ("x", "out"))
    i = tirx.Var("i", "int64")
    iters = (tirx.IterVar(tvm.ir.Range(0, tirx.IntImm("int64", 4)), i, 0),)
    two = tirx.SeqStmt([tirx.BufferStore(out, x[i], [i]), tirx.BufferStore(out, x[0], [i])])
    kernel = Kernel((x,), (out,), (Stage("two", iters, two),))
    with check_maps(True), strength_reduction(True):
        check_rewritten(kernel, kernel)

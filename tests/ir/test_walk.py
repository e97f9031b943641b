# SPDX-License-Identifier: Apache-2.0
"""What walks over expressions and statements find, in which order, and when the caller's own code runs."""

import pytest
import tvm_ffi
from tvm import ir, tirx

from smartmem_tvm.ir import walk
from smartmem_tvm.ir.walk import collect, collect_outside, contains, loads, stores


@pytest.fixture
def buffers():
    return [tirx.decl_buffer((8,), "int32", name) for name in ("data", "picked", "out")]


@pytest.fixture
def gather(buffers):
    """``out[i] = data[picked[i] + 1] + (i + 1)``."""
    data, picked, out = buffers
    i = tirx.Var("i", "int32")
    return tirx.BufferStore(out, data[picked[i] + 1] + (i + 1), [i])


def names(found) -> list[str]:
    return [load.source.name for load in found]


def test_collect_finds_the_inner_before_the_outer_and_the_root_too(gather):
    assert names(collect(gather, ir.TensorLoad)) == ["picked", "data"]
    assert names(collect(gather.value.a, ir.TensorLoad)) == ["picked", "data"]
    assert collect(gather, tirx.BufferStore)[0].same_as(gather)
    assert collect(gather, tirx.For) == []


def test_collect_takes_several_kinds_and_each_kind_with_what_derives_from_it(gather):
    kinds = [type(each) for each in collect(gather, (tirx.Add, ir.TensorLoad))]
    assert kinds == [ir.TensorLoad, tirx.Add, ir.TensorLoad, tirx.Add, tirx.Add]
    assert len(collect(gather, tirx.Stmt)) == 1


def test_a_shared_node_is_found_as_often_as_it_occurs(buffers):
    load = buffers[0][tirx.Var("i", "int32")]
    assert len(loads(load * load)) == 2


def test_collect_outside_leaves_out_what_is_in_a_skipped_node(gather):
    assert len(collect(gather, tirx.Add)) == 3
    assert len(collect_outside(gather, tirx.Add, ir.TensorLoad)) == 2
    outer, inner = collect_outside(gather, tirx.Add, ir.TensorLoad)
    assert outer.same_as(gather.value) and inner.same_as(gather.value.b)


def test_collect_outside_finds_a_skipped_node_itself_if_it_is_of_the_kind(gather):
    assert names(collect_outside(gather, ir.TensorLoad, ir.TensorLoad)) == ["data"]


def test_loads_and_stores(buffers, gather):
    out = buffers[2]
    assert names(loads(gather)) == ["picked", "data"]
    assert [store.buffer for store in stores(tirx.SeqStmt([gather, gather]))] == [out, out]


def test_contains(gather):
    assert contains(gather, ir.TensorLoad)
    assert contains(gather, ir.TensorLoad, lambda load: load.source.name == "picked")
    assert not contains(gather, ir.TensorLoad, lambda load: load.source.name == "out")
    assert not contains(gather, tirx.Cast)


def test_the_callers_code_runs_after_the_walk_so_that_it_may_raise(gather, monkeypatch):
    """An error that leaves a callback of a walk corrupts memory: nothing of the caller's may be called from one."""
    walking, ran = [], []

    def watched(*args, **kwargs):
        walking.append(True)
        result = tvm_walk(*args, **kwargs)
        walking.pop()
        return result

    def refuse(load) -> bool:
        ran.append(bool(walking))
        raise KeyError(load.source.name)

    tvm_walk = tvm_ffi.structural_walk
    monkeypatch.setattr(walk.tvm_ffi, "structural_walk", watched)
    with pytest.raises(KeyError, match="picked"):
        contains(gather, ir.TensorLoad, refuse)
    assert ran == [False]
    assert names(loads(gather)) == ["picked", "data"]

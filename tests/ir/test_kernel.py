# SPDX-License-Identifier: Apache-2.0
"""Reading PrimFuncs into functional form and writing them back; what has no functional form is refused by name."""

import re

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script import tirx as T

from helpers import legal, nodes, only_node, op, random, run
from smartmem_tvm.ir.kernel import Opaque, emit, parse, shape_of

FUNCTIONS = {
    "transpose": (op.permute_dims, (4, 6)),
    "matmul": (op.matmul, (4, 6), (6, 3)),
    "softmax": (op.nn.softmax, (4, 6)),
    "conv2d": (lambda x, w: op.nn.conv2d(x, w, padding=1), (1, 3, 5, 5), (2, 3, 3, 3)),
    "argmax": (lambda x: op.argmax(x, axis=1), (4, 6)),
    "unit axes": (lambda x: op.expand_dims(x, 0), (1, 6)),
    "pad": (lambda x: op.nn.pad(x, (1, 0, 0, 2)), (4, 6)),
    "split": (lambda x: tuple(op.split(x, 2, axis=1)[i] for i in range(2)), (4, 6)),
    "batch norm": (lambda x, *p: op.nn.batch_norm(x, *p, axis=1)[0], (2, 3, 4, 4), (3,), (3,), (3,), (3,)),
}


def functions(instance) -> list:
    mod = legal(*instance)
    return [func for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]


@pytest.mark.parametrize("instance", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_emit_is_the_inverse_of_parse(instance):
    """Writing and reading again changes nothing any more."""
    for func in functions(instance):
        once = emit(parse(func))
        twice = emit(parse(once))
        assert_structurally_equal(once, twice)
        assert [shape_of(p) for p in once.params] == [shape_of(p) for p in func.params]


def assert_structurally_equal(first, second) -> None:
    assert tvm_ffi.structural_equal(first, second, map_free_vars=True)


@pytest.mark.parametrize("instance", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_emitted_functions_compute_the_same(instance):
    before = legal(*instance)
    after = before.clone()
    for gvar, func in before.functions.items():
        if isinstance(func, tvm.tirx.PrimFunc):
            after.update_func(gvar, emit(parse(func), dict(func.attrs)))
    arrays = random(*instance[1:])
    for mine, expected in zip(run(after, *arrays), run(before, *arrays), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_equal_operators_become_equal_functions():
    """Names of variables and buffers do not matter, so that layers share one function."""
    first, second = (
        nodes(legal(lambda x, y, flip=flip: op.add(*((y, x) if flip else (x, y))), (4, 6), (4, 6)))[0].kernel
        for flip in (False, True)
    )
    assert_structurally_equal(emit(first), emit(second))


def test_stages_and_iterators():
    kernel = only_node(lambda x: op.mean(x, axis=1), (4, 6)).kernel
    total, average = kernel.stages
    assert [total.extents[v] for v in total.spatial] == [4]
    assert [total.extents[v] for v in total.reduction] == [6]
    assert total.init is not None
    assert not total.is_pointwise
    assert average.is_pointwise
    assert kernel.readers(kernel.inputs[0]) == [total]
    assert kernel.intermediates == total.outputs
    assert kernel.last is average


def test_a_tuple_reduction_writes_two_buffers():
    total, last = only_node(lambda x: op.argmax(x, axis=1), (4, 6)).kernel.stages
    assert len(total.outputs) == 2
    assert last.is_pointwise


def test_an_accumulator_is_no_operand():
    (stage,) = only_node(op.matmul, (4, 6), (6, 3)).kernel.stages
    assert len(stage.loads) == 2
    assert not any(load.source.same_as(stage.outputs[0]) for load in stage.loads)


@T.prim_func(s_tir=True)
def in_place_pointer(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.sblock("call"):
            vi = T.axis.spatial(4, i)
            T.reads(x[vi])
            T.writes(y[vi])
            y[vi] = T.call_extern("float32", "f", x.data)


@T.prim_func(s_tir=True)
def scheduled(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in T.vectorized(4):
        with T.sblock("copy"):
            vi = T.axis.spatial(4, i)
            y[vi] = x[vi]


@T.prim_func(s_tir=True)
def tiled(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i, j in T.grid(2, 2):
        with T.sblock("copy"):
            vi = T.axis.spatial(4, i * 2 + j)
            y[vi] = x[vi]


@T.prim_func(s_tir=True)
def predicated(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.sblock("copy"):
            T.where(i < 3)
            vi = T.axis.spatial(4, i)
            y[vi] = x[vi]


@T.prim_func(s_tir=True)
def no_block(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        y[i] = x[i]


@T.prim_func(s_tir=True)
def data_dependent_loop(x: T.Buffer((4,), "float32"), n: T.Buffer((4,), "int32"), y: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.sblock("sum"):
            vi = T.axis.spatial(4, i)
            y[vi] = T.float32(0)
            for j in T.serial(n[vi]):
                y[vi] = y[vi] + x[j]


@T.prim_func(s_tir=True)
def symbolic(var_x: T.handle, var_y: T.handle, n: T.int64):
    x = T.match_buffer(var_x, (n,))
    y = T.match_buffer(var_y, (n,))
    for i in T.serial(n):
        with T.sblock("copy"):
            vi = T.axis.spatial(n, i)
            y[vi] = x[vi]


@T.prim_func(s_tir=True)
def output_first(y: T.Buffer((4,), "float32"), x: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.sblock("copy"):
            vi = T.axis.spatial(4, i)
            y[vi] = x[vi]


REFUSED = [
    (scheduled, "already scheduled"),
    (tiled, "binds vi"),
    (predicated, "predicate"),
    (no_block, "not a root block"),
    (data_dependent_loop, "contains For"),
    (symbolic, "unknown extent"),
    (output_first, "output comes before an input"),
    (in_place_pointer, "address of a buffer"),
]


@pytest.mark.parametrize(("func", "reason"), REFUSED, ids=lambda v: getattr(v, "__name__", None))
def test_what_has_no_functional_form_is_named(func, reason):
    with pytest.raises(Opaque) as caught:
        parse(func)
    assert re.search(reason, str(caught.value))


def test_opaque_functions_are_kept_with_the_reason():
    """scatter_elements is written with the IR builder; top-k and sort stay Relax operators."""
    (node,) = nodes(legal(lambda x, i, u: op.scatter_elements(x, i, u), (4, 6), ((2, 6), "int64"), (2, 6)))
    assert node.kernel is None
    assert "not in a block" in node.reason
    (node,) = nodes(legal(lambda x: op.sort(x), (4, 6)))
    assert node.kernel is None
    assert node.reason == "not a call_tir"

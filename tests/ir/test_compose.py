# SPDX-License-Identifier: Apache-2.0
"""Substituting kernels into each other: reading through maps, re-indexing reductions, normal form."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx

from helpers import assert_same_results, calls, legal, nodes, only_node, op, random
from smartmem_tvm.ir.compose import (
    can_reindex,
    fresh,
    inline,
    merge,
    reindex,
    replace_loads,
    simplify,
    single_map,
    split_outputs,
    tidy,
)
from smartmem_tvm.ir.kernel import Kernel, Opaque, emit, parse, shape_of
from smartmem_tvm.transform import EliminateLayout, FuseOperators


def kernel(build, *shapes):
    return only_node(build, *shapes).kernel


def evaluated(kern, *arrays) -> np.ndarray:
    """Compile one kernel and run it; `arrays` in the order of its inputs."""
    func = emit(kern).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": func}), "llvm")
    (out,) = kern.outputs
    result = tvm.runtime.tensor(np.zeros(shape_of(out), str(out.dtype)))
    built["main"](*map(tvm.runtime.tensor, arrays), result)
    return result.numpy()


def test_inline_reads_through_the_value():
    """A pointwise producer that computes is substituted like one that moves: its value, at the reader's index."""
    double, transpose = nodes(legal(lambda x: op.permute_dims(op.multiply(x, relax.const(2.0))), (4, 6)))
    joined = merge(transpose.kernel, transpose.kernel.inputs[0], double.kernel, inline_output=True)
    (stage,) = joined.stages
    (load,) = (ld for ld in stage.loads if ld.source.same_as(double.kernel.inputs[0]))
    assert [index.same_as(var) for index, var in zip(load.indices, reversed(stage.spatial))] == [True, True]
    doubled = double.kernel.outputs[0]
    reader = replace_loads(transpose.kernel.last, transpose.kernel.inputs[0], lambda i: doubled[tuple(i)])
    alone = inline(reader, double.kernel.last)
    assert tvm_ffi.structural_equal(alone.body.value, stage.body.value, map_free_vars=True)


def test_merge_inlines_into_every_stage():
    """Softmax reads its operand in two stages; both read through the transpose."""
    transpose, softmax = nodes(legal(lambda x: op.nn.softmax(op.permute_dims(x)), (4, 6)))
    both = merge(softmax.kernel, softmax.kernel.inputs[0], transpose.kernel, inline_output=True)
    assert both.inputs == transpose.kernel.inputs
    assert len(both.stages) == len(softmax.kernel.stages)
    (x,) = random((4, 6))
    exps = np.exp(x.T - x.T.max(1, keepdims=True))
    np.testing.assert_allclose(evaluated(both, x), exps / exps.sum(1, keepdims=True), rtol=1e-5)


def test_merge_behind_a_reduction_keeps_its_stage():
    matmul, relu = nodes(legal(lambda x, w: op.nn.relu(op.matmul(x, w)), (4, 6), (6, 5)))
    both = merge(relu.kernel, relu.kernel.inputs[0], matmul.kernel, inline_output=False)
    assert [bool(stage.reduction) for stage in both.stages] == [True, False]
    assert len(both.intermediates) == 1
    x, w = random((4, 6), (6, 5))
    np.testing.assert_allclose(evaluated(both, x, w), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)


def test_reindex_runs_a_reduction_over_its_readers_space():
    """The transposed sum is computed transposed: element g(o) where o is needed."""
    total, view = nodes(legal(lambda x: op.reshape(op.sum(x, axis=2), (3, 8)), (4, 6, 5)))
    stage = total.kernel.last
    consumer = replace_loads(view.kernel.last, view.kernel.inputs[0], lambda i: stage.outputs[0][tuple(i)])
    indices = single_map(consumer, stage.outputs[0])
    moved, reader = reindex(stage, stage.outputs[0], indices, consumer)
    assert [moved.extents[v] for v in moved.spatial] == [3, 8]
    assert [moved.extents[v] for v in moved.reduction] == [5]
    assert shape_of(moved.outputs[0]) == (3, 8)
    (load,) = (ld for ld in reader.loads if ld.source.same_as(moved.outputs[0]))
    assert [i.same_as(v) for i, v in zip(load.indices, reader.spatial)] == [True, True]


def test_reindexed_values():
    total, view = nodes(legal(lambda x: op.permute_dims(op.sum(x, axis=2)), (4, 6, 5)))
    both = merge(view.kernel, view.kernel.inputs[0], total.kernel, inline_output=False)
    (x,) = random((4, 6, 5))
    np.testing.assert_allclose(evaluated(both, x), x.sum(2).T, rtol=1e-5, atol=1e-6)
    assert [both.stages[0].extents[v] for v in both.stages[0].spatial] == [6, 4]


def test_a_reduction_that_other_stages_read_too_is_not_reindexed():
    """The last stage reads it transposed, a softmax in between reads it as it is."""

    def build(x):
        total = op.sum(x, axis=2)
        return op.add(op.permute_dims(total), op.nn.softmax(total))

    total, softmax, add = nodes(EliminateLayout()(legal(build, (4, 4, 5))))
    row = total.kernel.outputs[0]
    written = {total.var: row, softmax.var: softmax.kernel.outputs[0]}
    links = {softmax.kernel.inputs[0]: row, **{b: written[a] for b, a in zip(add.kernel.inputs, add.args)}}

    def linked(stage):
        for old, new in links.items():
            stage = replace_loads(stage, old, lambda indices, new=new: new[tuple(indices)])
        return stage

    stages = (*total.kernel.stages, *(linked(s) for s in (*softmax.kernel.stages, *add.kernel.stages)))
    whole = tidy(Kernel(total.kernel.inputs, add.kernel.outputs, stages))
    (x,) = random((4, 4, 5))
    y = x.sum(2)
    powers = np.exp(y - y.max(1, keepdims=True))
    np.testing.assert_allclose(evaluated(whole, x), y.T + powers / powers.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_tuple_reductions_are_not_reindexed():
    assert not can_reindex(kernel(lambda x: op.argmax(x, axis=1), (4, 6)).stages[0])
    assert can_reindex(kernel(lambda x: op.sum(x, axis=1), (4, 6)).stages[0])


def test_single_map():
    two_ways = nodes(EliminateLayout()(legal(lambda x: op.add(x, op.permute_dims(x)), (4, 4))))[0].kernel
    one_way = nodes(legal(lambda x: op.multiply(x, x), (4, 4)))[0].kernel
    assert single_map(two_ways.last, two_ways.inputs[0]) is None
    same = single_map(one_way.last, one_way.inputs[0])
    assert [index.same_as(var) for index, var in zip(same, one_way.last.spatial)] == [True, True]
    assert single_map(one_way.last, tirx.decl_buffer((4, 4))) is None, "not read at all"


def test_fresh_kernels_share_nothing():
    first = kernel(op.nn.softmax, (4, 6))
    second = fresh(first)
    buffers = {b for k in (first, second) for b in (*k.inputs, *k.outputs, *k.intermediates)}
    assert len(buffers) == 2 * (2 + len(first.intermediates))
    variables = {it.var for k in (first, second) for s in k.stages for it in s.iters}
    assert len(variables) == 2 * sum(len(s.iters) for s in first.stages)
    (x,) = random((4, 6))
    np.testing.assert_array_equal(evaluated(second, x), evaluated(first, x))


def test_tidy_inlines_pointwise_stages():
    """GELU is legalised as a chain of element-wise blocks and ends as one stage."""
    mod = legal(op.nn.gelu, (4, 6))
    whole = simplify(parse(mod[calls(mod)[0]]))
    assert len(whole.stages) > 1
    assert len(tidy(whole).stages) == 1
    (x,) = random((4, 6))
    np.testing.assert_allclose(evaluated(tidy(whole), x), evaluated(whole, x), rtol=1e-6)


def test_tidy_keeps_stages_that_reductions_read():
    """The exponentials of a softmax are summed: inlined there, each would be computed twice."""
    softmax = kernel(op.nn.softmax, (4, 6))
    assert len(tidy(softmax).stages) == len(softmax.stages) == 4


def test_tidy_drops_stages_nobody_reads():
    softmax = kernel(op.nn.softmax, (4, 6))
    first = replace(softmax, outputs=softmax.stages[0].outputs)
    assert len(tidy(replace(first, stages=softmax.stages[:2])).stages) == 1


def sums_of(*terms):
    """``out[i] = sum_k term0 + 2 * sum_k term1``, of x[i, k]."""
    x = te.placeholder((4, 4), "float32", "x")

    def total(term, k):
        return te.compute((4,), lambda i: te.sum(term(x, i, k), k), "s")

    sums = [total(term, te.reduce_axis((0, 4), "k")) for term in terms]
    return tidy(parse(te.create_prim_func([x, te.compute((4,), lambda i: sums[0][i] + 2 * sums[1][i], "out")])))


def test_tidy_merges_equal_reductions():
    """A variance computes the mean again that is subtracted; sums along other axes differ."""
    rows, columns, (x,) = lambda x, i, k: x[i, k], lambda x, i, k: x[k, i], random((4, 4))
    for terms, reductions, expected in (
        ((rows, rows), 1, 3 * x.sum(1)),
        ((rows, columns), 2, x.sum(1) + 2 * x.sum(0)),
    ):
        kern = sums_of(*terms)
        assert sum(bool(s.reduction) for s in kern.stages) == reductions
        np.testing.assert_allclose(evaluated(kern, x), expected, rtol=1e-5)


def test_tidy_keeps_what_would_be_written_out_too_often():
    """A value that is read over and over is not copied into each place."""

    def doubling(x):
        for _ in range(12):
            x = op.add(x, x)
        return x

    before = legal(doubling, (4, 6))
    after = FuseOperators()(before)
    assert len(calls(after)) < 12
    assert max(len(stage.loads) for node in nodes(after) for stage in node.kernel.stages) <= 64
    assert_same_results(before, after, *random((4, 6)))


def test_split_outputs():
    mod = legal(lambda x: tuple(op.split(x, 3, axis=1)[i] for i in range(3)), (4, 6))
    parts = [node.kernel for node in nodes(mod)]
    assert [shape_of(p.outputs[0]) for p in parts] == [(4, 2)] * 3
    (x,) = random((4, 6))
    for i, part in enumerate(parts):
        np.testing.assert_array_equal(evaluated(part, x), x[:, 2 * i : 2 * i + 2])


def test_a_block_with_several_outputs_is_not_split():
    argmax = kernel(lambda x: op.argmax(x, axis=1), (4, 6))
    with pytest.raises(Opaque, match="several outputs"):
        split_outputs(replace(argmax, outputs=argmax.stages[0].outputs, stages=argmax.stages[:1]))


def test_unused_inputs_are_dropped():
    """A part of a concat reads one source only."""
    mod = legal(lambda x, y: op.strided_slice(op.concat([x, y], 0), [0], [0], [4]), (4, 6), (3, 6))
    concat, part = nodes(mod)
    both = merge(part.kernel, part.kernel.inputs[0], concat.kernel, inline_output=True)
    assert [b.name for b in both.inputs] == ["x0"]

# SPDX-License-Identifier: Apache-2.0
"""Layout transitions are counted from kernels: graphs with a known number of them, of whichever pipeline they are."""

import pytest
import tvm

from helpers import constant, graph, legal, module, op
from smartmem_tvm import graph_cost
from smartmem_tvm.analysis.transitions import strided
from smartmem_tvm.pipeline import BASELINE_PHASES, Options, run_phases
from smartmem_tvm.planner.texture_choice import PlacementTrial
from smartmem_tvm.transform import EliminateLayout, FuseOperators, PlaceTextures, SelectLayout
from texture_modules import TARGET


def weight(*shape):
    return constant(*shape)


def found(mod) -> list:
    """Tensors that are read with strides: shape, dimensions that are wanted, memory, whether the order is fixed."""
    return [
        (each.shape, [set(demand.dims) for demand in each.stored.unserved], each.memory, each.fixed is not None)
        for each in strided(graph(mod))
    ]


def in_textures(mod):
    return PlaceTextures(TARGET, lambda _: PlacementTrial())(mod)


def chain(x):
    return op.matmul(op.matmul(x, weight(8, 12)), weight(12, 4))


def columns(x):
    """The sum runs along axis 1 of what the matmul writes."""
    return op.sum(op.matmul(x, weight(8, 12)), axis=1)


def both_ways(x):
    """One sum along each of two axes of the matmul's result."""
    y = op.matmul(x, weight(8, 12))
    return op.sum(y, axis=1), op.sum(y, axis=2)


def turned(x):
    """Two transposes that TVM keeps as kernels."""
    return op.permute_dims(op.nn.relu(op.matmul(op.permute_dims(x), weight(8, 12))))


def test_matmuls_read_along_what_was_written():
    assert found(legal(chain, (4, 8))) == []


def test_a_sum_along_another_axis():
    assert found(legal(columns, (4, 4, 8))) == [((4, 4, 12), [{1}], "buffer", False)]


def test_a_tensor_counts_once_however_many_readers_it_disappoints():
    def build(x):
        y = op.matmul(x, weight(8, 12))
        return op.sum(y, axis=1), op.max(y, axis=1)

    assert found(legal(build, (4, 4, 8))) == [((4, 4, 12), [{1}, {1}], "buffer", False)]


def test_inputs_and_results_count_although_their_order_is_the_user_s():
    assert found(legal(lambda x: op.sum(x, axis=0), (4, 8))) == [((4, 8), [{0}], "buffer", True)]

    def build(x):
        y = op.matmul(x, weight(8, 12))
        return y, op.sum(y, axis=0)

    assert found(legal(build, (4, 8))) == [((4, 12), [{0}], "buffer", True)]


def test_an_image_in_patches_is_read_in_runs():
    """A step along a row of the patch is one along a row of the image; a window that slides wants the channels."""

    def patches(x):
        return op.nn.conv2d(x, weight(6, 3, 4, 4), strides=4)

    assert found(legal(patches, (1, 3, 16, 16))) == []
    assert found(legal(lambda x: op.nn.conv2d(x, weight(6, 3, 4, 4)), (1, 3, 16, 16))) != []
    assert found(legal(lambda x: op.nn.conv2d(x, weight(6, 3, 2, 2), strides=2), (1, 3, 16, 16))) != []


def test_weights_are_no_activations():
    mod = legal(op.matmul, (4, 8), (8, 12))
    assert [shape for shape, *_ in found(mod)] == [(8, 12)]
    lifted = mod.clone()
    lifted.update_func(mod.get_global_var("main"), mod["main"].with_attr("num_input", 1))
    assert found(lifted) == []


def test_a_buffer_serves_one_dimension_and_a_texture_two():
    mod = legal(both_ways, (4, 4, 8))
    assert len(found(mod)) == len(found(SelectLayout()(mod))) == 1
    placed = in_textures(mod)
    assert next(node.kernel.outputs[0].scope() for node in graph(placed) if node.kernel) == "global.texture"
    assert found(placed) == []


def test_a_texture_that_serves_neither():
    """Three dimensions are wanted, of which a texture has two."""

    def build(x):
        y = op.matmul(x, weight(8, 12))
        return op.sum(y, axis=0), op.sum(y, axis=1), op.sum(y, axis=2)

    (entry,) = found(in_textures(legal(build, (4, 8, 8))))
    assert entry[2] == "texture" and len(entry[1]) == 1


@pytest.mark.parametrize(
    "build, shape, copies, after",
    [(chain, (4, 8), 0, 0), (columns, (4, 4, 8), 0, 0), (turned, (8, 4), 2, 1), (both_ways, (4, 4, 8), 0, 1)],
)
def test_each_pipeline_is_counted_in_the_same_way(build, shape, copies, after):
    """TVM's copies count where they are kernels; what we fold into an index counts where its access has strides."""
    with tvm.target.Target("llvm"):
        theirs = run_phases(module(build, shape), BASELINE_PHASES, Options())
    cost = graph_cost(theirs)
    assert cost.layout_kernels == copies
    assert cost.layout_transitions == copies + len(found(theirs))
    ours = SelectLayout()(FuseOperators()(EliminateLayout()(legal(build, shape))))
    assert graph_cost(ours).layout_transitions == after

# SPDX-License-Identifier: Apache-2.0
"""Quadrant, mapping type and reduction dimensions, with the papers' tables as the oracle."""

import numpy as np
import pytest
from tvm import relax, tirx

from helpers import legal, module, nodes, only_node, op
from smartmem_tvm.analysis.classify import cost, mapping_type, quadrant, reduction_dims
from smartmem_tvm.ir.movement import movement, readable
from smartmem_tvm.tables.mapping_type import MappingType
from smartmem_tvm.tables.quadrant import TABLE_3, Quadrant

IMAGE, WEIGHT = (1, 4, 6, 6), (8, 4, 3, 3)


def space_to_depth(x):
    """What exporters write for SpaceToDepth: split both axes, carry the blocks to the front, merge."""
    n, c, h, w = (int(dim) for dim in x.ty.shape)
    blocks = op.permute_dims(op.reshape(x, (n, c, h // 2, 2, w // 2, 2)), (0, 3, 5, 1, 2, 4))
    return op.reshape(blocks, (n, 4 * c, h // 2, w // 2))


def depth_to_space(x):
    n, c, h, w = (int(dim) for dim in x.ty.shape)
    blocks = op.permute_dims(op.reshape(x, (n, 2, 2, c // 4, h, w)), (0, 3, 4, 1, 5, 2))
    return op.reshape(blocks, (n, c // 4, 2 * h, 2 * w))


# Instances of each row of SmartMem Table 3, as Relax operators.
INSTANCES = {
    "Conv": [
        (op.nn.conv2d, IMAGE, WEIGHT),
        (lambda x, w: op.nn.conv2d(x, w, padding=1, strides=2), IMAGE, WEIGHT),
        (lambda x, w: op.nn.conv2d(x, w, groups=4), IMAGE, (4, 1, 3, 3)),
        (op.nn.conv1d, (1, 4, 6), (8, 4, 3)),
        (lambda x, w: op.nn.conv2d_transpose(x, w, strides=2), IMAGE, (4, 2, 3, 3)),
    ],
    "MatMul": [(op.matmul, (4, 6), (6, 3)), (op.matmul, (2, 4, 6), (2, 6, 3)), (op.matmul, (2, 4, 6), (6,))],
    "LayerNorm": [(lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]), (4, 6), (6,), (6,))],
    "Softmax": [(op.nn.softmax, (4, 6)), (lambda x: op.nn.softmax(x, axis=0), (4, 6))],
    "Reshape": [(lambda x: op.reshape(x, (3, 8)), (4, 6)), (lambda x: op.reshape(x, (4, 4)), (2, 2, 4))],
    "Transpose": [(op.permute_dims, (4, 6)), (op.permute_dims, (4, 4))],
    "DtoS": [(depth_to_space, (1, 8, 3, 3))],
    "StoD": [(space_to_depth, (1, 2, 4, 6))],
    "Unary": [(unary, (4, 6)) for unary in (op.nn.relu, op.exp, op.nn.gelu, op.sqrt, op.negative, op.tanh)],
    "Add": [(op.add, (4, 6), (4, 6)), (op.add, (4, 6), (6,)), (lambda x: op.add(x, x), (4, 6))],
    "Gather": [
        (lambda x, i: op.take(x, i, axis=0), (4, 6), ((3,), "int64")),
        (lambda x: op.take(x, relax.const(np.array([3, 0, 2])), axis=1), (4, 6)),
    ],
    "Slice": [(lambda x: op.strided_slice(x, [1], [1], [6], [2]), (4, 6))],
}


def test_the_oracle_is_covered():
    assert set(INSTANCES) == set(TABLE_3)


@pytest.mark.parametrize(
    ("row", "instance"), [(row, each) for row, instances in INSTANCES.items() for each in instances]
)
def test_quadrant_agrees_with_smartmem_table_3(row, instance):
    found = [quadrant(node.kernel) for node in nodes(legal(*instance))]
    assert set(found) == {TABLE_3[row]}


# Rows of DNNFusion Table 2.
MAPPING_TYPES = {
    MappingType.ONE_TO_ONE: [
        (op.add, (4, 6), (4, 6)),
        (op.nn.relu, (4, 6)),
        (op.sigmoid, (4, 6)),
        (op.erf, (4, 6)),
        (op.where, ((4, 6), "bool"), (4, 6), (4, 6)),
        (lambda x: op.astype(x, "float16"), (4, 6)),
        (lambda x: op.strided_slice(x, [1], [1], [4]), (4, 6)),
        (lambda x, y: op.concat([x, y], axis=1), (4, 6), (4, 3)),
        (lambda x, y: op.concat([x, y], axis=1), (1, 1, 6), (1, 4, 6)),
        (lambda x, y: op.stack([x, y], axis=0), (4, 6), (4, 6)),
    ],
    MappingType.ONE_TO_MANY: [
        (lambda x: op.broadcast_to(x, (4, 6)), (1, 6)),
        (lambda x, i: op.take(x, i, axis=0), (4, 6), ((3,), "int64")),
        (lambda x: op.repeat(x, 2, axis=1), (4, 6)),
        (lambda x: op.image.resize2d(x, (8, 8), method="nearest_neighbor"), (1, 2, 4, 4)),
        (op.multiply, (4, 6), (4, 1)),
    ],
    MappingType.MANY_TO_MANY: [
        (op.nn.conv2d, IMAGE, WEIGHT),
        (op.matmul, (4, 6), (6, 3)),
        (op.nn.softmax, (4, 6)),
        (lambda x: op.mean(x, axis=1), (4, 6)),
        (lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]), (4, 6), (6,), (6,)),
        (lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2)), IMAGE),
        (lambda x: op.argmax(x, axis=1), (4, 6)),
        (lambda x: op.image.resize2d(x, (8, 8), method="linear"), (1, 2, 4, 4)),
    ],
    MappingType.REORGANIZE: [
        (lambda x: op.reshape(x, (3, 8)), (4, 6)),
        (lambda x: op.expand_dims(x, 1), (4, 6)),
        (lambda x: op.squeeze(x, 1), (4, 1, 6)),
        (op.flatten, (4, 6)),
    ],
    MappingType.SHUFFLE: [
        (op.permute_dims, (4, 6)),
        (op.permute_dims, (4, 4)),
        (lambda x: op.flip(x, 0), (4, 6)),
    ],
}


@pytest.mark.parametrize("kind", MappingType)
def test_mapping_type_agrees_with_dnnfusion_table_2(kind):
    found = [only_node(*each) for each in MAPPING_TYPES[kind]]
    assert found
    others = {node.members[0]: mapping_type(node.kernel) for node in found if mapping_type(node.kernel) is not kind}
    assert others == {}


def test_constant_operands_are_part_of_the_operator():
    """A bias does not make an addition One-to-Many; a run-time row vector does."""
    node = only_node(op.add, (4, 6), (6,))
    _, bias = node.kernel.inputs
    assert mapping_type(node.kernel) is MappingType.ONE_TO_MANY
    assert mapping_type(node.kernel, (bias,)) is MappingType.ONE_TO_ONE


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_an_operand_of_one_number_is_part_of_the_operator(shape):
    """A scale that is known at run time only, or the length of a call; a broadcast of one alone repeats it."""
    assert mapping_type(only_node(op.multiply, (4, 6), shape).kernel) is MappingType.ONE_TO_ONE
    assert mapping_type(only_node(lambda x: op.broadcast_to(x, (4, 6)), shape).kernel) is MappingType.ONE_TO_MANY


# Dimensions of each operand that are aggregated (SmartMem 3.2.2).
REDUCTION_DIMS = [
    (op.matmul, [(4, 6), (6, 3)], [(1,), (0,)]),
    (op.matmul, [(2, 4, 6), (2, 6, 3)], [(2,), (1,)]),
    (lambda x, w: op.matmul(x, op.permute_dims(w)), [(4, 6), (3, 6)], [(1,), (0,)]),
    (op.nn.conv2d, [IMAGE, WEIGHT], [(1, 2, 3), (1, 2, 3)]),
    (lambda x, w: op.nn.conv2d(x, w, padding=1), [IMAGE, WEIGHT], [(1, 2, 3), (1, 2, 3)]),
    (lambda x, w: op.nn.conv2d(x, w, groups=4), [IMAGE, (4, 1, 3, 3)], [(2, 3), (2, 3)]),
    (lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]), [(4, 6), (6,), (6,)], [(1,), (), ()]),
    (lambda x, g: op.nn.rms_norm(x, g, axes=[-1]), [(4, 6), (6,)], [(1,), ()]),
    (lambda x: op.nn.softmax(x, axis=1), [(4, 6, 3)], [(1,)]),
    (lambda x: op.mean(x, axis=[1, 2]), [(4, 6, 3)], [(1, 2)]),
    (lambda x: op.argmax(x, axis=1), [(4, 6)], [(1,)]),
    (op.add, [(4, 6), (4, 6)], [(), ()]),
    (op.permute_dims, [(4, 6)], [()]),
]


@pytest.mark.parametrize(("build", "shapes", "expected"), REDUCTION_DIMS)
def test_reduction_dims(build, shapes, expected):
    node = nodes(legal(build, *shapes))[-1]
    found = reduction_dims(node.kernel)
    assert [found[buffer.name] for buffer in node.kernel.inputs] == expected


def test_data_movement_of_several_pieces_has_no_single_map():
    (node,) = nodes(legal(lambda x, y: op.concat([x, y], axis=1), (4, 6), (4, 3)))
    what = movement(node.kernel)
    assert len(what.pieces) == 2
    assert what.index_map is None
    assert {piece.source for piece in what.pieces} == set(node.kernel.inputs)


def test_data_movement_of_one_piece_has_a_map():
    what = movement(only_node(op.permute_dims, (4, 6)).kernel)
    i, j = (tirx.Var(n, "int64") for n in "ij")
    assert [v.same_as(w) for v, w in zip(what.index_map.map_indices([i, j]), (j, i))] == [True, True]


def test_a_select_on_data_computes():
    """where(mask, x, y) is a select between loads, but which one it takes is decided by data."""
    kernel = only_node(op.where, ((4, 6), "bool"), (4, 6), (4, 6)).kernel
    assert movement(kernel) is None
    assert quadrant(kernel) is Quadrant.ILI_VARIABLE


def test_a_constant_is_no_movement():
    """There is nothing it could be a view of."""
    (node,) = nodes(legalized_full())
    assert node.kernel is not None
    assert movement(node.kernel) is None


def legalized_full():
    mod = module(lambda: op.full((4, 6), relax.const(2.0, "float32"), "float32"))
    return relax.transform.LegalizeOps()(mod)


def test_a_cast_computes():
    assert movement(only_node(lambda x: op.astype(x, "float16"), (4, 6)).kernel) is None


def test_cost_of_values():
    """Transcendental functions dominate, and indices cost nothing."""
    values = {
        "load": only_node(op.permute_dims, (4, 6)),
        "strided load": only_node(lambda x: op.reshape(x, (3, 8)), (4, 6)),
        "add": only_node(op.add, (4, 6), (4, 6)),
        "exp": only_node(op.exp, (4, 6)),
        "shift": only_node(op.left_shift, ((4, 6), "uint32"), ((4, 6), "uint32")),
        "gather": only_node(lambda x, i: op.take(x, i, 0), (4, 6), ((5,), "int64")),
    }
    costs = {name: cost(node.kernel.last.body) for name, node in values.items()}
    assert costs["load"] == costs["strided load"] == 0
    assert costs["add"] == costs["shift"] == costs["gather"] == 1
    assert costs["exp"] >= 10 * costs["add"]


def test_text_of_a_map():
    assert str(movement(only_node(op.permute_dims, (4, 6)).kernel)) == "[ax0, ax1] -> x0[ax1, ax0]"
    split = movement(only_node(lambda x: op.reshape(x, (4, 2, 3)), (4, 6)).kernel)
    assert str(split) == "[ax0, ax1, ax2] -> x0[ax0, ax1 * 3 + ax2]"
    assert readable(tirx.const(-3, "int32")) == "-3"

# SPDX-License-Identifier: Apache-2.0
"""The extended computational graph: facts of each operator."""

import math

import pytest
from tvm import relax

from helpers import constant, graph, legal, nodes, op
from smartmem_tvm.analysis.facts import Facts, flops, graph_facts
from smartmem_tvm.tables.mapping_type import MappingType
from smartmem_tvm.tables.quadrant import Quadrant


def facts(build, *shapes, dtype="float32") -> dict[str, Facts]:
    """Facts of each operator by its legalised name, the tuple of results left out."""
    found = graph_facts(graph(legal(build, *shapes, dtype=dtype)))
    return {node.members[-1].split(" ")[0]: each for node, each in found.items() if node.members}


def test_facts_of_a_small_network():
    found = facts(lambda x, w: op.nn.softmax(op.nn.relu(op.matmul(op.permute_dims(x), w))), (5, 6), (5, 7))
    assert found["transpose"] == Facts(
        MappingType.SHUFFLE, Quadrant.ILD_FIXED, True, frozenset(), (), bytes_of_result=4 * 5 * 6, flops=0
    )
    matmul = found["matmul"]
    assert (matmul.mapping_type, matmul.quadrant) == (MappingType.MANY_TO_MANY, Quadrant.ILD_VARIABLE)
    assert {"associative", "distributive over add"} <= matmul.properties
    assert matmul.reduction_dims == (("lv", (1,)), ("x1", (0,)))
    assert matmul.bytes_of_result == 4 * 6 * 7
    assert matmul.flops == 2 * 5 * 6 * 7
    relu = found["relu"]
    assert (relu.mapping_type, relu.quadrant) == (MappingType.ONE_TO_ONE, Quadrant.ILI_VARIABLE)
    assert relu.ir_removable and relu.reduction_dims == () and relu.flops == 42
    assert found["softmax"].properties == frozenset()


def test_weights_are_constants():
    weight = constant(5, 7)
    (found,) = facts(lambda x: op.matmul(x, weight), (4, 5)).values()
    assert found.reduction_dims == (("x0", (1,)), ("constant", (0,)))


class TestRemovable:
    """One way for a result to have to exist each."""

    def test_result_of_the_function(self):
        found = facts(lambda x: op.exp(op.nn.relu(x)), (4, 5))
        assert found["relu"].ir_removable and not found["tir_exp"].ir_removable

    def test_result_that_is_also_read(self):
        def build(x):
            y = op.nn.relu(x)
            return y, op.exp(y)

        assert not facts(build, (4, 5))["relu"].ir_removable

    def test_red_pair(self):
        """Many-to-Many into Many-to-Many."""
        found = facts(lambda x, w: op.nn.softmax(op.matmul(x, w)), (4, 5), (5, 6))
        assert not found["matmul"].ir_removable

    def test_yellow_pair(self):
        """Many-to-Many into One-to-Many may be fused; whether it pays is another question."""
        found = facts(lambda x, w, g: op.multiply(op.matmul(x, w), g), (4, 5), (5, 6), (4, 1))
        assert found["multiply"].mapping_type is MappingType.ONE_TO_MANY
        assert found["matmul"].ir_removable

    def test_one_red_reader_of_two(self):
        def build(x, w):
            y = op.matmul(x, w)
            return op.add(op.exp(y), op.nn.softmax(y))

        assert not facts(build, (4, 5), (5, 6))["matmul"].ir_removable

    def test_reader_without_functional_form(self):
        def build(x, i, u):
            return op.scatter_elements(op.nn.relu(x), i, u)

        found = facts(build, (4, 6), ((2, 6), "int64"), (2, 6))
        assert not found["relu"].ir_removable

    def test_movement_into_a_reduction(self):
        """Red in DNNFusion's table if it repeats elements, but SmartMem reads through it."""
        found = facts(lambda x, w: op.matmul(op.broadcast_to(x, (4, 5)), w), (1, 5), (5, 6))
        assert found["broadcast_to"].mapping_type is MappingType.ONE_TO_MANY
        assert found["broadcast_to"].ir_removable


def test_function_without_loop_structure():
    found = facts(lambda x, i, u: op.scatter_elements(x, i, u), (4, 6), ((2, 6), "int64"), (2, 6))
    (only,) = found.values()
    assert only == Facts(None, None, False, frozenset(), (), bytes_of_result=4 * 6 * 4, flops=0)


FLOPS = {
    "exp": (op.exp, [(3, 4)], 12),
    "scale and shift": (lambda x: op.add(op.multiply(x, relax.const(2.0)), relax.const(1.0)), [(3, 4)], 24),
    "matmul": (op.matmul, [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
    "padded convolution": (lambda x, w: op.nn.conv2d(x, w, padding=1), [(1, 3, 8, 8), (5, 3, 3, 3)], 2 * 5 * 64 * 27),
    "sum": (lambda x: op.sum(x, axis=1), [(3, 4)], 12),
    "mean": (lambda x: op.mean(x, axis=1), [(3, 4)], 12 + 3),
    "transpose": (op.permute_dims, [(3, 4)], 0),
    "gather": (lambda x, i: op.take(x, i, axis=0), [(3, 4), ((5,), "int64")], 0),
    "integers": (lambda x: op.add(x, x), [((3, 4), "int32")], 12),
}


@pytest.mark.parametrize(("build", "shapes", "expected"), FLOPS.values(), ids=FLOPS)
def test_flops(build, shapes, expected):
    assert sum(flops(node.kernel) for node in nodes(legal(build, *shapes))) == expected


def test_nothing_changes_by_looking():
    mod = legal(lambda x, w: op.nn.softmax(op.matmul(op.permute_dims(x), w)), (5, 6), (5, 7))
    mine = graph(mod)
    before = [(node.var, node.kernel, list(node.args)) for node in mine]
    assert graph_facts(mine) == graph_facts(mine)
    assert [(node.var, node.kernel, list(node.args)) for node in mine] == before


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "bool"])
def test_bytes_of_result(dtype):
    (found,) = facts(lambda x: op.flip(x, axis=0), (3, 5), dtype=dtype).values()
    assert found.bytes_of_result == 15 * {"float16": 2, "float32": 4, "int64": 8, "bool": 1}[dtype]


def test_scalars():
    (found,) = facts(lambda x: op.exp(x), ()).values()
    assert (found.bytes_of_result, found.flops, math.prod(())) == (4, 1, 1)

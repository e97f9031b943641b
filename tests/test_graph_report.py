# SPDX-License-Identifier: Apache-2.0
"""Counts of kernels and bytes, and the fate of layout operators."""

import tvm
from tvm.script import tirx as T

from helpers import constant, legal, module, op
from smartmem_tvm.graph_report import explain, graph_cost, only_moves_data
from smartmem_tvm.pipeline import BASELINE_PHASES, Options, run_phases
from smartmem_tvm.transform import EliminateLayout, FuseOperators

FLOAT = 4


def network(x):
    """A transpose into a matmul with constant weights, and its transposed result."""
    return op.permute_dims(op.nn.relu(op.matmul(op.permute_dims(x), constant(5, 3))))


def test_bytes_of_each_kind():
    cost = graph_cost(legal(lambda x: op.nn.relu(op.matmul(x, constant(6, 3))), (5, 6)))
    # The matmul reads x and the weights and writes y; relu reads y and writes the result.
    assert cost.bytes_moved == {"activations": FLOAT * (5 * 6 + 5 * 3 + 5 * 3 + 5 * 3), "weights": FLOAT * 6 * 3}
    assert (cost.kernels, cost.layout_kernels) == (2, 0)


def test_layout_kernels_before_and_after():
    before = legal(network, (5, 6))
    assert graph_cost(before).kernels == 4
    assert graph_cost(before).layout_kernels == 2
    after = graph_cost(FuseOperators()(EliminateLayout()(before)))
    assert (after.kernels, after.layout_kernels) == (1, 0)
    assert after.bytes_moved == {"activations": FLOAT * (5 * 6 + 6 * 3), "weights": FLOAT * 5 * 3}


def test_an_operand_counts_once_per_kernel():
    cost = graph_cost(EliminateLayout()(legal(lambda x: op.add(x, op.permute_dims(x)), (4, 4))))
    assert cost.bytes_moved["activations"] == FLOAT * (16 + 16)


def test_tvms_own_graph_is_counted_the_same_way():
    with tvm.target.Target("llvm"):
        mod = run_phases(module(network, (5, 6)), BASELINE_PHASES, Options())
    assert graph_cost(mod).layout_kernels >= 1


def test_a_kernel_of_several_results_that_all_move_data_is_a_layout_kernel():
    mod = legal(lambda x: op.nn.relu(op.split(x, 2, axis=1)[1]), (4, 6))
    assert graph_cost(mod).layout_kernels == 1


@T.prim_func(s_tir=True)
def moves_and_doubles(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.sblock("move"):
            vi = T.axis.spatial(4, i)
            y[vi] = x[3 - vi]
    for i in T.serial(4):
        with T.sblock("double"):
            vi = T.axis.spatial(4, i)
            z[vi] = x[vi] * T.float32(2)


def test_a_kernel_that_computes_one_of_its_results_is_no_layout_kernel():
    assert not only_moves_data(moves_and_doubles)


def test_what_computes_or_cannot_be_read_is_no_layout_kernel():
    mod = legal(lambda x, i, u: op.exp(op.scatter_elements(x, i, u)), (4, 6), ((2, 6), "int64"), (2, 6))
    functions = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert [only_moves_data(f) for f in functions] == [False, False]


def test_explain():
    """A layout operator is eliminated into the kernel that reads through it, and kept if it is the result itself."""
    mod = FuseOperators()(EliminateLayout()(legal(network, (5, 6))))
    story = explain(mod)
    (kernel,) = story["kernels"]
    first, second = story["layout_operators"]
    assert (first["action"], first["into"]) == ("eliminated", [kernel["result"]])
    assert "x0[ax1, ax0]" in first["map"]
    assert second["action"] == "eliminated"
    assert second["into"] == [kernel["result"]]
    assert [m.split(" ")[0] for m in kernel["members"]][:2] == ["matmul", "relu"]
    assert {decision["pass"] for decision in story["decisions"]} == {"EliminateLayout", "FuseOperators"}


def test_explain_names_why_an_operator_stays():
    story = explain(EliminateLayout()(legal(lambda x: op.permute_dims(x), (4, 6))))
    (fate,) = story["layout_operators"]
    assert (fate["action"], fate["reason"]) == ("kept", "it is a result of the function")

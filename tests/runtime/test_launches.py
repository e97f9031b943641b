# SPDX-License-Identifier: Apache-2.0
"""Launches are counted while the model runs."""

import smartmem_tvm
from helpers import constant, module, op, random
from smartmem_tvm.graph_report import graph_cost
from smartmem_tvm.pipeline import Options
from smartmem_tvm.runtime.launches import count_launches


def test_each_launch_is_counted_where_the_graph_says_one_kernel():
    """Two equal layers share a function: one name, two launches."""

    def build(x):
        for _ in range(2):
            x = op.nn.softmax(op.matmul(x, constant(6, 6)))
        return x

    compiled = smartmem_tvm.compile(module(build, (4, 6)), options=Options(fuse_attention=False))
    launches = count_launches(compiled, random((4, 6)))
    assert launches.total() == graph_cost(compiled.graph).kernels == 4
    assert sorted(launches.values()) == [2, 2]


def test_library_functions_count_and_the_machines_own_do_not():
    """sort is TVM's library function; storage, tensors and tuples are the virtual machine's business."""
    compiled = smartmem_tvm.compile(module(lambda x: op.sort(op.exp(x)), (4, 6)))
    launches = count_launches(compiled, random((4, 6)))
    assert launches.total() == 2
    assert not [name for name in launches if name.startswith("vm.builtin")]

# SPDX-License-Identifier: Apache-2.0
"""What schedules see a product in, and views that would hide one: these are not fused behind it, on any target."""

import numpy as np
import pytest

import smartmem_tvm
from helpers import constant, legal, module, op, random, run
from smartmem_tvm.ir.graph import graphs, launches, read_log
from smartmem_tvm.schedule import is_product
from smartmem_tvm.target import parse_target


def kernels(mod) -> list:
    return [node.kernel for graph in graphs(mod) for node in graph if node.kernel is not None]


@pytest.mark.parametrize(
    "build, seen",
    [
        (lambda x: op.matmul(x, constant(8, 6)), True),
        (lambda x: op.sum(x, axis=1), False),
        (lambda x: op.nn.relu(x), False),
        (lambda x: op.matmul(x, constant(8)), False),
    ],
)
def test_products(build, seen):
    assert [is_product(each) for each in kernels(legal(build, (5, 8)))] == [seen]


def test_a_padded_convolution_is_one():
    mod = smartmem_tvm.optimize(
        module(lambda x: op.nn.conv2d(x, constant(8, 6, 3, 3), padding=1), (1, 6, 9, 9)), parse_target("cpu")
    )
    assert [is_product(each) for each in kernels(mod)] == [True]


def shuffled(begin: int):
    """Pixels of 2 x 2 channels, from row and column `begin` on."""

    def build(x):
        made = op.nn.conv2d(x, constant(64, 32, 1, 1))
        apart = op.reshape(made, (1, 16, 2, 2, 14, 14))
        whole = op.reshape(op.permute_dims(apart, [0, 1, 4, 2, 5, 3]), (1, 16, 28, 28))
        return op.strided_slice(whole, [2, 3], [begin] * 2, [begin + 26] * 2)

    return build


@pytest.mark.parametrize("target", ["cpu", "cuda", "adreno-740"])
@pytest.mark.parametrize("begin, count", [(0, 1), (1, 2)])
def test_a_view_that_begins_within_a_block_stays_apart(begin, count, target):
    """Rows and columns of the product are ``(y + 1) // 2`` and ``(y + 1) % 2``: nothing tells one from the other."""
    found = smartmem_tvm.optimize(module(shuffled(begin), (1, 32, 14, 14)), parse_target(target))
    assert sum(launches(found).values()) == count
    refused = [entry for entry in read_log(found) if "no schedule would see the product" in str(entry.get("reason"))]
    assert bool(refused) == (count == 2)


def test_results_of_what_stays_apart():
    mod, arrays = module(shuffled(1), (1, 32, 14, 14)), random((1, 32, 14, 14))
    compiled = smartmem_tvm.compile(mod)
    np.testing.assert_allclose(compiled.run(*arrays)[0], run(mod, *arrays)[0], rtol=1e-4, atol=1e-4)
    assert {rule["name"] for rule in compiled.rules.values()} == {"Matmul", "Elementwise"}

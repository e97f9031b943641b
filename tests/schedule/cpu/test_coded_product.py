# SPDX-License-Identifier: Apache-2.0
"""Products with weights in codes: right for all forms of files, by the rule for few rows and by that for many."""

import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from coded_weights import dequantized, nbits
from smartmem_tvm.schedule.cpu.params import FEW_REGISTERS, CpuParams
from smartmem_tvm.target import host_target

_DEPTHS, _COLUMNS, _ROWS = [67, 128, 257, 160], [64, 67, 127, 200], [1, 2, 5, 8, 11, 17, 33]


def compiled(drawn, target="cpu"):
    return sm.compile(sm.from_onnx(drawn.model), target)


FEW = 24 if CpuParams.of(host_target()).registers > FEW_REGISTERS else 10
"""Rows, up to which the rule for few takes products on this machine."""


def check(drawn, random, target="cpu"):
    """Compile and compare with float64; returns the compiled model."""
    built = compiled(drawn, target)
    x = random.standard_normal(drawn.shape).astype("float32") + random.choice([0, 3])
    exact = drawn.exact(x)
    (y,) = built.run(x.astype("float32"))
    assert y.shape == exact.shape
    np.testing.assert_allclose(y, exact, rtol=0, atol=3e-6 * np.abs(exact).max())
    return built


def rules(built) -> set[str]:
    return {each["name"] for each in built.rules.values()}


@pytest.mark.parametrize("seed", range(5))
def test_random_products(seed):
    random = np.random.default_rng(seed)
    pick = lambda *values: values[random.integers(len(values))]  # noqa: E731
    rows, depth, columns = pick(*_ROWS), pick(*_DEPTHS), pick(*_COLUMNS)
    sizes, bits, zeros = (rows, depth, columns), pick(4, 8), pick(False, True)
    if random.random() < 0.4:
        drawn = nbits(random, *sizes, pick(16, 32, 64, 128, 256), bits, zeros, pick(False, True))
    else:
        group = pick("tensor", "axis", 16, 32, 40, 256)
        sides = {"signed": pick(False, True), "left": pick(False, True), "turned": pick(False, True)}
        drawn = dequantized(random, *sizes, group, bits, zeros=zeros, **sides)
    assert rules(check(drawn, random)) == {"CodedProduct" if rows <= FEW else "Matmul"}


@pytest.mark.parametrize("rows", [5, 12, 13, 24])
@pytest.mark.parametrize("bits", [4, 8])
def test_strips_of_many_rows(rows, bits):
    """Halves of panels; the last one has fewer columns, and the last group is only begun."""
    random = np.random.default_rng(rows)
    built = check(nbits(random, rows, 200, 150, 32, bits, True, False), random)
    assert rules(built) == {"CodedProduct" if rows <= FEW else "Matmul"}


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_another_processor(rows):
    random, target = np.random.default_rng(0), '{"kind": "llvm", "mcpu": "haswell", "num-cores": 2}'
    check(nbits(random, rows, 160, 100, 32, zeros=True), random, target)


@pytest.mark.parametrize(
    ("bits", "zeros", "wanted"),
    [
        (4, False, ["int32", "float32"]),
        (4, True, ["int32", "float32", "int8"]),
        (8, False, ["int8", "float32"]),
        (8, True, ["int8", "float32", "int16"]),
    ],
)
def test_bytes_of_the_weights(bits, zeros, wanted):
    random, depth, columns = np.random.default_rng(0), 2048, 1088  # zero points that are large enough for a file
    built = compiled(nbits(random, 1, depth, columns, 32, bits, zeros))
    weights = [each.tensor.numpy() for each in built.weights]
    assert [str(each.dtype) for each in weights] == wanted
    per_group = 32 * bits // 8 + 4 + {4: 1, 8: 2}[bits] * zeros
    assert sum(each.nbytes for each in weights) == depth // 32 * columns * per_group


def test_two_products_read_one_weight():
    random = np.random.default_rng(0)
    drawn = nbits(random, 3, 96, 96, 32)
    graph = drawn.model.graph
    again = graph.node.add()
    again.CopyFrom(graph.node[0])
    graph.node[0].output[0] = "h"
    again.input[0] = "h"
    onto = sm.compile(sm.from_onnx(drawn.model))
    x = random.standard_normal((3, 96)).astype("float32")
    exact = x.astype("float64") @ drawn.weight @ drawn.weight
    np.testing.assert_allclose(onto.run(x)[0], exact, rtol=0, atol=3e-6 * np.abs(exact).max())
    assert rules(onto) == {"CodedProduct"}


def test_many_rows_are_declined_with_a_reason():
    random = np.random.default_rng(0)
    (plan,) = compiled(nbits(random, 40, 128, 64, 32)).plans.values()
    assert "40 rows" in str(plan)


def test_a_weight_of_two_kernels_keeps_one_form():
    """Equal kernels with different weights are one function: its form fits both."""
    random = np.random.default_rng(0)
    first, second = (nbits(random, 1, 96, 96, 32, zeros=True) for _ in range(2))
    graph = first.model.graph
    for name, tensor in zip(("b", "s", "z"), second.model.graph.initializer):
        new = graph.initializer.add()
        new.CopyFrom(tensor)
        new.name = f"{name}2"
    again = graph.node.add()
    again.CopyFrom(graph.node[0])
    graph.node[0].output[0] = "h"
    again.input[:] = ["h", "b2", "s2", "z2"]
    x = random.standard_normal((1, 96)).astype("float32")
    exact = x.astype("float64") @ first.weight @ second.weight
    np.testing.assert_allclose(compiled(first).run(x)[0], exact, rtol=0, atol=3e-6 * np.abs(exact).max())


@pytest.mark.parametrize("rows", [1, 33])
def test_several_products_in_one_kernel(rows):
    """A gated layer: two products of one tensor, and what is computed from both."""
    random = np.random.default_rng(0)
    first, second = (nbits(random, rows, 96, 80, 32, zeros=zeros) for zeros in (True, False))
    graph = first.model.graph
    for name, tensor in zip(("b", "s"), second.model.graph.initializer):
        new = graph.initializer.add()
        new.CopyFrom(tensor)
        new.name = f"{name}2"
    again = graph.node.add()
    again.CopyFrom(graph.node[0])
    again.input[:] = ["x", "b2", "s2"]
    graph.node[0].output[0], again.output[0] = "g", "u"
    graph.node.append(helper.make_node("Sigmoid", ["g"], ["v"]))
    graph.node.append(helper.make_node("Mul", ["u", "v"], ["y"]))
    built, x = compiled(first), random.standard_normal((rows, 96)).astype("float32")
    gate = first.exact(x)
    exact = second.exact(x) / (1 + np.exp(-gate))
    np.testing.assert_allclose(built.run(x)[0], exact, rtol=0, atol=3e-6 * np.abs(exact).max())
    names = [each["name"] for each in built.rules.values()]  # one kernel with both products, or two kernels
    assert "".join(names).count("CodedProduct" if rows == 1 else "Matmul") == 2

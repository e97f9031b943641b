# SPDX-License-Identifier: Apache-2.0
"""Products of bytes in tiles of AMX: exact sums for all shapes, and the code where this machine has no AMX."""

import numpy as np
import pytest
import tvm
from onnx import helper
from onnx.reference import ReferenceEvaluator

from against_onnxruntime import integers, model_of
from covering import seeds
from smartmem_tvm import compile, from_onnx
from smartmem_tvm.cpu_features import has_byte_tiles
from smartmem_tvm.schedule.core.plans import Price
from smartmem_tvm.schedule.cpu.quad_plan import QuadPlan
from smartmem_tvm.target import host_target

HERE = has_byte_tiles(host_target())
"""Whether this machine runs the code; elsewhere it is generated, and not run."""
TILES = {"kind": "llvm", "mcpu": "sapphirerapids"}


def target(cores: int) -> tvm.target.Target:
    return tvm.target.Target({**(dict(host_target().export()) if HERE else TILES), "num-cores": cores})


def assembly(compiled) -> str:
    def modules(module):
        yield module
        for each in module.imports:
            yield from modules(each)

    return "".join(each.inspect_source("asm") for each in modules(compiled.executable.mod) if each.kind == "llvm")


@pytest.fixture
def tiled(monkeypatch):
    """Tiles whatever the price says."""
    monkeypatch.setattr(QuadPlan, "price", property(lambda self: Price(0.0, {})))


def draw(random: np.random.Generator) -> tuple:
    """A MatMulInteger or a ConvInteger with a constant of bytes: node, inputs, constants."""
    size = lambda *more: int(random.choice([1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 65, *more]))  # noqa: E731
    if random.random() < 0.5:
        depth = 4 * int(random.choice([4, 5, 7, 8, 12, 13, 16, 17, 22, 32, 34]))
        batch = [(), (1,), (2,)][random.integers(3)]
        x, w, attributes, kind = (*batch, size(100), depth), (depth, size()), {}, "MatMulInteger"
    else:
        kernel, strides = random.integers(1, 4, 2).tolist(), random.integers(1, 3, 2).tolist()
        pads, dilations = random.integers(0, 3, 4).tolist(), random.integers(1, 3, 2).tolist()
        sizes = [max(int(random.integers(1, 13)), (k - 1) * d + 1) for k, d in zip(kernel, dilations)]
        inside = 4 * int(random.choice([4, 5, 8, 12]))
        x, w, kind = (int(random.integers(1, 3)), inside, *sizes), (size(), inside, *kernel), "ConvInteger"
        attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    names, zero = ["x", "w", "x_zero"], integers(random, "uint8", ())
    node = helper.make_node(kind, names, ["y"], **attributes)
    return node, {"x": integers(random, "uint8", x)}, {"w": integers(random, "int8", w), "x_zero": zero}


def exact(node, inputs: dict, constants: dict) -> np.ndarray:
    model = model_of([node], {**inputs, **constants}, {"y": "int32"})
    return ReferenceEvaluator(model).run(None, {**inputs, **constants})[0]


@pytest.mark.parametrize("seed", seeds(8, 48, 200))
def test_drawn_products(tiled, seed):
    random = np.random.default_rng(seed)
    node, inputs, constants = draw(random)
    want = exact(node, inputs, constants)
    model = model_of([node], inputs, {"y": ("int32", want.shape)}, constants)
    compiled = compile(from_onnx(model), target(int(random.integers(1, 4))))
    matmul, weight = node.op_type == "MatMulInteger", constants["w"]
    rows, columns = (want[..., 0].size, want.shape[-1]) if matmul else (want.shape[1], want[0, 0].size)
    quads = (weight.shape[0] if matmul else weight[0].size) // 4
    divides = any(quads % depth == 0 for depth in range(4, 17))  # a tile's depth; 17 and 34 quads have none
    if want.any():  # else windows may see nothing but padding, and there is no product
        assert ("tdpb" in assembly(compiled)) is bool(rows > 1 and columns > 1 and divides)
    if HERE:
        np.testing.assert_array_equal(compiled.run(*inputs.values())[0], want)


@pytest.mark.parametrize("rows", [15, 16, 40])
def test_the_epilogue_of_rows_that_are_computed_twice(tiled, rows):
    """A residual is added once, also to the rows of a last tile that overlaps the one before it."""
    random = np.random.default_rng(rows)
    x, w = integers(random, "uint8", (rows, 64)), integers(random, "int8", (64, 40))
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=1),
        helper.make_node("Relu", ["r"], ["before"]),
        helper.make_node("Add", ["floats", "before"], ["y"]),
    ]
    more = (random.random((rows, 40)) * 100).astype("float32")
    model = model_of(nodes, {"x": x, "r": more}, {"y": ("float32", (rows, 40))}, {"w": w})
    compiled = compile(from_onnx(model), target(1))
    assert "tdpbusd" in assembly(compiled)
    if HERE:
        want = (x.astype("int32") @ w.astype("int32")).astype("float32") + more
        np.testing.assert_array_equal(compiled.run(x, more)[0], want)


def test_the_price_decides():
    """Large products are tiled; small ones, for which the registers would have to be requested, are not."""
    random = np.random.default_rng(0)
    for rows, is_tiled in ((8, False), (512, True)):
        x, w = integers(random, "uint8", (rows, 256)), integers(random, "int8", (256, 256))
        node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
        model = model_of([node], {"x": x}, {"y": ("int32", (rows, 256))}, {"w": w})
        assert ("tdpbusd" in assembly(compile(from_onnx(model), target(1)))) is is_tiled


def test_a_processor_without_tiles_of_bytes_has_vectors(tiled):
    random = np.random.default_rng(0)
    x, w = integers(random, "uint8", (512, 256)), integers(random, "int8", (256, 256))
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    model = model_of([node], {"x": x}, {"y": ("int32", (512, 256))}, {"w": w})
    code = assembly(compile(from_onnx(model), tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake"})))
    assert "vpdpbusd" in code and "tdpb" not in code

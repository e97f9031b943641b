# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check, model_of

BATCH, ROWS, WIDTH = 2, 5, 32
CLOSE = 2e-6


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def _check(op, inputs, constants=None, names="", outputs="y", domain=RUNTIME, **attributes):
    """Inputs in their order unless named; an output called ``_`` is left out."""
    outputs = [name.strip("_") for name in outputs.split()]
    names = [name.strip("_") for name in names.split()] or [*inputs, *(constants or {})]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    results = {name: "int32" if name == "count" else "float32" for name in outputs if name}
    check([node], inputs, results, constants, tolerance=CLOSE)


@pytest.mark.parametrize(
    ("op", "attributes"), [("FastGelu", {}), ("Gelu", {}), ("QuickGelu", {}), ("QuickGelu", {"alpha": 1.5})], ids=str
)
def test_activations(op, attributes):
    _check(op, {"x": _floats(BATCH, ROWS, WIDTH)}, **attributes)


@pytest.mark.parametrize("op", ["FastGelu", "BiasGelu"])
def test_activations_of_a_sum(op):
    _check(op, {"x": _floats(BATCH, ROWS, WIDTH)}, {"b": _floats(WIDTH)})


@pytest.mark.pairwise
@pytest.mark.parametrize("skip", [(BATCH, ROWS, WIDTH), (1, ROWS, WIDTH), (ROWS, WIDTH)])
@pytest.mark.parametrize("outputs", ["y", "y _ _ sum"])
@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("SkipLayerNormalization", "x skip gamma"),
        ("SkipLayerNormalization", "x skip gamma beta bias"),
        ("SkipSimplifiedLayerNormalization", "x skip gamma bias"),
    ],
)
def test_normalizations_of_a_sum(op, names, outputs, skip):
    constants = {name: _floats(WIDTH, seed=at) for at, name in enumerate(names.split()[2:])}
    inputs = {"x": _floats(BATCH, ROWS, WIDTH), "skip": _floats(*skip, seed=9)}
    _check(op, inputs, constants, names, outputs, epsilon=1e-5)


def test_they_are_the_plain_operators(operators):
    x = _floats(BATCH, ROWS, WIDTH)
    node = helper.make_node("SkipLayerNormalization", ["x", "x", "gamma", "beta"], ["y"], domain=RUNTIME)
    model = model_of([node], {"x": x}, {"y": ("float32", x.shape)}, {"gamma": x[0, 0], "beta": x[0, 1]})
    assert operators(sm.from_onnx(model)) == ["add", "nn.layer_norm"]


@pytest.mark.parametrize("outputs", ["y", "y inverse"])
@pytest.mark.parametrize("nodes_around", [0, 1])
def test_root_mean_square_as_onnx_runtime_writes_it(outputs, nodes_around):
    """Without a domain, which ONNX's own checker refuses; also where shape arithmetic is to be folded."""
    x = _floats(BATCH, ROWS, WIDTH)
    nodes = [helper.make_node("SimplifiedLayerNormalization", ["x", "gamma"], outputs.split(), epsilon=1e-5)]
    if nodes_around:
        nodes += [helper.make_node("Shape", ["y"], ["s"]), helper.make_node("Reshape", ["y", "s"], ["z"])]
    results = dict.fromkeys([*outputs.split()[1:], "z" if nodes_around else "y"], "float32")
    check(nodes, {"x": x}, results, {"gamma": _floats(WIDTH)}, tolerance=CLOSE)


@pytest.mark.parametrize(
    ("names", "outputs"),
    [
        ("ids segments words places kinds gamma beta mask", "y count sum"),
        ("ids segments words places kinds gamma beta mask", "y count"),
        ("ids _ words places _ gamma beta", "y count"),
        ("ids _ words places _ gamma beta _ positions", "y count"),
    ],
)
def test_embeddings(names, outputs):
    random = np.random.default_rng(0)
    limits = {"ids": 20, "segments": 2, "mask": 2, "positions": 10}
    inputs = {name: random.integers(0, limits[name], (BATCH, ROWS)).astype("int32") for name in limits if name in names}
    rows = {"words": (20,), "places": (10,), "kinds": (2,), "gamma": (), "beta": ()}
    constants = {name: _floats(*rows[name], WIDTH) for name in rows if name in names}
    _check("EmbedLayerNormalization", inputs, constants, names, outputs)


def _before(shape, matrix, batch):
    """The shape of which `FusedMatMul` makes `shape`."""
    shape = list(shape)
    if matrix:
        shape[-2:] = shape[:-3:-1]
    if batch:
        shape.insert(0, shape.pop(-2))
    return shape


@pytest.mark.each_value
@pytest.mark.parametrize("left", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("right", [(0, 0), (1, 1)])
def test_products_of_transposed_sides(left, right):
    flags = {"transA": left[0], "transBatchA": left[1], "transB": right[0], "transBatchB": right[1]}
    inputs = {"a": _floats(*_before((2, 3, 4, 6), *left)), "b": _floats(*_before((2, 3, 6, 5), *right))}
    _check("FusedMatMul", inputs, alpha=0.3, **flags)


ACTIVATIONS = {"Relu": [], "LeakyRelu": [0.2], "Tanh": [], "Sigmoid": [], "HardSigmoid": [0.3, 0.6]}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fused_activations(name):
    numbers = dict(zip(("activation_alpha", "activation_beta"), ACTIVATIONS[name]))
    gemm = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 0.7}
    constants = {"b": _floats(5, 6), "c": _floats(5)}
    _check("FusedGemm", {"a": _floats(6, 4)}, constants, activation=name, **gemm, **numbers)
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    params = {"activation_params": ACTIVATIONS[name]} if ACTIVATIONS[name] else {}
    inputs, constants = (
        {"a": _floats(1, 3, 8, 8), "z": _floats(1, 4, 8, 8)},
        {"w": _floats(4, 3, 3, 3), "c": _floats(4)},
    )
    _check("FusedConv", inputs, constants, "a w c z", activation=name, **window, **params)


def test_clip_in_a_convolution():
    window = {"kernel_shape": [3, 3], "activation": "Clip", "activation_params": [-0.5, 0.7]}
    _check("FusedConv", {"a": _floats(1, 3, 8, 8)}, {"w": _floats(4, 3, 3, 3)}, **window)


@pytest.mark.each_value
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [None, "uint8", "float32"])
def test_weights_of_few_bits(bits, zeros):
    width, columns, block = 70, 12, 16
    blocks, random = -(-width // block), np.random.default_rng(0)
    constants = {"b": random.integers(0, 256, (columns, blocks, block * bits // 8)).astype("uint8")}
    constants["scales"] = (random.random(columns * blocks) + 0.1).astype("float32")
    if zeros == "uint8":
        constants["zeros"] = random.integers(0, 256, columns * -(-blocks * bits // 8)).astype("uint8")
    elif zeros and bits < 8:  # ONNX Runtime has no kernel for 8 bits with zero points that are floats
        constants["zeros"] = (random.random(columns * blocks) * 10).astype("float32")
    sizes = {"K": width, "N": columns, "bits": bits, "block_size": block}
    _check("MatMulNBits", {"a": _floats(3, width)}, constants, **sizes)


@pytest.mark.parametrize(
    ("names", "attributes", "reason"),
    [
        ("a b s _ order", {}, "g_idx does not give"),
        ("a b_unknown s", {}, "run time only"),
        ("a b s", {"bits": 3}, "3 bits"),
    ],
)
def test_other_weights_of_few_bits_are_refused(names, attributes, reason):
    sizes = {"K": 32, "N": 4, "block_size": 32, **attributes}
    node = helper.make_node(
        "MatMulNBits", [n.strip("_") for n in names.split()], ["y"], "packed", domain=RUNTIME, **sizes
    )
    packed = np.zeros((4, 1, 16), "uint8")
    inputs = {"a": _floats(3, 32), **({"b_unknown": packed} if "unknown" in names else {})}
    constants = {"b": packed, "s": np.ones(4, "float32"), "order": np.full(32, 3, "int32")}
    with pytest.raises(sm.UserError, match=rf"packed.*{reason}"):
        sm.from_onnx(model_of([node], inputs, {"y": ("float32", (3, 4))}, constants))

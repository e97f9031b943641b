# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from against_onnxruntime import RUNTIME, check, integers, weights

PAIRS = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")]


def _zeros(random, dtype, shape=()):
    """Zero points; those of int8 weights are 0 in ONNX Runtime's kernels."""
    return np.zeros(shape, dtype) if dtype == "int8" else np.full(shape, integers(random, dtype))


@pytest.mark.each_value
@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("columns", [(), (7,)])
def test_mat_mul_integer(left, right, columns):
    random = np.random.default_rng(0)
    a, b = integers(random, left, (2, 5, 13)), weights(random, right, (13, 7))
    given = {"za": integers(random, left), "zb": integers(random, right, columns)}
    check([helper.make_node("MatMulInteger", ["a", "b", *given], ["y"])], {"a": a, "b": b}, {"y": "int32"}, given)


def test_zero_points_of_rows(build, run_tvm):
    random = np.random.default_rng(0)
    a, b, zero = integers(random, "uint8", (5, 6)), integers(random, "uint8", (6, 4)), integers(random, "uint8", (5,))
    from smartmem_tvm.frontend import from_onnx

    tensors = {name: (array.shape, str(array.dtype)) for name, array in (("a", a), ("b", b), ("zero", zero))}
    model = build([helper.make_node("MatMulInteger", ["a", "b", "zero"], ["y"])], tensors, {"y": ((5, 4), "int32")})
    wanted = (a.astype("int32") - zero[:, None]) @ b.astype("int32")
    np.testing.assert_array_equal(run_tvm(from_onnx(model), {"a": a, "b": b, "zero": zero})[0], wanted)


@pytest.mark.each_value
@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("columns", [(), (7,)])
def test_scaled_products(left, right, columns):
    """QLinearMatMul, QGemm, MatMulIntegerToFloat and DynamicQuantizeMatMul."""
    random = np.random.default_rng(0)
    a, b = integers(random, left, (5, 13)), weights(random, right, (13, 7))
    given = {"b": b, "sa": np.float32(0.02), "za": integers(random, left)}
    given |= {"sb": np.asarray(random.random(columns) * 0.1, "float32"), "zb": _zeros(random, right, columns)}
    given |= {"sy": np.float32(0.3), "zy": integers(random, left)}
    given |= {"c": random.integers(-900, 900, 7).astype("int32"), "bias": random.standard_normal(7).astype("float32")}
    float_result = {"y": "float32"}

    def run(op, names, inputs, outputs, **attributes):
        node = helper.make_node(op, names.split(), ["y"], **attributes)
        check([node], inputs, outputs, {name: given[name] for name in names.split() if name in given}, tolerance=3e-7)

    run("QLinearMatMul", "a sa za b sb zb sy zy", {"a": a}, {"y": left})
    run("QGemm", "a sa za b sb zb c sy zy", {"a": a}, {"y": left}, domain=RUNTIME)
    run("QGemm", "a sa za b sb zb c", {"a": a}, float_result, domain=RUNTIME, alpha=0.5)
    run("MatMulIntegerToFloat", "a b sa sb za zb bias", {"a": a}, float_result, domain=RUNTIME)
    floats = {"a": random.standard_normal((5, 13)).astype("float32")}
    run("DynamicQuantizeMatMul", "a b sb zb bias", floats, float_result, domain=RUNTIME)


@pytest.mark.parametrize(("left", "right"), [("int16", "int16"), ("uint16", "uint16"), ("uint16", "int16")])
def test_products_of_sixteen_bits(left, right):
    """By their definition: ONNX Runtime's kernel takes int16 alone."""
    random = np.random.default_rng(0)
    a, b = integers(random, left, (2, 5, 13)) // 256, integers(random, right, (13, 7)) // 256
    to = "uint32" if left == right == "uint16" else "int32"
    node = helper.make_node("MatMulInteger16", ["a", "b"], ["y"], domain=RUNTIME)
    check([node], {"a": a, "b": b}, {"y": to}, wanted=[(a.astype("int64") @ b.astype("int64")).astype(to)])


CONVOLUTIONS = [
    {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "strides": [2, 1]},
    {"kernel_shape": [2, 3], "group": 2, "dilations": [2, 1]},
    {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [3], "auto_pad": "SAME_UPPER", "strides": [2]},
    {"kernel_shape": [1, 2, 3], "pads": [0, 1, 0, 0, 0, 1]},
]


@pytest.mark.each_value
@pytest.mark.parametrize("attributes", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("uint8", "uint8")])
def test_convolutions(left, right, attributes):
    random = np.random.default_rng(0)
    group, kernel = attributes.get("group", 1), attributes["kernel_shape"]
    x = integers(random, left, (2, 4, *(7, 6, 5)[: len(kernel)]))
    given = {
        "w": weights(random, right, (6, 4 // group, *kernel)),
        "sx": np.float32(0.02),
        "zx": integers(random, left),
    }
    given |= {"sw": (random.random(6) * 0.1).astype("float32"), "zw": _zeros(random, right, (6,))}
    given |= {"sy": np.float32(0.7), "zy": integers(random, left), "b": random.integers(-900, 900, 6).astype("int32")}
    node = helper.make_node("QLinearConv", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"], ["y"], **attributes)
    check([node], {"x": x}, {"y": left}, given)
    one = {"w": given["w"], "zx": given["zx"], "zw": given["zw"][0]}
    check([helper.make_node("ConvInteger", ["x", *one], ["y"], **attributes)], {"x": x}, {"y": "int32"}, one)


@pytest.mark.parametrize("seed", range(6))
def test_random_convolutions(seed):
    """Groups, strides, dilations, uneven padding, unit and prime sizes, zero points of all types, scales of filters."""
    random = np.random.default_rng(seed)
    rank, groups = int(random.integers(1, 4)), int(random.choice([1, 1, 2, 3]))
    depth, filters = groups * int(random.choice([1, 3, 4, 8])), groups * int(random.choice([1, 2, 5, 8]))
    left, right = PAIRS[int(random.integers(3))]
    kernel, strides, dilations = (random.integers(1, most + 1, rank) for most in (3, 2, 2))
    pads = random.integers(0, 3, 2 * rank)
    sizes = random.integers(1, 8, rank) + (kernel - 1) * dilations
    drawn = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    attributes = {name: each.tolist() for name, each in drawn.items()} | {"group": groups}
    x = integers(random, left, (int(random.integers(1, 3)), depth, *sizes))
    zero = integers(random, left) if random.random() < 0.7 else np.zeros((), left)
    filled = weights(random, right, (filters, depth // groups, *kernel))
    columns = (filters,) if random.random() < 0.5 else ()
    given = {"sx": np.float32(0.02), "zx": zero, "w": filled}
    given |= {"sw": (random.random(columns) * 0.1).astype("float32"), "zw": _zeros(random, right, columns)}
    given |= {"sy": np.float32(0.7), "zy": integers(random, left)}
    given |= {"b": random.integers(-900, 900, filters).astype("int32")} if random.random() < 0.5 else {}
    check([helper.make_node("QLinearConv", ["x", *given], ["y"], **attributes)], {"x": x}, {"y": left}, given)
    if left == "uint8":  # ONNX Runtime has ConvInteger of unsigned pictures only
        one = {"w": filled, "zx": zero, "zw": given["zw"].reshape(-1)[0]}
        check([helper.make_node("ConvInteger", ["x", *one], ["y"], **attributes)], {"x": x}, {"y": "int32"}, one)

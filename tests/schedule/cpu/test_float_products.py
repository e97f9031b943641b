# SPDX-License-Identifier: Apache-2.0
"""FloatProducts: integer sums of at most 24 bits are of floats, and are exact; others stay integers."""

import numpy as np
import pytest
import tvm
from tvm import relax, te

from smartmem_tvm import compile
from smartmem_tvm.schedule import FloatProducts, PairProducts
from smartmem_tvm.target import parse_target


def depthwise(weights: np.ndarray, dtype: str, size: int = 9) -> tvm.IRModule:
    """``main(x)``: a window of 3 over each channel of x, padded, times constant weights, in int32, plus one."""
    channels = weights.shape[0]
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((channels, size), dtype))

    def body(x, w):
        k = te.reduce_axis((0, 3), "k")
        inside = te.compute(
            (channels, size + 2),
            lambda c, i: tvm.tirx.if_then_else(tvm.tirx.all(i >= 1, i <= size), x[c, i - 1], tvm.tirx.const(0, dtype)),
            name="padded",
        )
        total = te.compute(
            (channels, size),
            lambda c, i: te.sum(inside[c, i + k].astype("int32") * w[c, k].astype("int32"), k),
            name="sums",
        )
        return te.compute((channels, size), lambda c, i: total[c, i] + tvm.tirx.const(1, "int32"), name="result")

    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(body, x, relax.const(weights, str(weights.dtype))))
        builder.emit_func_output(result)
    return builder.get()


def script(mod: tvm.IRModule) -> str:
    with parse_target("cpu"):
        after = FloatProducts()(mod)
    (kernel,) = (func for func in after.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    return kernel.script()


@pytest.mark.parametrize(("dtype", "least", "most"), [("uint8", 0, 255), ("int8", -128, 127)])
def test_the_largest_numbers_are_exact(dtype, least, most):
    random = np.random.default_rng(0)
    weights, x = random.integers(-128, 128, (5, 3)), random.integers(least, most + 1, (5, 9))
    weights[0], x[0], x[1] = -128, most, least
    mod = depthwise(weights.astype("int8"), dtype)
    found = script(mod)
    assert '"float32")' in found and "* B[" in found  # no cast of the copy or of the constant is left in the sum
    padded = np.pad(x, ((0, 0), (1, 1)))
    wanted = 1 + sum(padded[:, k : k + 9] * weights[:, k : k + 1] for k in range(3))
    np.testing.assert_array_equal(compile(mod).run(x.astype(dtype))[0], wanted)


def test_the_numbers_of_a_constant_count_and_not_their_type():
    small, large = np.full((5, 3), 85, "int16"), np.full((5, 3), 30000, "int16")
    small[:, 1:] = 0
    assert '"float32")' in script(depthwise(small, "int16"))  # 32768 * 85 for each result
    assert '"float32")' not in script(depthwise(large, "int16"))


def test_sums_that_may_leave_24_bits_stay_integers():
    edge = np.array([[171, 171, 170]], "int16")  # of 2^15 each: 2^24 exactly
    assert '"float32")' in script(depthwise(edge, "int16"))
    edge[0, 2] += 1
    assert '"float32")' not in script(depthwise(edge, "int16"))


@pytest.mark.parametrize(("depth", "both"), [(8, True), (258, True), (259, False)])
def test_both_products_of_attention_are_of_floats(depth, both):
    """Pairs would have to be made number by number: 255 * 255 * 258 is the largest sum of bytes below 2^24."""
    rows, columns = 6, 32
    builder, shapes = relax.BlockBuilder(), ((rows, 8), (8, depth), (depth, columns))
    given = [relax.Var(name, relax.TensorType(shape, "uint8")) for name, shape in zip("xyz", shapes)]

    def product(a, b, name):
        k = te.reduce_axis((0, int(a.shape[1])), "k")
        term = lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), k)  # noqa: E731
        return te.compute((a.shape[0], b.shape[1]), term, name=name)

    def body(x, y, z):
        first = product(x, y, "first")
        again = te.compute(first.shape, lambda i, j: (first[i, j] >> 4).astype("uint8"), name="bytes")
        second = product(again, z, "second")
        return te.compute(second.shape, lambda i, j: second[i, j] + tvm.tirx.const(1, "int32"), name="result")

    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(body, *given))
        builder.emit_func_output(result)
    mod = builder.get()
    with parse_target('{"kind": "llvm", "mcpu": "haswell"}'):
        after = FloatProducts()(PairProducts()(mod))
    (kernel,) = (func for func in after.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    assert kernel.script().count("T.float32(0") == 1 + both  # starts of sums
    arrays = [np.random.default_rng(n).integers(0, 256, shape).astype("uint8") for n, shape in enumerate(shapes)]
    arrays[2][:] = 255
    x, y, z = (each.astype("int64") for each in arrays)
    want = ((x @ y) >> 4).astype("uint8").astype("int64") @ z + 1
    np.testing.assert_array_equal(compile(mod).run(*arrays)[0], want)

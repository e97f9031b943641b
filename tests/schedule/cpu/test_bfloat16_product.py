# SPDX-License-Identifier: Apache-2.0
"""Products of numbers rounded to bfloat16: the instructions of AMX, the numbers, and what stays in float32."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, te

import helpers
import smartmem_tvm
from covering import pairs, singles
from smartmem_tvm.cpu_features import has_tiles
from smartmem_tvm.deploy.cpu_build import build_kernels
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.schedule import RoundProducts, ScheduleKernels
from smartmem_tvm.schedule.constants import round_products
from smartmem_tvm.schedule.schedule_kernels import kernel_rules
from smartmem_tvm.target import host_target

TILES = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
PLAIN = tvm.target.Target({"kind": "llvm", "num-cores": 2})


def sum_over(count, name="k"):
    return te.reduce_axis((0, count), name)


def matmul(x, w):
    k = sum_over(x.shape[1])
    return te.compute((x.shape[0], w.shape[1]), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="matmul")


def columns_first(x, w):
    k = sum_over(x.shape[1])
    return te.compute((x.shape[0], w.shape[0]), lambda i, j: te.sum(x[i, k] * w[j, k], k), name="matmul")


def transposed(x, w):
    """Its result is contiguous along the rows of x: the weights are the left operand."""
    k = sum_over(x.shape[1])
    return te.compute((w.shape[1], x.shape[0]), lambda j, i: te.sum(x[i, k] * w[k, j], k), name="matmul")


def batched(x, w):
    k = sum_over(x.shape[2])
    shape = (*x.shape[:2], w.shape[2])
    return te.compute(shape, lambda b, i, j: te.sum(x[b, i, k] * w[b, k, j], k), name="matmul")


def scores(x, w):
    """Several heads, the depth of two iterators, an epilogue: as attention has them."""
    k, q = sum_over(4, "k"), sum_over(5, "q")
    shape = (w.shape[1], x.shape[0], w.shape[0])
    product = te.compute(shape, lambda h, i, j: te.sum(x[i, h, k, q] * w[j, h, k, q], (k, q)), name="matmul")
    return te.compute(shape, lambda h, i, j: te.max(product[h, i, j], te.const(0.0, "float32")) * 0.5, name="scaled")


def windows(x, w):
    """A convolution with a stride of two over 3 x 3 windows, and a sum after it."""
    c, p, q = sum_over(x.shape[0], "c"), sum_over(3, "p"), sum_over(3, "q")
    side = (x.shape[1] - 3) // 2 + 1
    shape = (w.shape[0], side, side)
    made = te.compute(
        shape,
        lambda f, i, j: te.sum(x[c, i * 2 + p, j * 2 + q] * w[f, c, p, q], (c, p, q)),
        name="conv",
    )
    return te.compute(shape, lambda f, i, j: made[f, i, j] + te.const(1.5, "float32"), name="sum")


def pixels(x, w):
    c = sum_over(x.shape[0], "c")
    shape = (w.shape[0], *x.shape[1:])
    return te.compute(shape, lambda f, i, j: te.sum(x[c, i, j] * w[f, c], c), name="conv")


def windowed(x, w):
    view = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))[:, ::2, ::2]
    return np.einsum("cijpq,fcpq->fij", view, w) + 1.5


CASES = {
    "whole tiles": (matmul, (64, 96), (96, 64), lambda x, w: x @ w),
    "ragged everywhere": (matmul, (53, 101), (101, 83), lambda x, w: x @ w),
    "less than a tile": (matmul, (13, 370), (370, 247), lambda x, w: x @ w),
    "next to nothing": (matmul, (2, 3), (3, 5), lambda x, w: x @ w),
    "a tile and one": (matmul, (17, 33), (33, 49), lambda x, w: x @ w),
    "an odd depth of few": (matmul, (264, 67), (67, 17), lambda x, w: x @ w),
    "columns first": (columns_first, (197, 64), (61, 64), lambda x, w: x @ w.T),
    "transposed": (transposed, (57, 77), (77, 240), lambda x, w: (x @ w).T),
    "parts of the depth": (matmul, (53, 1100), (1100, 83), lambda x, w: x @ w),
    "parts of the depth, transposed": (transposed, (57, 1600), (1600, 75), lambda x, w: (x @ w).T),
    "batches": (batched, (3, 37, 65), (3, 65, 35), lambda x, w: x @ w),
    "heads": (
        scores,
        (49, 3, 4, 5),
        (50, 3, 4, 5),
        lambda x, w: np.maximum(np.einsum("ihkq,jhkq->hij", x, w), 0) * 0.5,
    ),
    "windows": (windows, (64, 23, 23), (160, 64, 3, 3), windowed),
    "pixels": (pixels, (128, 7, 7), (70, 128), lambda x, w: np.einsum("cij,fc->fij", x, w)),
}


def module(body, x_shape, *weights, constant=True, stored="float32") -> tvm.IRModule:
    """``main(x)``, or ``main(x, w)``: the body applied to x, which is stored as what it says, and a weight."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x_shape, stored))
    given = [] if constant else [relax.Var("w", relax.TensorType(each.shape, "float32")) for each in weights]
    with builder.function("main", [x, *given]):
        with builder.dataflow():
            known = [relax.const(each, "float32") for each in weights]
            result = builder.emit_output(builder.emit_te(widened(body), x, *(known if constant else given)))
        builder.emit_func_output(result)
    return builder.get()


def widened(body):
    """The body of what is stored in 16 bits."""

    def made(x, *weights):
        if x.dtype == "float32":
            return body(x, *weights)
        return body(te.compute(x.shape, lambda *at: x[at].astype("float32"), name="wide"), *weights)

    return made


def draw(*shape) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype("float64")


def with_rounding(mod: tvm.IRModule, target=TILES) -> tvm.IRModule:
    with target:
        return RoundProducts()(mod)


def schedule(mod: tvm.IRModule, target=TILES) -> tvm.IRModule:
    with target:
        return ScheduleKernels()(mod)


def kernel(mod: tvm.IRModule) -> tvm.tirx.PrimFunc:
    (found,) = (func for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    return found


def results(mod: tvm.IRModule, target, *arrays: np.ndarray) -> np.ndarray:
    vm = relax.VirtualMachine(relax.build(mod, target), tvm.cpu())
    return vm["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def assembly(func: tvm.tirx.PrimFunc) -> str:
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return build_kernels(mod, TILES).inspect_source("asm")


@pytest.mark.each_value
@pytest.mark.parametrize("constant", [True, False], ids=["packed", "given"])
@pytest.mark.parametrize("case", CASES)
def test_products_of_all_shapes(case, constant, monkeypatch):
    """On a CPU with tiles in tiles, on any other in plain loops: the rounded kernel means the same."""
    monkeypatch.setattr(round_products, "price_objection", lambda *_, **__: None)  # small ones are faster as they are
    body, x_shape, w_shape, reference = CASES[case]
    x, w = draw(*x_shape), draw(*w_shape)
    mod = with_rounding(module(body, x_shape, w, constant=constant))
    arrays = (x,) if constant else (x, w)
    want, exact = reference(rounded(x), rounded(w)), reference(x.astype("float64"), w.astype("float64"))
    scheduled = schedule(mod)
    assert {rule["name"] for rule in kernel_rules(scheduled).values()} == {"Bfloat16Product"}
    # TVM's own loops keep a computed operand in float32.
    np.testing.assert_allclose(results(mod, PLAIN, *arrays), exact, atol=1e-2 * np.abs(exact).max(), rtol=0)
    if has_tiles(host_target()):
        found = results(scheduled, host_target(), *arrays)
        np.testing.assert_allclose(found, want, atol=2e-5 * np.abs(want).max(), rtol=2e-5)


@pytest.mark.parametrize(("case", "constant"), singles(CASES, [True, False]))
def test_numbers_that_are_stored_rounded_are_copied_as_they_are(case, constant, monkeypatch):
    monkeypatch.setattr(round_products, "price_objection", lambda *_, **__: None)
    body, x_shape, w_shape, reference = CASES[case]
    x, w = draw(*x_shape).astype(ml_dtypes.bfloat16), rounded(draw(*w_shape)).astype("float32")
    scheduled = schedule(with_rounding(module(body, x_shape, w, constant=constant, stored="bfloat16")))
    assert {rule["name"] for rule in kernel_rules(scheduled).values()} == {"Bfloat16Product"}
    if constant:  # else the weights are rounded
        assert "cvtneps2bf16" not in assembly(kernel(scheduled))
    if has_tiles(host_target()):
        found, want = results(scheduled, host_target(), *((x,) if constant else (x, w))), reference(rounded(x), w)
        np.testing.assert_allclose(found, want, atol=2e-5 * np.abs(want).max(), rtol=2e-5)


@pytest.mark.parametrize("case", ["ragged everywhere", "windows", "heads"])
def test_the_code_has_the_instructions(case):
    body, x_shape, w_shape, _ = CASES[case]
    code = assembly(kernel(schedule(with_rounding(module(body, x_shape, draw(*w_shape))))))
    for name in ("ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease", "vcvtneps2bf16", "syscall"):
        assert name in code, name


def test_a_constant_is_stored_in_tiles():
    mod = with_rounding(module(matmul, (64, 40), draw(40, 350)))
    (constant,) = constants(mod)
    assert constant.dtype == ml_dtypes.bfloat16 and constant.shape == (1, 22, 2, 16, 32)
    want = np.zeros((64, 352), ml_dtypes.bfloat16)
    want[:40, :350] = draw(40, 350).astype(ml_dtypes.bfloat16)
    for column, depth in ((0, 0), (17, 3), (349, 39), (350, 1), (3, 40)):
        tile = constant[0, column // 16, depth // 32]
        assert tile[depth % 32 // 2, column % 16 * 2 + depth % 2] == want[depth, column]


def constants(mod: tvm.IRModule) -> list[np.ndarray]:
    found = [each.value for each in collect(mod["main"], tvm.ir.Constant)]
    return [each.numpy() for each in found if hasattr(each, "numpy")]


def test_numbers_that_are_none_stay_so():
    x = draw(33, 64)
    x[3, 5], x[7, 1] = np.nan, np.inf
    mod = schedule(with_rounding(module(matmul, x.shape, np.ones((64, 40), "float32"))))
    if has_tiles(host_target()):
        found = results(mod, host_target(), x)
        assert np.isnan(found[3]).all() and np.isposinf(found[7]).all()
        others = [row for row in range(33) if row not in (3, 7)]
        np.testing.assert_allclose(found[others], rounded(x)[others] @ np.ones((64, 40)), rtol=1e-4, atol=1e-4)
    assert "tdpbf16ps" in assembly(kernel(mod))


@pytest.mark.parametrize(
    "body, x_shape, w_shape, reason",
    [
        (matmul, (20, 20), (20, 20), "price:"),
        (windows, (4, 23, 23), (16, 4, 3, 3), "price:"),
    ],
)
def test_what_stays_in_float32_and_why(body, x_shape, w_shape, reason):
    mod = with_rounding(module(body, x_shape, draw(*w_shape)))
    (entry,) = read_log(mod)
    assert entry["multiplied"] == "float32" and entry["reason"].startswith(reason)
    assert "bfloat16" not in str(kernel(mod))


def padded(stride: int):
    """A convolution of 3 x 3 windows, padded by one, and a maximum after it."""

    def body(x, w):
        c, p, q = sum_over(x.shape[0], "c"), sum_over(3, "p"), sum_over(3, "q")
        side, out = x.shape[1], (x.shape[1] - 1) // stride + 1
        zero = te.const(0.0, "float32")
        pad = te.compute(
            (x.shape[0], side + 2, side + 2),
            lambda f, i, j: te.if_then_else(te.all(i >= 1, i <= side, j >= 1, j <= side), x[f, i - 1, j - 1], zero),
            name="pad",
        )
        made = te.compute(
            (w.shape[0], out, out),
            lambda f, i, j: te.sum(pad[c, i * stride + p, j * stride + q] * w[f, c, p, q], (c, p, q)),
            name="conv",
        )
        return te.compute(made.shape, lambda f, i, j: te.max(made[f, i, j], zero), name="relu")

    return body


def convolved(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
    view = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))
    return np.maximum(np.einsum("cijpq,fcpq->fij", view[:, ::stride, ::stride], w), 0)


# Side of the picture, channels, filters, stride.
IMAGES = [
    (14, 64, 96, 1),
    (7, 128, 128, 1),  # two lines are less than a tile; one is left over
    (16, 32, 64, 1),
    (33, 96, 40, 1),  # a line is two tiles and one column
    (50, 32, 33, 1),
    (28, 64, 64, 2),
    (19, 64, 130, 2),
    (19, 40, 130, 2),  # channels that fill no tile
    (12, 512, 64, 1),  # sums in parts of the depth
]


@pytest.mark.parametrize(("image", "how"), singles(IMAGES, pairs(["float32", "bfloat16"], [1, 8])), ids=str)
def test_a_padded_convolution_is_a_copy_and_a_product(image, how, monkeypatch):
    (side, channels, rows, stride), (stored, cores) = image, how
    monkeypatch.setattr(round_products, "price_objection", lambda *_, **__: None)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": cores})
    x, w = draw(channels, side, side), draw(rows, channels, 3, 3)
    given = x.astype(ml_dtypes.bfloat16) if stored == "bfloat16" else x
    mod = with_rounding(module(padded(stride), x.shape, w, stored=stored), target)
    assert [entry["multiplied"] for entry in read_log(mod)] == ["bfloat16"]
    scheduled = schedule(mod, target)
    assert {rule["name"] for rule in kernel_rules(scheduled).values()} == {"Elementwise + Bfloat16Product"}
    assert "image = " in kernel(scheduled).script()
    want, exact = convolved(rounded(x), rounded(w), stride), convolved(x.astype("float64"), w, stride)
    np.testing.assert_allclose(results(mod, PLAIN, given), exact, atol=2e-2 * exact.max(), rtol=0)
    if has_tiles(host_target()):
        found = results(scheduled, host_target(), given)
        np.testing.assert_allclose(found, want, atol=2e-5 * want.max(), rtol=2e-5)


@pytest.mark.parametrize(("size", "dilation"), [((1, 3), 2), ((3, 1), 1), ((5, 5), 2)])
def test_windows_of_all_kinds_over_an_image_in_tiles(size, dilation, monkeypatch):
    """Through the whole pipeline: a batch of one, bias, and a residual that is added."""
    monkeypatch.setattr(round_products, "price_objection", lambda *_, **__: None)
    pad = tuple(dilation * (each // 2) for each in size)
    weight, bias = helpers.constant(64, 64, *size), helpers.constant(1, 64, 1, 1, seed=3)

    def body(x):
        made = helpers.op.nn.conv2d(x, weight, padding=pad, dilation=dilation)
        return helpers.op.nn.relu(helpers.op.add(helpers.op.add(made, bias), x))

    mod, (x,) = helpers.module(body, (1, 64, 21, 20)), helpers.random((1, 64, 21, 20))
    target = host_target() if has_tiles(host_target()) else TILES
    compiled = smartmem_tvm.compile(mod, target, smartmem_tvm.Options(precision="bfloat16"))
    assert "Bfloat16Product" in " ".join(rule["name"] for rule in compiled.rules.values())
    if has_tiles(host_target()):
        (want,) = helpers.run(mod, x)
        np.testing.assert_allclose(compiled.run(x)[0], want, atol=2e-2 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_network_s_convolution_is_rounded_before_it_is_transformed(stride):
    """Winograd's transforms are for what stays float32."""
    mod = helpers.module(
        lambda x: helpers.op.nn.conv2d(x, helpers.constant(64, 64, 3, 3), strides=stride, padding=1), (1, 64, 28, 28)
    )
    compiled = smartmem_tvm.compile(mod, TILES, smartmem_tvm.Options(precision="bfloat16"))
    assert {rule["name"] for rule in compiled.rules.values()} == {"Elementwise + Bfloat16Product"}


def of_groups(rows: int, depth: int):
    """Each group multiplies its rows of x by its own weights."""

    def body(x, w):
        k = sum_over(depth)
        shape = (w.shape[0], x.shape[1])
        return te.compute(shape, lambda f, j: te.sum(x[f // rows * depth + k, j] * w[f, k], k), name="conv")

    return body


def test_small_groups_stay_in_float32():
    mod = with_rounding(module(of_groups(4, 4), (128, 200), draw(128, 4)))
    (entry,) = read_log(mod)
    assert entry["multiplied"] == "float32" and entry["reason"].startswith("price:")


@pytest.mark.parametrize("groups, rows, depth", [(2, 64, 96), (3, 20, 33), (4, 16, 32)])
@pytest.mark.parametrize("constant", [True, False], ids=["packed", "given"])
def test_products_of_groups(groups, rows, depth, constant, monkeypatch):
    x, w = draw(groups * depth, 70), draw(groups * rows, depth)
    monkeypatch.setattr(round_products, "price_objection", lambda *_, **__: None)
    mod = with_rounding(module(of_groups(rows, depth), x.shape, w, constant=constant))
    scheduled = schedule(mod)
    assert {rule["name"] for rule in kernel_rules(scheduled).values()} == {"Bfloat16Product"}
    parts = zip(np.split(rounded(w), groups), np.split(rounded(x), groups), strict=True)
    want, given = np.concatenate([a @ b for a, b in parts]), (x,) if constant else (x, w)
    np.testing.assert_allclose(results(mod, PLAIN, *given), want, atol=2e-2 * np.abs(want).max(), rtol=0)
    if has_tiles(host_target()):
        found = results(scheduled, host_target(), *given)
        np.testing.assert_allclose(found, want, atol=2e-5 * np.abs(want).max(), rtol=2e-5)


def test_a_vector_stays_in_float32():
    mod = with_rounding(module(matmul, (1, 64), draw(64, 50)))
    assert read_log(mod) == [] and "bfloat16" not in str(kernel(mod))


def test_a_processor_without_tiles_gets_the_same_numbers():
    """A kernel that was rounded for another processor is a kernel as any other."""
    body, x_shape, w_shape, reference = CASES["ragged everywhere"]
    x, w = draw(*x_shape), draw(*w_shape)
    mod = schedule(with_rounding(module(body, x_shape, w)), PLAIN)
    assert {rule["name"] for rule in kernel_rules(mod).values()} == {"Matmul"}
    np.testing.assert_allclose(results(mod, PLAIN, x), reference(x, w), atol=0.3, rtol=0)


def test_codegen_of_many_cores_cuts_both_ways():
    """Chunks of rows and of columns, the last of each ragged."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 8})
    x, w = draw(301, 65), draw(65, 299)
    mod = schedule(with_rounding(module(matmul, x.shape, w), target), target)
    if has_tiles(host_target()):
        np.testing.assert_allclose(results(mod, host_target(), x), rounded(x) @ rounded(w), atol=1e-3, rtol=1e-4)
    assert "tdpbf16ps" in assembly(kernel(mod))

# SPDX-License-Identifier: Apache-2.0
"""HalfStorage: which kernels become float kernels, exactly, and which are left alone."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm.deploy.textures import build_textures, texture_machine
from smartmem_tvm.errors import UserError
from smartmem_tvm.target import parse_target
from texture_modules import TARGET, Program, body, opencl, rounded_alike, sources

SHAPE = (6, 8, 4)
ARRAY = np.random.default_rng(0).uniform(-8, 8, SHAPE).astype("float16")
ZERO = tirx.const(0, "float16")


def single(value):
    return value.astype("float32")


def half(value):
    return value.astype("float16")


# name -> function of an element of halves, the same with numpy. The values are exact, or rounded once, at the end.
CONVERTED = {
    "copy": (lambda x: x, lambda x: x),
    "maximum": (lambda x: tirx.max(x, ZERO), lambda x: np.maximum(x, 0)),
    "minimum": (lambda x: tirx.min(x, ZERO), lambda x: np.minimum(x, 0)),
    "float": (lambda x: single(x) * single(x) + 1.0, lambda x: np.float32(x) * np.float32(x) + 1),
    "rounded": (lambda x: half(single(x) * 0.3), lambda x: np.float16(np.float32(x) * np.float32(0.3))),
    "select": (
        lambda x: tirx.Select(single(x) > 1.0, half(single(x) * 0.3), ZERO),
        lambda x: np.where(x > 1, np.float16(np.float32(x) * np.float32(0.3)), np.float16(0)),
    ),
    "maximum of rounded": (
        lambda x: tirx.max(half(single(x) * 0.3), x),
        lambda x: np.maximum(np.float16(np.float32(x) * np.float32(0.3)), x),
    ),
}
# These need half arithmetic, or a rounding in the middle; the same with numpy, which rounds each result too.
COMPUTED = {
    "sum": (lambda x: x + x * x, lambda x: x + x * x),
    "function": (lambda x: te.exp(x), lambda x: np.exp(x.astype("float32")).astype("float16")),
    "beyond half": (lambda x: te.exp(x * x) / te.exp(x * x), lambda x: np.exp(x * x) / np.exp(x * x)),
    "rounded and read": (
        lambda x: single(half(single(x) * 0.3)) * 2.0,
        lambda x: np.float32(np.float16(np.float32(x) * np.float32(0.3))) * np.float32(2),
    ),
    "comparison": (lambda x: tirx.Select(x + x > x * x, x, ZERO), lambda x: np.where(x + x > x * x, x, np.float16(0))),
    "remainder": (lambda x: tirx.truncmod(x, tirx.const(3, "float16")), lambda x: np.fmod(x, np.float16(3))),
    "whole number": (lambda x: half((x * x).astype("int32")), lambda x: (x * x).astype("int32").astype("float16")),
}


def executable(function, scopes, target=TARGET):
    program = Program()
    x = program.input(SHAPE, "float16", scopes[0])
    y = program.kernel(lambda a: te.compute(a.shape, lambda *i: function(a(*i))), x, scope=scopes[1])
    return build_textures(program.module(y), target)


@pytest.mark.each_value
@pytest.mark.parametrize("scopes", [("global.texture", "global.texture"), ("global", "global")], ids=lambda s: s[0])
@pytest.mark.parametrize("name", CONVERTED)
def test_converted(name, scopes):
    function, expected = CONVERTED[name]
    code, device = executable(function, scopes), opencl()
    given = tvm.runtime.empty(SHAPE, "float16", device, mem_scope=scopes[0]).copyfrom(ARRAY)
    found = texture_machine(code, device)["main"](given).numpy()
    assert rounded_alike(found, expected(ARRAY))
    text = sources(code)["kernel_t0"]
    assert "fp16" not in text and "half4 v" not in body(text) and "IMAGEH" not in text.upper().split("__KERNEL", 1)[1]


@pytest.mark.each_value
@pytest.mark.parametrize("scopes", [("global.texture", "global.texture"), ("global", "global")], ids=lambda s: s[0])
@pytest.mark.parametrize("name", COMPUTED)
def test_computed_in_single(name, scopes):
    """Numbers as of half arithmetic, on a device that has none."""
    function, expected = COMPUTED[name]
    device = opencl()
    if name == "rounded and read":
        scopes = (scopes[0], "global")
    code = executable(function, scopes)
    given = tvm.runtime.empty(SHAPE, "float16", device, mem_scope=scopes[0]).copyfrom(ARRAY)
    with np.errstate(over="ignore", invalid="ignore"):
        right = expected(ARRAY)
    np.testing.assert_allclose(texture_machine(code, device)["main"](given).numpy(), right, rtol=1e-3)
    text = sources(code)["kernel_t0"]
    assert "fp16" not in text and "IMAGEH" not in text.upper().split("__KERNEL", 1)[1]


@pytest.mark.parametrize("name", COMPUTED)
def test_kept_where_the_device_computes_in_half(name):
    phone = parse_target("adreno-740")
    text = sources(executable(COMPUTED[name][0], ("global.texture", "global"), phone))["kernel_t0"]
    assert "read_imageh" in text and "cl_khr_fp16" in text and "round_half" not in text


def test_a_branch_is_not_a_rounding():
    """Both sides of an if_then_else, one of them rounded by its cast."""

    def value(a, i, j, v):
        return tirx.if_then_else(i < 3, half(single(a(i, j, v)) * 0.3), a(i, j, v))

    program, device = Program(), opencl()
    x = program.input(SHAPE, "float16", "global.texture")
    y = program.kernel(lambda a: te.compute(a.shape, lambda *i: value(a, *i)), x, scope="global.texture")
    given = tvm.runtime.empty(SHAPE, "float16", device, mem_scope="global.texture").copyfrom(ARRAY)
    found = texture_machine(build_textures(program.module(y), TARGET), device)["main"](given).numpy()
    expected = ARRAY.copy()
    expected[:3] = np.float16(np.float32(ARRAY[:3]) * np.float32(0.3))
    assert rounded_alike(found, expected)


def kept_in(scope):
    """A schedule: one thread for each element, which keeps the first stage's there."""

    def schedule(func):
        sch = tvm.s_tir.Schedule(func)
        kept, out = sch.get_child_blocks(sch.get_sblock("root"))
        grid, thread = sch.split(sch.fuse(*sch.get_loops(out)), [None, 64])
        sch.bind(grid, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
        sch.compute_at(kept, thread)
        sch.set_scope(kept, 0, scope)
        return sch.mod["main"]

    return schedule


@pytest.mark.parametrize("scope", ["local", "shared"])
def test_halves_on_chip_that_a_float_is_rounded_for(scope):
    """Rounded when they are kept, and read as what they were rounded to."""

    def compute(a):
        kept = te.compute(a.shape, lambda *i: half(single(a(*i)) * 0.3), name="kept")
        return te.compute(a.shape, lambda *i: single(kept(*i)) * 3.0, name="out")

    program, device = Program(), opencl()
    x = program.input(SHAPE, "float16")
    code = build_textures(program.module(program.kernel(compute, x, schedule=kept_in(scope))), TARGET)
    found = texture_machine(code, device)["main"](tvm.runtime.tensor(ARRAY, device)).numpy()
    rounded = np.float16(np.float32(ARRAY) * np.float32(0.3))
    np.testing.assert_array_equal(found, np.float32(rounded) * 3)
    text = sources(code)["kernel_t0"]
    space = {"local": "__private", "shared": "__local"}[scope]
    assert f"({space} half*)" in body(text) and "fp16" not in text


def test_lanes_that_lie_apart():
    """A vector whose numbers are not one after the other in memory is read, and written, one by one."""

    def turned(sch, block):
        *_, lane = sch.get_loops(block)
        sch.vectorize(lane)
        sch.bind(sch.get_loops(block)[0], "threadIdx.x")

    def schedule(func):
        sch = tvm.s_tir.Schedule(func)
        for block in sch.get_child_blocks(sch.get_sblock("root")):
            turned(sch, block)
        return sch.mod["main"]

    program, device = Program(), opencl()
    x = program.input((4, 8), "float16")
    read = program.kernel(
        lambda a: te.compute((a.shape[1], a.shape[0]), lambda i, j: a(3 - j, i) + a(j, i)), x, schedule=schedule
    )
    code = build_textures(program.module(read), TARGET)
    array = ARRAY[:4, :, 0].copy()
    found = texture_machine(code, device)["main"](tvm.runtime.tensor(array, device)).numpy()
    np.testing.assert_array_equal(found, (array[::-1] + array).T)


def test_the_bits_of_a_half_are_refused():
    def bits(a):
        return te.compute(a.shape, lambda *i: tirx.reinterpret("int16", a(*i)))

    program = Program()
    y = program.kernel(bits, program.input(SHAPE, "float16"))
    with pytest.raises(UserError, match="kernel_t0_kernel needs the bits of float16 numbers"):
        build_textures(program.module(y), TARGET)

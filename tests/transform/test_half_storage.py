# SPDX-License-Identifier: Apache-2.0
"""HalfStorage: which kernels become float kernels, exactly, and which are left alone."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm.deploy.textures import build_textures, texture_machine
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
# These need half arithmetic, or a rounding in the middle.
KEPT = {
    "sum": lambda x: x + x,
    "function": lambda x: te.exp(x),
    "rounded and read": lambda x: single(half(single(x) * 0.3)) * 2.0,
}


def executable(function, scopes):
    program = Program()
    x = program.input(SHAPE, "float16", scopes[0])
    y = program.kernel(lambda a: te.compute(a.shape, lambda *i: function(a(*i))), x, scope=scopes[1])
    return build_textures(program.module(y), TARGET)


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


@pytest.mark.parametrize("name", KEPT)
def test_kept(name):
    text = sources(executable(KEPT[name], ("global.texture", "global")))["kernel_t0"]
    assert "read_imageh" in text and "cl_khr_fp16" in text


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

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

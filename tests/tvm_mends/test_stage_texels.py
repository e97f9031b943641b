# SPDX-License-Identifier: Apache-2.0
"""StageTexels: which vectorized loops are split, and that they compute the same."""

import math

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from smartmem_tvm.deploy.textures import build_textures, texture_machine
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.tvm_mends import StageTexels
from texture_modules import TARGET, Program, body, flatten, opencl, rounded_alike, sources, unflatten

SHAPE = (6, 8, 4)
ARRAY = np.random.default_rng(0).uniform(-1, 1, SHAPE).astype("float32")


def run(compute, scope, array=ARRAY, texture=True):
    """Output of a kernel and its source."""
    program, device = Program(), opencl()
    x = program.input(array.shape, str(array.dtype), "global.texture" if texture else "global")
    module = program.module(program.kernel(compute, x, scope=scope))
    given = tvm.runtime.empty(array.shape, str(array.dtype), device, mem_scope="global.texture" if texture else None)
    executable = build_textures(module, TARGET)
    found = texture_machine(executable, device)["main"](given.copyfrom(array))
    return found.numpy(), body(sources(executable)["kernel_t0"])


def on_host(function):
    return np.array([function(*index) for index in np.ndindex(SHAPE)], "float32").reshape(SHAPE)


def gather(i, j, v):
    """Every number from another texel."""
    return unflatten((flatten((i, j, v), SHAPE) * 5 + 3) % 192, SHAPE)


SPLIT = {
    "branches": lambda a, i, j, v: tirx.if_then_else(j * 4 + v < 29, a(i, j, v), tirx.const(0, "float32")),
    "other lanes": lambda a, i, j, v: a(i, j, 3 - v),
    "several texels": lambda a, i, j, v: a(*gather(i, j, v)),
    "transposed": lambda a, i, j, v: a(i, (j // 4) * 4 + v, j % 4),
}
EXPECTED = {
    "branches": on_host(lambda i, j, v: ARRAY[i, j, v] if j * 4 + v < 29 else 0),
    "other lanes": ARRAY[:, :, ::-1],
    "several texels": on_host(lambda i, j, v: ARRAY[tuple(gather(i, j, v))]),
    "transposed": ARRAY.reshape(6, 2, 4, 4).transpose(0, 1, 3, 2).reshape(SHAPE),
}


@pytest.mark.parametrize("name", SPLIT)
def test_into_a_texture(name):
    found, code = run(lambda a: te.compute(a.shape, lambda *i: SPLIT[name](a, *i)), "global.texture")
    assert np.array_equal(found, EXPECTED[name])
    assert "_ptr[4]" in code and code.count("write_imagef") == 1


@pytest.mark.parametrize("name", SPLIT)
def test_into_a_buffer(name):
    """A buffer takes single numbers: nothing is put together."""
    found, code = run(lambda a: te.compute(a.shape, lambda *i: SPLIT[name](a, *i)), "global")
    assert np.array_equal(found, EXPECTED[name])
    assert "numbers_ptr" not in code


COUNTED = {
    "a branch": lambda x, i, j, v: tirx.if_then_else(j * 4 + v < 29, x, tirx.const(0, "float32")),
    "a function of single numbers": lambda x, i, j, v: tirx.erf(x) * x,
}


@pytest.mark.parametrize("scope", ["global", "global.texture"])
@pytest.mark.parametrize("name", COUNTED)
def test_a_texel_is_read_once_for_its_four_numbers(name, scope):
    _, code = run(lambda a: te.compute(a.shape, lambda *i: COUNTED[name](a(*i), *i)), scope)
    assert code.count("READ_IMAGEF(") == 1
    assert code.index("READ_IMAGEF(") < code.index("for (")


@pytest.mark.parametrize("scope", ["global", "global.texture"])
def test_a_texel_of_halves_is_read_once_as_floats(scope):
    def compute(a):
        one = tirx.const(1, "float32")
        return te.compute(a.shape, lambda *i: (tirx.erf(a(*i).astype("float32")) + one).astype("float16"))

    found, code = run(compute, scope, ARRAY.astype("float16"))
    expected = np.vectorize(math.erf)(ARRAY.astype("float16").astype("float32")) + 1
    assert np.abs(found - expected).max() < 2e-3
    assert code.count("READ_IMAGEF(") == 1 and code.index("READ_IMAGEF(") < code.index("for (")
    assert "half" not in code.replace("vstore_half", "").replace("__global half*", "")


def test_a_division_that_no_lane_changes():
    """Of (j * 12 + v + 4) // 64 the simplifier of TVM does not see that it is the same for all four lanes."""

    def compute(a):
        return te.compute(a.shape, lambda i, j, v: a((j * 12 + v + 4) // 64, j, (j * 12 + v + 4) % 4))

    found, code = run(compute, "global.texture")
    expected = [ARRAY[(j * 12 + v + 4) // 64, j, v] for _ in range(6) for j in range(8) for v in range(4)]
    assert np.array_equal(found, np.reshape(expected, SHAPE))
    assert "for (" not in code and code.count("READ_IMAGEF(") == 1


def test_halves_are_put_together_as_floats():
    zero = tirx.const(0, "float16")
    half = lambda a, i, j, v: tirx.if_then_else(j * 4 + v < 29, a(i, j, v).astype("float16"), zero)  # noqa: E731
    found, code = run(lambda a: te.compute(a.shape, lambda *i: half(a, *i)), "global.texture", texture=False)
    assert rounded_alike(found, EXPECTED["branches"].astype("float16"))
    assert "float numbers_ptr[4]" in code and "half" not in code


@pytest.mark.parametrize("scope", ["global", "global.texture"])
def test_vectors_stay_vectors(scope):
    def compute(a):
        return te.compute(a.shape, lambda i, j, v: a(5 - i, j, v) + a(i, j, 0) + te.sin(a(i, j, v)))

    found, code = run(compute, scope)
    np.testing.assert_allclose(found, ARRAY[::-1] + ARRAY[:, :, :1] + np.sin(ARRAY), rtol=1e-5)
    assert "for (" not in code and "numbers" not in code


def halves(width, shape=(6, 16), other=1):
    """``y = (x + 1) * erf(x[...])`` in half, by vectors; with `other` the second factor is of every n-th number."""
    x, y = (tirx.decl_buffer(shape, "float16", name) for name in "xy")
    i, q, v = (tirx.Var(name, "int32") for name in ("i", "q", "v"))
    at = q * width + v
    erf = tirx.call_intrin("float16", "tirx.erf", tirx.BufferLoad(x, [i, at // other]))
    value = (tirx.BufferLoad(x, [i, at]) + tirx.const(1, "float16")) * erf
    body = tirx.For(v, 0, width, tirx.ForKind.VECTORIZED, tirx.BufferStore(y, value, [i, at]))
    for var, extent in ((q, shape[1] // width), (i, shape[0])):
        body = tirx.For(var, 0, extent, tirx.ForKind.SERIAL, body)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    return tirx.PrimFunc([x, y], root).with_attr({"s_tir": True, "global_symbol": "main"})


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("other", [1, 3])
def test_halves_move_as_vectors_around_a_function_of_single_numbers(width, other):
    mod = StageTexels()(tvm.IRModule({"main": halves(width, other=other)}))
    kinds = [loop.kind for loop in collect(mod["main"].body, tirx.For) if loop.loop_var.name == "v"]
    vectors, serial = (kinds.count(k) for k in (tirx.ForKind.VECTORIZED, tirx.ForKind.SERIAL))
    assert (vectors, serial) == (2, 1)  # what lies side by side is read at once, and all is written at once
    x = np.random.default_rng(3).uniform(-1, 1, (6, 16)).astype("float16")
    places = np.arange(16) // other
    expected = (x + np.float16(1)) * np.vectorize(math.erf)(x[:, places]).astype("float16")
    y = tvm.runtime.tensor(np.zeros_like(x))
    tvm.compile(mod, "llvm")["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), expected, rtol=4e-3, atol=2e-3)


def test_functions_without_textures_are_left_alone():
    program = Program()
    mod = program.module(
        program.kernel(lambda a: te.compute(a.shape, lambda i, v: a(i, 3 - v)), program.input((64, 4)))
    )
    assert tvm_ffi.structural_equal(StageTexels()(mod), mod)

# SPDX-License-Identifier: Apache-2.0
"""MendVectors: which vectorized loops are taken apart; and that booleans in vectors are right on a device."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from gpu_vectors import wrong_vectors
from smartmem_tvm.deploy.gpu_build import build_kernels
from smartmem_tvm.deploy.textures import build_textures, texture_machine
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.target import parse_target
from smartmem_tvm.tvm_mends import MendVectors
from texture_modules import TARGET, Program, from_texels, opencl, to_texels

F, B, I8 = (tirx.decl_buffer((64, 6), dtype, dtype[0]) for dtype in ("float32", "bool", "int8"))
OUT, FLAGS = (tirx.decl_buffer((64, 6), dtype, name) for dtype, name in (("float32", "out"), ("bool", "flags")))
ROW, LANE = tirx.Var("row", "int32"), tirx.Var("lane", "int32")
ZERO = T.float32(0)


def kernel(buffer, at, value):
    """``buffer[row, at] = value`` for two lanes of each row."""
    inner = tirx.For(LANE, 0, 2, tirx.ForKind.VECTORIZED, tirx.BufferStore(buffer, value, [ROW, at]))
    thread = tirx.IterVar(None, tirx.Var("threadIdx.x", "int32"), 1, "threadIdx.x")
    outer = tirx.For(ROW, 0, 64, tirx.ForKind.THREAD_BINDING, inner, thread_binding=thread)
    func = tirx.PrimFunc([F, B, I8, OUT, FLAGS], outer)
    return func.with_attr({"global_symbol": "main", "tirx.noalias": True, "tirx.is_scheduled": True})


def read(buffer, at=LANE):
    return tirx.BufferLoad(buffer, [ROW, at])


# What is taken apart on: all, CUDA, OpenCL.
ALL, CUDA, OPENCL, NONE = ("cuda", "opencl"), ("cuda",), ("opencl",), ()
KERNELS = {
    "numbers": (kernel(OUT, LANE, read(F)), NONE),
    "numbers compared": (kernel(OUT, LANE, tirx.Select(read(F) < ZERO, ZERO, read(F))), NONE),
    "a torn store": (kernel(OUT, LANE + 1, read(F)), CUDA),
    "a torn load": (kernel(OUT, LANE, read(F, LANE + 1)), NONE),
    "booleans written": (kernel(FLAGS, LANE, read(F) < ZERO), ALL),
    "booleans read": (kernel(OUT, LANE, tirx.Cast("float32", read(B))), ALL),
    "one boolean for all": (kernel(OUT, LANE, tirx.Select(read(B, 3), read(F), ZERO)), NONE),
    "booleans negated": (kernel(OUT, LANE, tirx.Cast("float32", tirx.Not(read(F) < ZERO))), CUDA),
    "bytes": (kernel(OUT, LANE, tirx.Cast("float32", read(I8))), NONE),
    "bytes apart": (kernel(OUT, LANE, tirx.Cast("float32", read(I8, LANE * 2))), OPENCL),
    "a torn load of bytes": (kernel(OUT, LANE, tirx.Cast("float32", read(I8, LANE + 1))), OPENCL),
}


@pytest.mark.each_value
@pytest.mark.parametrize("target", ["cuda", "opencl"])
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_taken_apart(name, target):
    func, where = KERNELS[name]
    mended = MendVectors(parse_target(target))(tvm.IRModule({"main": func}))["main"]
    kinds = [loop.kind for loop in collect(mended.body, tirx.For) if loop.loop_var.name == "lane"]
    assert kinds == [tirx.ForKind.UNROLLED if target in where else tirx.ForKind.VECTORIZED]


@pytest.mark.parametrize(("at", "apart"), [(LANE, False), (ROW, False), ((ROW * 8 + LANE) // 9, True)])
def test_on_cuda_there_is_no_vector_of_eight_indices(at, apart):
    """EfficientNet's gates, in halves: eight neighbours in an image have one gate, which TVM did not see."""
    image, gates = (tirx.decl_buffer(shape, "float16", name) for shape, name in (((64, 8), "image"), ((64,), "gates")))
    stored = tirx.BufferStore(image, tirx.BufferLoad(gates, [at]), [ROW, LANE])
    inner = tirx.For(LANE, 0, 8, tirx.ForKind.VECTORIZED, stored)
    thread = tirx.IterVar(None, tirx.Var("threadIdx.x", "int32"), 1, "threadIdx.x")
    outer = tirx.For(ROW, 0, 64, tirx.ForKind.THREAD_BINDING, inner, thread_binding=thread)
    func = tirx.PrimFunc([gates, image], outer).with_attr({"global_symbol": "main", "tirx.noalias": True})
    for target, expected in (("cuda", apart), ("opencl", False)):
        mended = MendVectors(parse_target(target))(tvm.IRModule({"main": func}))["main"]
        (lanes,) = [loop for loop in collect(mended.body, tirx.For) if loop.loop_var.name == "lane"]
        assert (lanes.kind == tirx.ForKind.UNROLLED) == expected


@pytest.mark.parametrize(
    "name", [name for name, (_, where) in KERNELS.items() if "cuda" in where and "not" not in name]
)
def test_what_is_left_is_right_for_the_code_generator(name):
    target, found = parse_target("cuda"), {}

    def keep(kernels):
        found.update({gvar.name_hint: func for gvar, func in kernels.functions_items()})

    mod = tvm.IRModule({"main": KERNELS[name][0]})
    build_kernels(MendVectors(target)(mod), target, "default", keep)
    assert found and not [each for func in found.values() for each in wrong_vectors(func, cuda=True)]
    if name in ("a torn store", "booleans written"):
        build_kernels(mod, target, "default", keep)
        assert [each for func in found.values() for each in wrong_vectors(func, cuda=True)]


@pytest.mark.parametrize("target", ["llvm", "opencl-texture"])
def test_what_is_left_alone(target):
    """CPUs know vectors of booleans; in loops over textures they are staged later."""
    scope = "global.texture" if target == "opencl-texture" else "global"
    out = tirx.decl_buffer((64, 4), "float32", "out", scope=scope)
    func = kernel(out, LANE, tirx.Cast("float32", read(B)))
    mod = tvm.IRModule({"main": func})
    tvm.ir.assert_structural_equal(MendVectors(parse_target(target))(mod), mod)


def masks(x):
    zero, half = tirx.const(0, "float32"), tirx.const(0.5, "float32")
    return {
        "a mask": tirx.Cast("float32", x < zero) + x,
        "a mask as an integer": tirx.Cast("float32", tirx.Cast("int32", x < zero) * tirx.const(3, "int32")),
        "a mask of two": tirx.Cast("float32", tirx.And(x < half, tirx.Not(x < zero))),
        "a choice by a mask": tirx.Select(tirx.const(0, "int64") < tirx.Cast("int64", x < zero), x, half),
    }


EXPECTED = {
    "a mask": lambda x: (x < 0) + x,
    "a mask as an integer": lambda x: (x < 0) * np.float32(3),
    "a mask of two": lambda x: ((x < 0.5) & (x >= 0)).astype("float32"),
    "a choice by a mask": lambda x: np.where(x < 0, x, np.float32(0.5)),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_masks_in_textures(name):
    """What is true is -1 in a vector of OpenCL."""
    program, shape = Program(), (4, 6, 4)
    t = program.kernel(to_texels(shape), program.input(shape), scope="global.texture")
    t = program.kernel(from_texels(shape, value=lambda v: masks(v)[name]), t, scope="global.texture")
    array = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    device = opencl()
    machine = texture_machine(build_textures(program.module(t), TARGET), device)
    assert np.array_equal(machine["main"](tvm.runtime.tensor(array, device)).numpy(), EXPECTED[name](array))

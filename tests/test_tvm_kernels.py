# SPDX-License-Identifier: Apache-2.0
"""Kernels for OpenCL and CUDA use only functions, numbers and operators that compilers accept, despite TVM's faults."""

import math

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm.deploy.gpu_build import build_kernels
from smartmem_tvm.deploy.textures import tir_pipeline
from smartmem_tvm.target import parse_target
from texture_modules import opencl

FLOATS = ("float16", "float32", "float64")
# fmt: off
UNARY = {
    "acos": 0.3, "acosh": 1.7, "asin": 0.3, "asinh": 0.3, "atan": 0.3, "atanh": 0.3, "ceil": 0.3, "cos": 0.3,
    "cosh": 0.3, "erf": 0.3, "exp": 0.3, "exp10": 0.3, "exp2": 0.3, "floor": 0.3, "log": 0.3, "log10": 0.3,
    "log1p": 0.3, "log2": 0.3, "nearbyint": 0.3, "round": 0.3, "rsqrt": 0.3, "sigmoid": 0.3, "sin": 0.3, "sinh": 0.3,
    "sqrt": 0.3, "tan": 0.3, "tanh": 0.3, "trunc": 0.3,
}
# fmt: on
BINARY = ("atan2", "copysign", "fmod", "hypot", "pow", "truncmod")
_NUMPY = {
    "erf": np.vectorize(math.erf),
    "exp10": lambda x: 10.0**x,
    "nearbyint": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "truncmod": np.fmod,
    **{name: getattr(np, "arc" + name[1:]) for name in (*UNARY, *BINARY) if name.startswith("a")},
}


def built(compute, *inputs, target="opencl", lanes=1):
    """Return a module with one kernel; `compute` makes an element from those of `inputs`, which are types."""
    args = [te.placeholder((8,), dtype, name=f"x{i}") for i, dtype in enumerate(inputs)]
    out = te.compute((8,), lambda i: compute(*(arg[i] for arg in args)), name="y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([*args, out]).with_attr("global_symbol", "main"))
    (loop,) = sch.get_loops("y")
    if lanes > 1:
        loop, vector = sch.split(loop, [None, lanes])
        sch.vectorize(vector)
    sch.bind(loop, "threadIdx.x")
    where = parse_target(target).with_host("llvm")
    return build_kernels(sch.mod, where, tir_pipeline(sch.mod, where))


def source(module):
    kernels = module.imports[0]
    return kernels.inspect_source("cl") or kernels.inspect_source("cuda")


def computed(module, dtype, *arrays):
    out = tvm.runtime.empty(arrays[0].shape, dtype, opencl())
    module["main"](*(tvm.runtime.tensor(array, opencl()) for array in arrays), out)
    return out.numpy()


def several(names):
    """Return one kernel of several functions: a driver takes long to compile a kernel, and little longer for more."""
    return lambda *x: sum((getattr(tirx, name)(*x) for name in names[1:]), getattr(tirx, names[0])(*x))


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_on_opencl(dtype):
    near = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    for at in sorted(set(UNARY.values())):
        names = [name for name, value in UNARY.items() if value == at]
        array = np.full(8, at, dtype)
        found = computed(built(several(names), dtype), dtype, array)
        expected = sum(_NUMPY.get(name, getattr(np, name, None))(array.astype("float64")) for name in names)
        np.testing.assert_allclose(found, expected, rtol=near)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_two_numbers_on_opencl(dtype):
    near = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    x, y = np.full(8, 1.75, dtype), np.full(8, 0.5, dtype)
    found = computed(built(several(BINARY), dtype, dtype), dtype, x, y)
    functions = [_NUMPY.get(name) or getattr(np, "arctan2" if name == "atan2" else name) for name in BINARY]
    np.testing.assert_allclose(found, sum(f(x.astype("float64"), y) for f in functions), rtol=near)


# Functions of C and CUDA for float32 are named like OpenCL's with a final "f"; CUDA's for halves begin with an "h".
CUDA_HALF = {"ceil", "cos", "exp", "exp10", "exp2", "floor", "log", "log10", "log2", "rint", "rsqrt", "sin", "sqrt"}
TVM_HALF = {"atan", "erf", "pow", "tan", "tanh"}  # which TVM defines in front of the kernels


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_functions_of_halves_on_cuda(name, lanes):
    """Kernels call only functions for halves that exist."""
    inputs = ["float16"] * (2 if name in BINARY else 1)
    text = source(built(getattr(tirx, name), *inputs, target="cuda", lanes=lanes))
    kernel = text[text.rindex('extern "C"') :]
    called = {word for word in CUDA_HALF | TVM_HALF | set(UNARY) | set(BINARY) if f" h{word}(" in kernel}
    assert called <= CUDA_HALF | TVM_HALF | {"trunc"}


NUMBERS = [0.1, 1 / 3, -1 / 3, 0.70710678118654752, 1e-7, 65504.0, 6e-8, 1e-20, 3.4e38, 1e-300, 1e300, 5e-324, -0.0]
INFINITE = [math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_are_exact_on_opencl(dtype):
    numbers = [x for x in NUMBERS if abs(x) <= np.finfo(dtype).max] + INFINITE
    array = np.zeros(8, "int32")
    array[:] = range(8)
    for part in (numbers[:8], numbers[8:]):

        def number(i, part=part):
            value = tirx.FloatImm(dtype, part[0])
            for at, each in enumerate(part):
                value = tirx.Select(i == at, tirx.FloatImm(dtype, each), value)
            return value

        found = computed(built(number, "int32"), dtype, array)[: len(part)]
        np.testing.assert_array_equal(found, np.array(part).astype(dtype))
        assert np.signbit(found)[~np.isnan(found)].tolist() == [math.copysign(1, x) < 0 for x in part if x == x]


def test_doubles_are_exact_on_cuda():
    text = source(built(lambda x: x * 1e-20 + tirx.FloatImm("float64", 0.1), "float64", target="cuda"))
    bits = np.float64(1e-20).view("int64")
    assert f"__longlong_as_double((int64_t){bits})" in text and "0.100000000000000" in text


def test_numbers_that_seven_digits_tell_are_written_as_they_are():
    text = source(built(lambda x: x * 0.5 + tirx.FloatImm("float32", 1e-5), "float32"))
    assert "5.000000e-01f" in text and "1.000000e-05f" in text and "as_float" not in text


LOWEST = {"int8": -128, "int16": -(2**15), "int32": -(2**31), "int64": -(2**63)}


@pytest.mark.parametrize("dtype", LOWEST)
def test_the_lowest_integer(dtype):
    array = np.array([1, -1] * 4, dtype)
    found = computed(built(lambda x: tirx.Select(x > 0, tirx.IntImm(dtype, LOWEST[dtype]), x), dtype), dtype, array)
    np.testing.assert_array_equal(found, np.where(array > 0, np.array(LOWEST[dtype], dtype), array))


NARROW = {
    "sum": (lambda x, y, two: tirx.truncdiv(x + y, two), lambda x, y: np.trunc((x + y) / 2)),
    "choice": (lambda x, y, two: tirx.Select(x > y, x + y, x * y), lambda x, y: np.where(x > y, x + y, x * y)),
    "shift": (lambda x, y, two: tirx.truncdiv(x << two, two), lambda x, y: np.trunc((x << 2) / 2)),
    "bits": (lambda x, y, two: tirx.Select(~x > y, x, y), lambda x, y: np.where(~x > y, x, y)),
}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_narrow_integers_wrap_around(dtype):
    ends = np.iinfo(dtype)
    x = np.array([ends.max, ends.min, ends.max - 3, 5, 100, 77, 1, 3], dtype)
    y = np.array([ends.max, ends.max, 9, 7, 100, 2, 3, 1], dtype)
    for name, (ours, numpys) in NARROW.items():
        code = built(lambda a, b, ours=ours: ours(a, b, tirx.IntImm(dtype, 2)), dtype, dtype)
        with np.errstate(over="ignore"):
            expected = numpys(x, y).astype(dtype)
        np.testing.assert_array_equal(computed(code, dtype, x, y), expected, err_msg=name)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_byte_four_times_on_cuda(dtype):
    """A byte known at run time only, for which TVM raises an error."""
    byte = te.placeholder((1,), dtype, name="byte")
    many = te.placeholder((8,), dtype, name="many")
    out = te.compute((8,), lambda i: many[i] * byte[0], name="y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([many, byte, out]).with_attr("global_symbol", "main"))
    threads, lanes = sch.split(sch.get_loops("y")[0], [None, 4])
    sch.vectorize(lanes)
    sch.bind(threads, "threadIdx.x")
    target = parse_target("cuda").with_host("llvm")
    assert "16843009" in source(build_kernels(sch.mod, target, tir_pipeline(sch.mod, target)))

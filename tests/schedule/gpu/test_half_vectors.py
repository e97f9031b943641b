# SPDX-License-Identifier: Apache-2.0
"""Halves in buffers move in vectors of eight where rows allow it, and results are those of float32, rounded."""

import numpy as np
import pytest
from tvm import tirx

import smartmem_tvm as sm
from clang import programs
from helpers import constant, legalize, module, op, random, run
from smartmem_tvm.schedule.gpu.vectors import computed_types
from smartmem_tvm.target import Limits, as_adreno, parse_target

PHONE = "opencl"  # this machine's device, whose vectors are taken to be aligned as a phone's are


def normalised(length):
    def build(x):
        y = op.nn.layer_norm(op.nn.relu(x), constant(length), constant(length), axes=[-1])
        return op.nn.softmax(op.nn.softmax(op.add(y, x)))

    return build


def two_readers(x):
    """A tensor that a row-wise kernel and an element-wise one read."""
    y = op.nn.softmax(x)
    return op.add(op.nn.softmax(op.multiply(y, y)), op.max(y, axis=-1, keepdims=True))


def product(depth, columns):
    def build(x):
        return op.nn.softmax(op.matmul(op.nn.softmax(x), constant(depth, columns)))

    return build


def attention(x):
    y = op.nn.softmax(x)
    return op.matmul(op.nn.softmax(op.matmul(y, op.permute_dims(y, (0, 2, 1)))), y)


# Network, its input, and the widest loads of halves in its kernels.
DEVICE = ("rows of 768", "one row", "a narrow product")  # vectors of eight, as in other cases
CASES = {
    "rows of 64": (normalised(64), (9, 64), 8),
    "rows of 768": (normalised(768), (2, 5, 768), 8),
    "rows of 20": (normalised(20), (3, 20), 4),
    "rows of 7": (normalised(7), (5, 7), 1),
    "one row": (normalised(48), (1, 48), 8),
    "two readers": (two_readers, (1, 16, 40), 8),
    "a product": (product(64, 72), (37, 64), 8),
    "a narrow product": (product(24, 12), (19, 24), 8),
    "a prime product": (product(13, 11), (17, 13), 1),
    "attention": (attention, (2, 33, 24), 8),
}


@pytest.fixture(scope="module")
def target():
    return as_adreno(parse_target(PHONE))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.device] * (name in DEVICE)) for name in CASES])
def test_results_are_those_of_float32(name, target):
    build, shape, widest = CASES[name]
    mod, (x,) = module(build, shape), random(shape)
    compiled = sm.compile(mod, target, sm.Options(precision="half-storage"))
    (want,), (got,) = run(legalize(mod), x), compiled.run(x)
    assert np.abs(got - want).max() <= 3e-3 * np.abs(want).max()
    code = "".join(programs(compiled.executable.mod).values())
    found = [width for width in (8, 4) if f"vload_half{width}(" in code or f"vload{width}(0, (" in code]
    assert max(found, default=1) == widest


def test_sixteen_bytes_at_once():
    phone, large = Limits(vector=4), Limits(vector=4, float_lanes=4)
    half, single = ["float16"], ["float16", "float32"]
    assert phone.vector_of(half) == phone.vector_of(half, single) == large.vector_of(half) == 8
    assert large.vector_of(half, single) == 4  # CUDA computes with four floats at most
    assert phone.vector_of(single) == phone.vector_of(["int8"]) == 4
    assert Limits().vector_of(half) == 1  # loads that are taken apart anyway


def test_what_is_computed():
    x = tirx.Var("x", "float16")
    assert computed_types(x + x) == {"float16"}
    assert computed_types(x.astype("float32") * tirx.const(2, "float32")) == {"float16", "float32"}


@pytest.mark.parametrize(("name", "wide"), [("adreno-740", True), ("mali-g76", True), ("cuda", False)])
def test_what_targets_have(name, wide):
    limits = Limits.of(parse_target(name))
    assert (limits.half_lanes, limits.float_lanes) == ((8, 16) if wide else (1, 4))

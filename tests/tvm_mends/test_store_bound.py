# SPDX-License-Identifier: Apache-2.0
"""StoreBound: numbers that have a name, and are made of bfloat16."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import ir as I
from tvm.script import tirx as T

import smartmem_tvm
from helpers import module, op
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.tvm_mends import StoreBound

X = np.array([3, -1.5, 0.25, 7, 7, -9], "float32").astype(ml_dtypes.bfloat16)


@I.ir_module
class Named:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((6,), "bfloat16"), y: T.Buffer((6,), "float32")):
        for i in range(6):
            half: T.let[T.bfloat16] = x[i]
            whole: T.let[T.float32] = T.Cast("float32", half)
            y[i] = whole + T.float32(1)


@I.ir_module
class OfFloats:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((6,), "float32"), y: T.Buffer((6,), "float32")):
        for i in range(6):
            twice: T.let[T.float32] = x[i] + x[i]
            y[i] = twice


@I.ir_module
class AtOnce:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((6,), "bfloat16"), y: T.Buffer((6,), "float32")):
        for i in range(6):
            whole: T.let[T.float32] = T.Cast("float32", x[i])
            y[i] = whole + T.float32(1)


def result(mod) -> np.ndarray:
    out = tvm.runtime.tensor(np.zeros(6, "float32"))
    tvm.compile(mod, "llvm")(tvm.runtime.tensor(X), out)
    return out.numpy()


@pytest.mark.parametrize("mod", [Named, AtOnce])
def test_a_named_number_is_the_number_and_not_its_bits(mod):
    after = StoreBound()(mod)
    assert not collect(after["main"].body, tirx.Bind)
    np.testing.assert_array_equal(result(after), X.astype("float32") + 1)


def test_tvm_takes_the_bits():
    assert not np.array_equal(result(AtOnce), X.astype("float32") + 1), "TVM is right by now: remove StoreBound"


def test_names_of_other_types_stay():
    assert StoreBound()(OfFloats).same_as(OfFloats)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_place_of_an_extreme(name):
    x = np.stack([X, X[::-1]])
    (got,) = smartmem_tvm.compile(module(lambda v: getattr(op, name)(v, 1), (x.shape, "bfloat16"))).run(x)
    np.testing.assert_array_equal(got, getattr(x.astype("float32"), name)(1))


@I.ir_module
class InVectors:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((6,), "bfloat16"), y: T.Buffer((6,), "float32")):
        for i in T.vectorized(6):
            half: T.let[T.bfloat16] = x[i]
            whole: T.let[T.float32] = T.Cast("float32", half)
            y[i] = whole + T.float32(1)


def test_each_lane_of_a_vector_has_a_number_of_its_own():
    after = StoreBound()(InVectors)
    np.testing.assert_array_equal(result(after), X.astype("float32") + 1)


@pytest.mark.parametrize("shapes", [((4, 1, 16), (8, 16), ()), ((2, 33), (2, 33), (33,)), ((7,), (3, 1), (1, 7))])
def test_a_choice_of_what_is_read_at_several_places(shapes):
    draw = np.random.default_rng(0)
    mask, one, other = (draw.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    mask = mask > 0
    kinds = [(mask.shape, "bool"), (one.shape, "bfloat16"), (other.shape, "bfloat16")]
    (got,) = smartmem_tvm.compile(module(op.where, *kinds)).run(mask, one, other)
    np.testing.assert_array_equal(got, np.where(mask, one, other))

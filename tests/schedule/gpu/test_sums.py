# SPDX-License-Identifier: Apache-2.0
"""Sums: a few terms at a time are the same sum, in every rule that multiplies."""

from math import gcd

import numpy as np
import pytest
from tvm import tirx

import smartmem_tvm as sm
from clang import programs
from half_networks import IMAGE, TOKENS, convolutions, transformer
from helpers import module, op, random
from smartmem_tvm.schedule.core.nest import Scope
from smartmem_tvm.schedule.gpu.launch import registers
from smartmem_tvm.schedule.gpu.sums import Sums, factor_type
from smartmem_tvm.target import parse_target


def test_the_type_of_factors():
    half, single = tirx.Var("x", "float16"), tirx.Var("y", "float32")
    assert factor_type(half, half, total="float32") == "float16"
    assert factor_type(half, single, total="float32") == "float32"
    assert factor_type(half, half, total="float16") == "float16"
    assert factor_type(tirx.Var("n", "int8"), total="int32") == "int32"


def test_sums_of_one_type_need_no_detour():
    sums = Sums(Scope(), 4, "float32", "float32", "acc")
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    assert sums.buffers == [sums.total] and sums.few is sums.total and sums.around(nothing) is nothing


def sums_only(x):
    return convolutions(x, pool=op.nn.avg_pool2d)


@pytest.mark.device
@pytest.mark.parametrize("lanes", [1, 4, 8])
@pytest.mark.parametrize(("build", "shape"), [(sums_only, IMAGE), (transformer, TOKENS)])
def test_the_sum_is_the_same(build, shape, lanes, monkeypatch):
    """No CPU's driver has half arithmetic; with a few terms at a time in float32 it computes what it always does.

    So it does where several sums at once are added to.
    """
    plain = Sums.__init__

    def detour(self, scope, count, factor, total, name, together=1, most=1):
        plain(self, scope, count, factor, total, name, together, most)
        self.few = registers(count, total, f"{name}_few")
        self.lanes = gcd(together, lanes)

    monkeypatch.setattr(Sums, "__init__", detour)
    mod = module(build, shape)
    code = sm.compile(mod, parse_target("opencl"))
    assert sum("_few_ptr" in source for source in programs(code.executable.mod).values()) >= 3
    (x,) = random(shape)
    (expected,), (got,) = sm.compile(mod).run(x), code.run(x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())

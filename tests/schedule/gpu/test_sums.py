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
from phones import phone
from smartmem_tvm.schedule.core.nest import Scope
from smartmem_tvm.schedule.gpu.launch import registers
from smartmem_tvm.schedule.gpu.sums import Sums, factor_type
from smartmem_tvm.target import Limits, parse_target


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


def test_conversions_stay_behind_the_loop():
    """Only sums of float16 for a phone are multiplied by one, which is the number of trips, at most 1."""
    kept = Sums(Scope(), 4, "float16", "float32", "acc", settled=True)
    assert str(kept.settle()).count("acc[") >= 2 and "acc_rounds" in str(kept.count_round(tirx.Var("step", "int64")))
    for factor, settled in (("float32", True), ("float16", False)):
        plain = Sums(Scope(), 4, factor, "float32", "acc", settled=settled)
        assert plain.settle() is None and plain.count_round(0) is None


@pytest.mark.pairwise
@pytest.mark.device
@pytest.mark.parametrize("lanes", [1, 4, 8])
@pytest.mark.parametrize(("build", "shape"), [(sums_only, IMAGE), (transformer, TOKENS)])
@pytest.mark.parametrize("target", [parse_target("opencl"), phone("adreno-740")], ids=["opencl", "phone"])
def test_the_sum_is_the_same(build, shape, lanes, target, monkeypatch):
    """No CPU's driver has half arithmetic; with a few terms at a time in float32 it computes what it always does.

    So it does where several sums at once are added to, and where they are multiplied by one for a phone.
    """
    plain, phone = Sums.__init__, Limits.of(target).phone

    def detour(self, scope, count, factor, total, name, together=1, most=1, settled=False, dot=None):
        plain(self, scope, count, factor, total, name, together, most, dot=dot)
        settled = phone and name == "sums"  # as those of a GEMM in halves on a phone
        self.few = registers(count, total, f"{name}_few")
        self.lanes = gcd(together, lanes)
        self.rounds = registers(1, "int32", f"{name}_rounds") if settled else None

    monkeypatch.setattr(Sums, "__init__", detour)
    mod = module(build, shape)
    code = sm.compile(mod, target)
    sources = programs(code.executable.mod).values()
    assert sum("_few_ptr" in source for source in sources) >= 3
    settled = phone and build is transformer  # on a phone these convolutions slide over texels
    assert any("_rounds_ptr" in source for source in sources) == settled
    (x,) = random(shape)
    (expected,), (got,) = sm.compile(mod).run(x), code.run(x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())

# SPDX-License-Identifier: Apache-2.0
"""code_generation: remainders in indices, in vector code for a CPU."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm.cpu_code import code_generation
from smartmem_tvm.target import host_target
from smartmem_tvm.tune.build_candidates import plain_code


def tiled(rows, columns, times, dtype) -> tvm.IRModule:
    x = te.placeholder((tirx.IntImm("int64", rows), tirx.IntImm("int64", columns)), dtype, name="x")
    shape = [tirx.IntImm("int64", n) for n in (2 * rows, times * columns)]
    func = te.create_prim_func([x, te.compute(shape, lambda i, j: x[i % rows, j % columns], name="y")])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("columns", [4, 8, 16, 32, 20])
@pytest.mark.parametrize("rows", [5, 33, 64])
def test_a_remainder_in_an_index_wraps_around(rows, columns, dtype):
    x = np.random.default_rng(0).integers(-90, 90, (rows, columns)).astype(dtype)
    y = tvm.runtime.empty((2 * rows, 8 * columns), dtype)
    plain_code(tiled(rows, columns, 8, dtype), host_target())["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), np.tile(x, (2, 8)))


def test_what_the_user_set_stays():
    with tvm.transform.PassContext(opt_level=2, config={"tirx.disable_vectorize": True}, disabled_pass=["one"]):
        with code_generation(host_target()):
            now = tvm.transform.PassContext.current()
            assert now.opt_level == 2 and now.config["tirx.disable_vectorize"]
            assert list(now.disabled_pass) == ["one", "tirx.NarrowDataType"]
        with code_generation(tvm.target.Target("opencl")):
            assert list(tvm.transform.PassContext.current().disabled_pass) == ["one"]


@pytest.mark.parametrize("cpu", ["rocketlake", "skylake-avx512", "znver4"])
def test_loops_become_vectors_as_wide_as_the_registers(cpu):
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu", "num-cores": 3})
    x = te.placeholder((4096,), name="x")
    func = te.create_prim_func([x, te.compute((4096,), lambda i: x[i] * x[i] + 1, name="y")])
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    assert "<16 x float>" in plain_code(mod, target).inspect_source("ll")


ASKS = {"kind": "llvm", "mcpu": "skylake-avx512", "mattr": ["+prefer-256-bit"]}


@pytest.mark.parametrize("target", ["opencl", {"kind": "llvm", "mcpu": "haswell"}, {"kind": "llvm"}, ASKS], ids=str)
def test_other_targets_are_left_alone(target):
    target = tvm.target.Target(target)
    with code_generation(target) as given:
        assert given == target

# SPDX-License-Identifier: Apache-2.0
"""Which functions kernels for CUDA call; their results are looked at where there is a GPU."""

import pytest
import tvm
from tvm import te, tirx, topi

from smartmem_tvm.deploy import cuda_math
from smartmem_tvm.deploy.textures import CUDA_PIPELINE
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.schedule.choose import default_rules
from smartmem_tvm.target import parse_target


def source(compute, dtype) -> str:
    """The kernel of a computation of two inputs."""
    target = parse_target("cuda")
    x, y = (te.placeholder((64,), dtype, name) for name in "xy")
    func = te.create_prim_func([x, y, compute(x, y)]).with_attr("global_symbol", "main")
    with target:
        mod = ScheduleKernels(default_rules())(tvm.IRModule({"main": func}))
    (kernels,) = tvm.compile(mod, target, tir_pipeline=CUDA_PIPELINE).mod.imports
    return kernels.inspect_source("cuda")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_power_is_that_of_the_device_library(dtype):
    kernel = source(topi.power, dtype)
    assert "__nv_powf(" in kernel and " powf(" not in kernel.split("__global__")[1]
    declared = cuda_math.with_declarations(kernel)
    assert declared.startswith('extern "C" __device__ float __nv_powf(float, float);\n')
    assert "__nv_tanhf" not in declared


def test_doubles_and_exponentials_are_as_they_were():
    doubles = source(topi.power, "float64")
    assert " pow(" in doubles and "__nv_" not in doubles
    assert "__nv_" not in source(lambda x, y: topi.exp(x), "float32")


def test_a_rounded_quotient_is_exact():
    """A quotient that fast math has one unit off would be rounded to the other side of a tie."""
    kernel = source(lambda x, y: te.compute(x.shape, lambda i: tirx.nearbyint(x[i] / y[i])), "float32")
    assert "__nv_fdiv_rn(" in kernel and "nearbyint" in kernel
    assert "float __nv_fdiv_rn(float, float);" in cuda_math.with_declarations(kernel)
    assert "__nv_" not in source(lambda x, y: te.compute(x.shape, lambda i: x[i] / y[i]), "float32")


def test_every_function_has_its_declaration():
    for name in ("tanh", "sin", "cos", "tan", "log"):
        kernel = source(lambda x, y, name=name: getattr(topi, name)(x), "float32")
        assert f"float __nv_{name}f(float);" in cuda_math.with_declarations(kernel)

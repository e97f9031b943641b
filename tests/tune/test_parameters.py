# SPDX-License-Identifier: Apache-2.0
"""What is written beside a built candidate of the parameters of its kernel."""

import numpy as np
import pytest
import tvm
from tvm import te

from smartmem_tvm.deploy.kernel_code import kernel_code
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.target import device_of, parse_target
from smartmem_tvm.tune.parameters import Parameter, arguments, parameters, read_parameters, write_parameters


def built(target):
    x, i = te.placeholder((5, 7), "float32", name="x"), te.placeholder((3,), "int64", name="i")
    func = te.create_prim_func([x, i, te.compute((3, 7), lambda a, b: x[i[a], b] + x[a, b])])
    with target:
        mod = ScheduleKernels()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    return kernel_code(mod, target), parameters(mod["main"])


@pytest.mark.parametrize("name", ["llvm", "opencl"])
def test_types_shapes_and_scopes_come_out_as_they_went_in(name, tmp_path):
    target = parse_target(name)
    module, known = built(target)
    write_parameters(known, tmp_path / "built.tar")
    told = read_parameters(tmp_path / "built.tar")
    assert told == [
        Parameter("float32", (5, 7)),
        Parameter("int64", (3,)),
        Parameter("float32", (3, 7)),
    ]
    x, i, y = arguments(told, device_of(target))
    module["main"](x, i, y)
    assert not i.numpy().any() and 0.5 <= x.numpy().min() < x.numpy().max() <= 1.5
    np.testing.assert_array_equal(y.numpy(), x.numpy()[0] + x.numpy()[:3])


def test_a_texture_is_allocated_as_one():
    device = device_of(parse_target("opencl-texture"))
    made = Parameter("float32", (2, 3, 4), "global.texture").on(device, np.random.default_rng(0))
    want = np.random.default_rng(0).random((2, 3, 4), dtype="float32") + np.float32(0.5)
    np.testing.assert_array_equal(made.numpy(), want)
    assert len({float(each) for each in made.numpy().flat}) > 20

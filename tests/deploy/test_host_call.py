# SPDX-License-Identifier: Apache-2.0
"""A call through memory that a device and this machine read; here both are this machine's."""

import contextlib

import numpy as np
import tvm

from smartmem_tvm.deploy.arguments import Parameter, TensorKind
from smartmem_tvm.deploy.host_call import HostCall, pinned_memory

CPU = tvm.cpu()
PARAMS = [Parameter("ids", TensorKind((2, 3), "int64")), Parameter("scale", TensorKind((), "float16"))]


def test_the_function_sees_what_the_caller_writes():
    seen = []

    def function(ids, scale):
        seen.append((ids.device, tuple(ids.shape), str(ids.dtype), str(scale.dtype), ids.is_contiguous()))
        return [tvm.runtime.tensor(ids.numpy() * float(scale.numpy())), ids]

    call = HostCall(function, PARAMS, CPU, CPU, contextlib.nullcontext)
    for number in (1, 5):
        call.inputs["ids"][...] = np.arange(6).reshape(2, 3) * number
        call.inputs["scale"][...] = 0.5
        scaled, same = call.run()
        np.testing.assert_array_equal(scaled, np.arange(6).reshape(2, 3) * number / 2)
        np.testing.assert_array_equal(same, call.inputs["ids"])
    assert seen == [(CPU, (2, 3), "int64", "float16", True)] * 2
    assert call.run()[0] is scaled  # results are arrays until the next call


def test_one_result_is_a_list_of_one():
    call = HostCall(lambda ids, _: ids, PARAMS, CPU, CPU, contextlib.nullcontext)
    call.inputs["ids"][...] = 3
    (found,) = call.run()
    np.testing.assert_array_equal(found, np.full((2, 3), 3))


def test_other_devices_have_no_such_memory():
    assert pinned_memory(CPU) is None

# SPDX-License-Identifier: Apache-2.0
"""Kernels with tensors stored in other orders."""

import numpy as np
import pytest
import tvm

from helpers import only_node, op, random
from smartmem_tvm.ir.kernel import emit, shape_of
from smartmem_tvm.ir.storage import reordered

ORDERS = [(0, 2, 1), (2, 0, 1), (1, 2, 0), (0, 1, 2)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("which", ["input", "output"])
def test_a_reordered_kernel_computes_the_same(order, which):
    kernel = only_node(lambda x, y: op.matmul(x, y), (2, 3, 4), (2, 4, 5)).kernel
    buffer = kernel.inputs[0] if which == "input" else kernel.outputs[0]
    changed, new = reordered(kernel, buffer, order)
    assert shape_of(new) == tuple(shape_of(buffer)[dim] for dim in order)
    x, y = random((2, 3, 4), (2, 4, 5))
    stored = np.ascontiguousarray(x.transpose(order)) if which == "input" else x
    out = tvm.runtime.tensor(np.zeros(shape_of(changed.outputs[0]), "float32"))
    tvm.compile(tvm.IRModule({"main": emit(changed, {"global_symbol": "main"})}), "llvm")["main"](
        tvm.runtime.tensor(stored), tvm.runtime.tensor(y), out
    )
    result = out.numpy() if which == "input" else out.numpy().transpose(np.argsort(order))
    np.testing.assert_allclose(result, x @ y, rtol=1e-5)


def test_a_reordered_output_is_written_in_the_order_of_memory():
    """Otherwise the stage would scatter, and rules would not take it for an element-wise one."""
    kernel = only_node(op.exp, (3, 4, 5)).kernel
    changed, _ = reordered(kernel, kernel.outputs[0], (2, 0, 1))
    assert changed.last.is_pointwise

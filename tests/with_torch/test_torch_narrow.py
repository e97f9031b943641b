# SPDX-License-Identifier: Apache-2.0
"""Programs of torch in half and bfloat16: results have the types and the values that torch gives them."""

import numpy as np
import pytest
import torch

import smartmem_tvm as sm

FUNCTIONS = {
    "sum": lambda x: x.sum(),
    "sum of one dimension, and on": lambda x: (x * x).sum(-1, keepdim=True) + x,
    "largest": lambda x: x.amax(0),
    "product": lambda x: x.prod(0),
    "running sum": lambda x: x.cumsum(0),
    "mean": lambda x: x.mean(-1),
    "taken apart by torch": lambda x: torch.nn.functional.cosine_similarity(x, x + 1),
    "known to TVM's importer only": lambda x: torch.nn.functional.mse_loss(x, x * 2),
}


class Program(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_reductions(name, dtype):
    torch.manual_seed(0)
    x = torch.rand(8, 8).to(dtype) + 0.5
    expected = FUNCTIONS[name](x)
    mod = sm.from_torch(torch.export.export(Program(FUNCTIONS[name]), (x,)))
    assert str(mod["main"].ret_ty.dtype.dtype) == str(dtype).removeprefix("torch.")
    if dtype == torch.float16:
        (got,) = sm.compile(mod).run(x.numpy())
        np.testing.assert_allclose(got.astype("float32"), expected.float(), rtol=4e-3)

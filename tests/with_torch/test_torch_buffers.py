# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch as inputs and outputs of a compiled model, in their own memory where kernels can read it."""

import numpy as np
import pytest
import torch

from helpers import module, op
from smartmem_tvm import UserError, compile


@pytest.fixture(scope="module")
def double():
    return compile(module(lambda x: op.add(x, x), (2, 3)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(2, 3),
        lambda: torch.randn(3, 2).T,
        lambda: torch.randn(9)[1:7].reshape(2, 3),
        lambda: torch.randn(2, 3, dtype=torch.complex64).conj().imag,  # torch notes that it is negative
        lambda: torch.nn.Parameter(torch.randn(2, 3), requires_grad=False),
    ],
)
def test_any_tensor_of_torch(double, make):
    for _ in range(3):
        x = make()
        (found,) = double.run(x)
        np.testing.assert_allclose(found, 2 * x.resolve_neg().numpy(), rtol=1e-6)
        np.testing.assert_allclose(torch.from_dlpack(found), 2 * x, rtol=1e-6)


def test_what_takes_part_in_training_is_refused(double):
    double.run(torch.randn(2, 3))
    with pytest.raises(UserError, match=r"requires grad.*detach"):
        double.run(torch.randn(2, 3, requires_grad=True))


def test_bfloat16():
    compiled = compile(module(lambda x: op.add(x, x), (2, 3), dtype="bfloat16"))
    x = torch.randn(2, 3).to(torch.bfloat16)
    for _ in range(3):
        np.testing.assert_array_equal(compiled.run(x)[0].astype("float32"), (2 * x).float().numpy())


def test_bound_tensors(double):
    x, y = torch.randn(2, 3), torch.zeros(2, 3)
    bound = double.session().bind({"x0": x}, {"output_0": y})
    for value in (2.0, 3.0):
        x.fill_(value)
        assert bound.run()[0] is y
        assert (y == 2 * value).all()

# SPDX-License-Identifier: Apache-2.0
"""The types of reductions and scans: for each type of numbers, and each type that is asked for, what torch gives."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import smartmem_tvm as sm

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]
TOLERANCE = {torch.float16: 3e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-10}

FUNCTIONS = {
    "sum": lambda x: (x.sum(), x.sum(1)),
    "prod": lambda x: (x.prod(), x.prod(0)),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: (*x.cummax(1), *x.cummin(0)),
    "atan2": lambda x: (torch.atan2(x, x.T.reshape(3, 4)), torch.atan2(x * 0, -x)),
    "quantile": lambda x: (x.quantile(0.25, 1), x.nanquantile(0.75)),
    "mean": lambda x: (x.mean(), x.mean(1, keepdim=True)),
    "any": lambda x: (x.any(), x.any(1), torch.any(x, dim=(0, 1))),
    "all": lambda x: (x.all(), x.all(0), torch.all(x, dim=(0, 1))),
    "argmax": lambda x: (x.argmax(), x.argmin(0, keepdim=True)),
    "amax": lambda x: (x.amax(1), x.amin()),
    "max": lambda x: (x.max(), x.min()),
    "norm": lambda x: (x.norm(), torch.linalg.vector_norm(x, 1, dim=1)),
    "var": lambda x: (x.var(), x.std(1, correction=0)),
    "logsumexp": lambda x: x.logsumexp(1),
    "count_nonzero": lambda x: (torch.count_nonzero(x), torch.count_nonzero(x, 1)),
    "nansum": lambda x: x.nansum(1),
    "trace": lambda x: x.trace(),
}
STATED = ("sum", "prod", "cumsum", "cumprod")


class Program(nn.Module):
    """A function of each of several tensors."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        results = [self.function(each) for each in given]
        return tuple(part for each in results for part in (each if isinstance(each, tuple) else (each,)))


def numbers(dtype):
    torch.manual_seed(3)
    if dtype == torch.bool:
        return torch.rand(3, 4) > 0.3
    if dtype.is_floating_point:
        return (torch.randn(3, 4) * 2).to(dtype)
    largest = min(torch.iinfo(dtype).max, 2**20)
    found = torch.randint(max(-largest, torch.iinfo(dtype).min), largest, (3, 4)).to(dtype)
    found[0, 0] = 0
    return found


def as_array(tensor):
    return (
        tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )


def taken(function):
    """The types that torch takes: the mean of integers, for one, it refuses."""
    for dtype in DTYPES:
        try:
            Program(function)(numbers(dtype))
        except (RuntimeError, NotImplementedError):
            continue
        yield dtype


def agrees(function, dtypes):
    program, given = Program(function), tuple(map(numbers, dtypes))
    found = sm.compile(sm.from_torch(torch.export.export(program, given))).run(*map(as_array, given))
    wanted = program(*given)
    assert len(found) == len(wanted) >= len(dtypes) > 0
    for got, want in zip(found, wanted, strict=True):
        reference, tolerance = as_array(want), TOLERANCE.get(want.dtype, 0)
        assert (got.dtype, got.shape) == (reference.dtype, reference.shape)
        both = got.astype("float64"), reference.astype("float64")
        np.testing.assert_allclose(*both, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_type_of_numbers(name):
    agrees(FUNCTIONS[name], [*taken(FUNCTIONS[name])])


ASKED = [(name, each) for name in STATED for each in DTYPES if not (name.startswith("cum") and each == torch.bool)]


@pytest.mark.parametrize("name, dtype", ASKED)  # torch knows no running sums and products of truth values
def test_each_type_that_is_asked_for(name, dtype):
    def function(x):
        return getattr(x, name)(*([0] if name.startswith("cum") else []), dtype=dtype)

    narrow = dtype in (torch.uint8, torch.int8, torch.int16, torch.int32)
    dtypes = [each for each in taken(function) if not (narrow and each.is_floating_point)]  # of which C says nothing
    agrees(function, dtypes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_become_whole_before_they_are_added_or_multiplied(dtype):
    x = torch.tensor([[1.5, 2, 3], [2.25, 1, 0]]).to(dtype)

    def function(x):
        wholes = (torch.uint8, torch.int8, torch.int32, torch.int64)
        sums = [each for of in (torch.bool, *wholes) for each in (x.sum(dtype=of), x.prod(1, dtype=of))]
        return [*sums, *(each for of in wholes for each in (x.cumsum(0, dtype=of), x.cumprod(1, dtype=of)))]

    found = sm.compile(sm.from_torch(torch.export.export(Program(lambda x: tuple(function(x))), (x,)))).run(as_array(x))
    for got, want in zip(found, function(x), strict=True):
        assert got.dtype == want.numpy().dtype
        np.testing.assert_array_equal(got, want.numpy())

# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(backend="smartmem")`` beside torch itself: `make test-torch` runs this, in an environment with torch."""

import threading

import pytest
import torch
from torch import nn

from smartmem_tvm import torch_backend
from smartmem_tvm.torch_backend import counts


@pytest.fixture(autouse=True)
def afresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch_backend.reset_counts()
    with torch.no_grad():
        yield


def compiled(function, **options):
    return torch.compile(function, backend="smartmem", options=options)


def same(found, expected):
    pairs = zip(*map(torch.utils._pytree.tree_leaves, (found, expected)), strict=True)
    assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(expected)
    for mine, reference in pairs:
        if isinstance(reference, torch.Tensor):
            torch.testing.assert_close(mine, reference)
        else:
            assert mine == reference


def agrees(function, *inputs, **named):
    """Three times, so that what is compiled for the first one is run for others."""
    mine = compiled(function)
    for _ in range(3):
        same(mine(*inputs, **named), function(*inputs, **named))
    return counts()


class Block(nn.Module):
    """Parameters, buffers, a plain tensor, and results in a dict with None."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("shift", torch.randn(8))
        self.scale = torch.randn(8)

    def forward(self, x):
        return {"y": self.norm(self.linear(x)) * self.scale + self.shift, "none": None, "sum": (x.sum(), 3)}


def test_a_module_is_one_graph():
    found = agrees(Block().eval(), torch.randn(4, 8))
    assert (found.compiled, found.calls, found.eager, found.eager_calls) == (1, 3, 0, 0)
    assert found.reasons == found.graph_breaks == {}


FUNCTIONS = {
    "tuple and dict arguments": (lambda pair, named: (pair[0] @ pair[1]).relu() + named["z"],
                                 ((torch.randn(3, 3), torch.randn(3, 3)), {"z": torch.randn(3)})),
    "scalar tensor": (lambda x, y: x * y, (torch.randn(3), torch.tensor(2.0))),
    "scalar result": (lambda x: x.sin().sum(), (torch.randn(3),)),
    "integers": (lambda x, y: (x + y, x // 3, x % 4, x > y), (torch.arange(9), torch.arange(9).flip(0))),
    "bool": (lambda x, y: (x & y, x.to(torch.float32)), (torch.tensor([True, False]), torch.tensor([True, True]))),
    "half": (lambda x: torch.relu(x * 2) + 1, (torch.randn(4, 8).half(),)),
    "bfloat16": (lambda x: torch.relu(x * 2) + 1, (torch.randn(4, 8).bfloat16(),)),
    "bfloat16 matmul": (lambda x, y: torch.softmax(x @ y, -1), (torch.randn(4, 8).bfloat16(), torch.randn(8, 8).bfloat16())),
    "float64": (lambda x: x.exp() @ x, (torch.randn(4, 4, dtype=torch.float64),)),
    "not contiguous": (lambda x: x.softmax(-1) * 2, (torch.randn(5, 7).t(),)),
    "not aligned": (lambda x: x.softmax(-1) * 2, (torch.randn(65)[1:].view(8, 8),)),
    "expanded": (lambda x: x.softmax(-1) * 2, (torch.randn(1, 7).expand(5, 7),)),
    "channels last": (lambda x: nn.functional.conv2d(x, torch.ones(4, 3, 3, 3)), (torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last),)),
    "no elements": (lambda x: x.relu() + 1, (torch.randn(0, 4),)),
    "complex": (lambda x: x * x, (torch.randn(3, dtype=torch.complex64),)),
    "negative view": (lambda x: x * 2, (torch.randn(3, dtype=torch.complex64).conj().imag,)),
    "constant": (lambda x: (x.exp(), torch.arange(4)), (torch.randn(3),)),
    "same twice": (lambda x: (x.exp(), x.exp()), (torch.randn(3),)),
    "identity": (lambda x: (x.exp(), x * 1, x), (torch.randn(3),)),
    "integer argument": (lambda x, n: x.exp() * n, (torch.randn(3), 7)),
    "float argument": (lambda x, n: x.exp() * n, (torch.randn(3), 0.7)),
    "string argument": (lambda x, n: x.exp() if n == "exp" else x, (torch.randn(3), "exp")),
    "data-dependent shape": (lambda x: x[x > 0].exp().sum(), (torch.randn(30),)),
    "nonzero": (lambda x: (x > 0).nonzero(), (torch.randn(30),)),
    "top k": (lambda x: torch.topk(x, 3), (torch.randn(30),)),
    "sort": (lambda x: torch.sort(x), (torch.randn(30),)),
    "no operator of ONNX": (lambda x: torch.linalg.det(x) + torch.special.i1(x).sum(), (torch.randn(3, 3),)),
    "autocast": (lambda x: torch.autocast("cpu", torch.bfloat16)(torch.matmul)(x, x), (torch.randn(8, 8),)),
    "cumulated bools": (lambda x: (x != 1).cumsum(-1), (torch.randint(0, 3, (2, 5)),)),
    "returns a size": (lambda x: (x.exp(), x.shape[0], x.shape), (torch.randn(3, 4),)),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions(case):
    function, inputs = FUNCTIONS[case]
    found = agrees(function, *inputs)
    print(found)
    assert found.calls + found.eager_calls >= 3

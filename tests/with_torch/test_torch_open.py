# SPDX-License-Identifier: Apache-2.0
"""Graphs with symbolic sizes are traced once, and right for each size: `make test-torch`."""

import pytest
import torch
from torch import nn

from smartmem_tvm import torch_backend
from smartmem_tvm.torch_backend import compile_program, counts, open_lengths, open_program, program


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setenv("SMARTMEM_TORCH_CACHE", "0")
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch_backend.reset_counts()
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=64):
        yield


@pytest.fixture
def traced(monkeypatch):
    """Names of what was called: `open_program` once for a graph, `read_program` for each size."""
    calls = []
    for module, name in ((open_program, "open_program"), (program, "read_program")):
        call = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, call=call, name=name: calls.append(name) or call(*given))
    return calls


def grid(rows, columns):
    return torch.linspace(-1, 1, rows * columns).view(rows, columns)


class Net(nn.Module):
    """Products, a norm, and shapes in the code."""

    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Linear(8, 12), nn.LayerNorm(12)

    def forward(self, x):
        y = self.norm(self.one(x)).view(x.shape[0], 3, 4).transpose(0, 1)
        return y.reshape(3, -1) * x.shape[0], x.shape[0] + 1, None


LENGTHS = (5, 7, 16, 1, 13)
FUNCTIONS = {
    "network": (Net(), lambda n: (grid(n, 8),)),
    "size in a number": (lambda x: x.sum(0) / x.shape[0], lambda n: (grid(n, 8),)),
    "sizes in results": (lambda x: (x * 2, x.shape[0] * 2, x.numel() - 1), lambda n: (grid(n, 8),)),
    "range of a size": (lambda x: x + torch.arange(x.shape[0])[:, None], lambda n: (grid(n, 8),)),
    "mask": (
        lambda x: torch.ones(x.shape[0], x.shape[0]).tril() @ x,
        lambda n: (grid(n, 8),),
    ),
    "two sizes": (lambda x, y: x @ y, lambda n: (grid(n, 8), grid(8, n + 3))),
    "equal sizes": (lambda x, y: x + y.flip(0), lambda n: (grid(n, 8), grid(n, 8))),
    "joined": (lambda x, y: torch.cat([x, y]).cumsum(0), lambda n: (grid(n, 8), grid(2 * n, 8))),
    "halves": (lambda x: x[: x.shape[0] // 2].sum(0) - x[x.shape[0] // 2 :].sum(0), lambda n: (grid(n, 8),)),
    "branch on a size": (lambda x: x.exp() if x.shape[0] % 2 else x - 1, lambda n: (grid(n, 8),)),
    "split into parts": (lambda x: torch.stack(x.split(3)[:1]), lambda n: (grid(n, 8),)),
    "convolution": (
        lambda x: nn.functional.conv1d(x[None], torch.ones(2, 8, 3), padding=1),
        lambda n: (grid(8, n + 2),),
    ),
    "attention": (
        lambda x: nn.functional.scaled_dot_product_attention(*(x[None, None],) * 3, is_causal=True),
        lambda n: (grid(n, 8),),
    ),
    "result of no dimension": (lambda x: x.mean(), lambda n: (grid(n, 8),)),
    "views of one tensor": (lambda x: (x.exp(), x.exp().t()), lambda n: (grid(n, 8),)),
    "written": (lambda x: x.mul_(2) + 1, lambda n: (grid(n, 8),)),
    "integer argument": (lambda x, n: x * n, lambda n: (grid(n, 8), n)),
}


def same(found, expected):
    for mine, reference in zip(*map(torch.utils._pytree.tree_leaves, (found, expected)), strict=True):
        if isinstance(reference, torch.Tensor):
            torch.testing.assert_close(mine, reference)
        else:
            assert mine == reference


ONCE = {"network", "range of a size", "mask", "two sizes", "joined", "convolution", "attention"}
AT_CAPACITY = {"mask", "convolution", "attention"}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_each_size_is_right(case, traced):
    function, inputs_of = FUNCTIONS[case]
    mine = torch.compile(function, backend="smartmem")
    for length in (*LENGTHS, *LENGTHS):
        same(mine(*inputs_of(length)), function(*inputs_of(length)))
    assert not counts().eager, counts().reasons
    if case in ONCE:  # the first size is a graph of its own, and one row may be another
        assert traced.count("read_program") <= 2
        assert counts().compiled <= 3 if case in AT_CAPACITY else counts().compiled >= 5


def test_what_torch_assumed_is_held_against_each_size():
    """A program that was traced under a condition refuses sizes that break it."""

    class Even(nn.Module):
        def forward(self, x):
            return x.exp() if x.shape[0] % 2 == 0 else x - 1

    class Traced(torch.fx.Tracer):
        def is_leaf_module(self, *_):
            return True

    graph = Traced().trace(nn.Sequential(Even()))
    module = torch.fx.GraphModule(nn.Sequential(Even()), graph)
    mode = torch._subclasses.FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())
    dims = torch.fx.experimental.symbolic_shapes
    context = dims.StatelessSymbolicContext([dims.DimDynamic.DYNAMIC, dims.DimDynamic.STATIC])
    (node,) = (each for each in graph.nodes if each.op == "placeholder")
    node.meta["example_value"] = mode.from_tensor(grid(6, 8), symbolic_context=context)
    (out,) = (each for each in graph.nodes if each.op == "output")
    out.args = ((out.args[0],),)
    module.recompile()
    found = open_program.open_program(module, [grid(6, 8)], ())
    assert found.at([grid(10, 8)]).takes == [((10, 8), "float32")]
    with pytest.raises(open_program.NotOpen, match="Mod"):
        found.at([grid(7, 8)])


def test_a_size_that_torch_specializes_leaves_the_others_open(traced):
    mine = torch.compile(lambda x: x @ torch.ones(8, 3), backend="smartmem", dynamic=True)
    for length in (5, 7, 9):
        same(mine(grid(length, 8)), grid(length, 8) @ torch.ones(8, 3))
    assert traced == ["open_program"] and counts().compiled == 3


def test_changed_weights_are_read_again_by_new_sizes():
    module = Net().eval()
    mine = torch.compile(module, backend="smartmem")
    for length in (5, 7):
        same(mine(grid(length, 8)), module(grid(length, 8)))
    module.one.weight.mul_(-2)
    for length in (9, 7, 11):
        same(mine(grid(length, 8)), module(grid(length, 8)))
    module.one.weight = nn.Parameter(torch.randn(12, 8))
    for length in (9, 13):
        same(mine(grid(length, 8)), module(grid(length, 8)))
    assert not counts().eager


def test_a_bound_size_has_the_kernels_of_a_fixed_one(monkeypatch, traced):
    layer, found = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval(), []
    compile = compile_program.compile
    monkeypatch.setattr(open_lengths, "capacities_of", lambda _: [])
    monkeypatch.setattr(compile_program, "compile", lambda *given: found.append(compile(*given)) or found[-1])
    mine = torch.compile(layer, backend="smartmem")
    for length in (6, 9):
        same(mine(torch.ones(2, length, 32)), layer(torch.ones(2, length, 32)))
    assert traced.count("read_program") == 1
    torch._dynamo.reset()
    fixed = torch.compile(layer, backend="smartmem", dynamic=False)
    same(fixed(torch.ones(2, 9, 32)), layer(torch.ones(2, 9, 32)))
    _, bound, alone = [sorted(each.rules.items()) for each in found]
    assert bound == alone

# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(backend="smartmem")`` beside torch: `make test-torch` runs this, in an environment with torch."""

import threading

import pytest
import torch
from torch import nn

from smartmem_tvm import torch_backend
from smartmem_tvm.torch_backend import counts, known_refusals, open_lengths, program, run_graph


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setenv("SMARTMEM_TORCH_CACHE", "0")  # test_torch_kept.py is about what is kept
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
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
    "tuple and dict arguments": (
        lambda pair, named: (pair[0] @ pair[1]).relu() + named["z"],
        ((torch.randn(3, 3), torch.randn(3, 3)), {"z": torch.randn(3)}),
    ),
    "scalar tensor": (lambda x, y: x * y, (torch.randn(3), torch.tensor(2.0))),
    "scalar result": (lambda x: x.sin().sum(), (torch.randn(3),)),
    "integers": (lambda x, y: (x + y, x // 3, x % 4, x > y), (torch.arange(9), torch.arange(9).flip(0))),
    "bool": (lambda x, y: (x & y, x.to(torch.float32)), (torch.tensor([True, False]), torch.tensor([True, True]))),
    "half": (lambda x: torch.relu(x * 2) + 1, (torch.randn(4, 8).half(),)),
    "bfloat16": (lambda x: torch.relu(x * 2) + 1, (torch.randn(4, 8).bfloat16(),)),
    "bfloat16 matmul": (
        lambda x, y: torch.softmax(x @ y, -1),
        (torch.randn(4, 8).bfloat16(), torch.randn(8, 8).bfloat16()),
    ),
    "float64": (lambda x: x.exp() @ x, (torch.randn(4, 4, dtype=torch.float64),)),
    "not contiguous": (lambda x: x.softmax(-1) * 2, (torch.randn(5, 7).t(),)),
    "not aligned": (lambda x: x.softmax(-1) * 2, (torch.randn(65)[1:].view(8, 8),)),
    "expanded": (lambda x: x.softmax(-1) * 2, (torch.randn(1, 7).expand(5, 7),)),
    "channels last": (
        lambda x: nn.functional.conv2d(x, torch.ones(4, 3, 3, 3)),
        (torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last),),
    ),
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
    "cumulated bools": (lambda x: (x != 1).cumsum(-1), (torch.randint(0, 3, (2, 5)),)),
    "returns a size": (lambda x: (x.exp(), x.shape[0], x.shape), (torch.randn(3, 4),)),
}

LEFT = {"complex", "no operator of ONNX"}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions(case):
    function, inputs = FUNCTIONS[case]
    found = agrees(function, *inputs)
    assert found.calls + found.eager_calls >= 3
    assert bool(found.eager) == (case in LEFT), found.reasons


def autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


def test_autocast_inside_and_around():
    x = torch.randint(-3, 4, (8, 8)).float()  # exact in any order of the sums
    agrees(autocast, x)
    mine = compiled(lambda x: x @ x + 1)
    with torch.autocast("cpu", torch.bfloat16):
        same(mine(x), x @ x + 1)
    same(mine(x), x @ x + 1)


def test_random_numbers_are_drawn_by_torch():
    mine = compiled(lambda x: nn.functional.dropout(x, 0.5, True).exp())
    x = torch.ones(1000)
    assert not torch.equal(mine(x), mine(x))
    (reason,) = counts().reasons
    assert "draws random numbers" in reason


def test_dropout_and_attention_draw_nothing_in_inference():
    def function(x):
        y = nn.functional.dropout(x, 0.5, False)
        return nn.functional.scaled_dot_product_attention(y, y, y)

    found = agrees(function, torch.randn(1, 2, 4, 8))
    assert found.compiled == 1 and not found.eager


def written(x, y):
    x.mul_(2)
    y[0] = 7
    return x @ x + y


def test_what_writes_into_its_inputs():
    mine, twin = compiled(written), written
    mine_given, twin_given = [[torch.ones(4, 4), torch.ones(4)] for _ in range(2)]
    for _ in range(3):
        same(mine(*mine_given), twin(*twin_given))
        same(mine_given, twin_given)
    assert counts().compiled == 1 and not counts().eager


def test_views_of_inputs_and_of_other_results_share_their_memory():
    def function(x):
        y = x.exp()
        return x.t(), y, y.view(-1)

    mine = compiled(function)
    x = torch.randn(3, 4)
    for _ in range(2):
        view, y, flat = mine(x)
        same((view, y, flat), function(x))
        assert view.data_ptr() == x.data_ptr() and flat.data_ptr() == y.data_ptr()
    assert counts().reasons == {"a result shares memory with an input": 1}


def test_parts_of_one_tensor_are_results_of_their_own():
    found = agrees(lambda x: x.exp().split(2, 1), torch.randn(3, 4))
    assert found.compiled == 1


def test_results_have_memory_of_their_own():
    def function(x):
        return x * 1, torch.arange(4), x.exp() + 0, x.exp() * 1

    mine, x = compiled(function), torch.randn(4)
    first = mine(x)
    kept = [each.clone() for each in first]
    assert len({each.data_ptr() for each in (*first, x)}) == 5
    for each in first:
        each.zero_()
    same(mine(x), function(x))
    same(mine(x), tuple(kept))


def test_a_norm_in_training_moves_its_statistics():
    mine, twin = Block(), Block()
    twin.load_state_dict(mine.state_dict())
    twin.scale = mine.scale
    fast, x = compiled(mine), torch.randn(4, 8)
    for _ in range(3):
        same(fast(x), twin(x))
        same(mine.state_dict(), twin.state_dict())
    assert "training mode" in next(iter(counts().reasons))


def breaking(x):
    y = x.exp()
    torch._dynamo.graph_break()
    if y.sum() > 3:
        return y @ y
    return y - 1


def test_graph_breaks_and_branches_on_data():
    mine = compiled(breaking)
    for x in (torch.ones(2, 2), -5 * torch.ones(2, 2), torch.ones(2, 2)):
        same(mine(x), breaking(x))
    found = counts()
    assert found.compiled >= 3 and not found.eager and found.graph_breaks


def test_control_flow_of_torch():
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x.exp(), lambda x: x - 1, (x,))

    agrees(function, torch.ones(3))
    agrees(function, -torch.ones(3))


def test_training_is_left_to_torch():
    mine, twin = Block(), Block()
    twin.load_state_dict(mine.state_dict())
    twin.scale = mine.scale
    x = torch.randn(4, 8)
    with torch.enable_grad():
        compiled(mine)(x)["y"].sum().backward()
        twin(x)["y"].sum().backward()
    same([each.grad for each in mine.parameters()], [each.grad for each in twin.parameters()])
    (reason,) = counts().reasons
    assert "need gradients" in reason and counts().compiled == 0


def test_frozen_parameters_need_no_gradients_with_gradients_on():
    with torch.enable_grad():
        found = agrees(Block().eval().requires_grad_(False), torch.randn(4, 8))
    assert found.compiled == 1


def test_inference_mode_inside_and_around():
    module, x = Block().eval(), torch.randn(4, 8)
    with torch.inference_mode():
        agrees(module, x)
        agrees(module, torch.randn(5, 8))  # a tensor that counts no writes
        agrees(Block().eval(), x)  # and weights that count none
    assert not counts().eager


def test_each_shape_is_compiled_once_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(run_graph, "MOST_SHAPES", 4)
    monkeypatch.setattr(open_lengths, "capacities_of", lambda _: [])
    module = Block().eval()
    mine = compiled(module)
    for size in (2, 3, 4, 5, 6, 3, 7, 3):  # 2 is a graph of its own; 7 takes the place of 4
        x = torch.randn(size, 8)
        same(mine(x), module(x))
    assert (counts().compiled, counts().eager_calls) == (6, 0)
    same(mine(torch.ones(4, 8)), module(torch.ones(4, 8)))
    assert (counts().compiled, counts().eager) == (7, 0)


CHANGES = {
    "in place": lambda module: module.linear.weight.mul_(2),
    "by its data": lambda module: module.linear.weight.data.mul_(2),
    "by numpy": lambda module: module.linear.weight.detach().numpy().__imul__(2),
    "new data": lambda module: setattr(module.linear.weight, "data", torch.randn(8, 8)),
    "new parameter": lambda module: setattr(module.linear, "weight", nn.Parameter(torch.randn(8, 8))),
    "a plain tensor": lambda module: module.scale.add_(1),
    "a new plain tensor": lambda module: setattr(module, "scale", torch.randn(8)),
    "load_state_dict": lambda module: module.load_state_dict(Block().state_dict()),
    "load_state_dict(assign=True)": lambda module: module.load_state_dict(Block().state_dict(), assign=True),
}


@pytest.mark.parametrize("freeze", [True, False])
def test_changed_weights_are_seen(freeze):
    module, x = Block().eval(), torch.randn(4, 8)
    mine = compiled(module, freeze=freeze)
    same(mine(x), module(x))
    for change in CHANGES.values():
        change(module)
        same(mine(x), module(x))
        same(mine(x), module(x))
    assert counts().recompiled == (3 if freeze else 0) and not counts().eager


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_compiles_again(change):
    module, x = Block().eval(), torch.randn(4, 8)
    mine = compiled(module)
    mine(x)
    CHANGES[change](module)
    same(mine(x), module(x))
    assert counts().recompiled == 1


def test_a_weight_of_no_number_changes_nothing():
    module, x = Block().eval(), torch.randn(4, 8)
    module.scale.fill_(torch.nan)
    mine = compiled(module)
    mine(x), mine(x)
    assert counts().compiled == 1


def test_several_threads():
    module = Block().eval()
    mine, inputs = compiled(module), [torch.randn(4, 8) for _ in range(8)]
    found: dict[int, list] = {}

    def run(at):
        with torch.no_grad():
            found[at] = [mine(inputs[at]) for _ in range(50)]

    threads = [threading.Thread(target=run, args=(at,)) for at in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for at, results in found.items():
        same(results, [module(inputs[at])] * 50)
    assert len(found) == 8 and counts().calls == 400


def test_options():
    x = torch.randn(4, 8)
    same(compiled(torch.exp, target="llvm", fuse=False)(x), x.exp())
    for options, message in [
        ({"target": "lvm"}, "lvm"),
        ({"traget": "llvm"}, "no option 'traget'"),
        ({"freeze": 1}, "'freeze'"),
        ({"target": 3}, "'target'"),
    ]:
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
            compiled(torch.exp, **options)(x)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="'mode'"):
        torch.compile(torch.exp, backend="smartmem", mode="max-autotune")(x)


def test_another_device_than_the_tensors_are_on():
    x = torch.randn(4, 8)
    module = Block().eval()
    mine = compiled(module, target="opencl")
    same(mine(x), module(x))
    assert counts().compiled == 1


class Refused(nn.Module):
    """There is no translation of its operator."""

    def __init__(self, size=8):
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x):
        return torch.special.i1(self.linear(x))


def test_what_is_refused_is_not_tried_again(monkeypatch):
    known_refusals.forget()
    tried = []
    read = program.read_program
    monkeypatch.setattr(program, "read_program", lambda *given: tried.append(1) or read(*given))
    for module in (Refused().eval(), Refused().eval(), Refused(4).eval()):
        torch._dynamo.reset()
        mine, x = compiled(module), torch.randn(3, module.linear.in_features)
        for _ in range(2):
            same(mine(x), module(x))
    assert len(tried) == 2, "once for each graph, whatever its weights, and again for other sizes"
    assert counts().eager == 3 and counts().eager_calls == 6


def test_a_layer_and_its_fast_path():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    found = agrees(layer, torch.randn(2, 5, 16))
    assert found.compiled and not found.eager

# SPDX-License-Identifier: Apache-2.0
"""Lengths of a graph that run at a capacity: which ones, and right whatever earlier calls left: `make test-torch`."""

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from smartmem_tvm import torch_backend
from smartmem_tvm.torch_backend import counts
from smartmem_tvm.torch_backend.at_capacity import capacities_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SMARTMEM_TORCH_CACHE", str(tmp_path / "kept"))
    torch.manual_seed(0)
    afresh()
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=64):
        yield tmp_path / "kept"


def afresh():
    torch._dynamo.reset()
    torch_backend.reset_counts()


def encoder(width=32, heads=2, layers=1):
    layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


class Sentence(nn.Module):
    """Ids and a mask of padding; a mean over the positions that are not masked."""

    def __init__(self, width=32, heads=2):
        super().__init__()
        self.table, self.places = nn.Embedding(50, width), nn.Embedding(512, width)
        self.layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)

    def forward(self, ids, mask):
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        bias = (1.0 - mask)[:, None, None, :] * -1e9
        q = x.view(*x.shape[:2], 2, -1).transpose(1, 2)
        x = x + (torch.softmax(q @ q.transpose(-2, -1) + bias, -1) @ q).transpose(1, 2).flatten(2)
        x = self.layer.norm1(x)
        return x, (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


def same(mine, reference, *inputs):
    for found, wanted in zip(*map(torch.utils._pytree.tree_leaves, (mine(*inputs), reference(*inputs))), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert found.is_contiguous() and found.data_ptr() % 4 == 0


def test_ten_lengths_are_a_few_compilations_and_another_process_has_none():
    module, made = encoder(), []
    for _ in range(2):
        afresh()
        mine = torch.compile(module, backend="smartmem")
        for length in (16, 24, 32, 40, 48, 56, 64, 72, 80, 96):
            same(mine, module, torch.randn(1, length, 32))
        made.append((counts().compiled, counts().loaded))
        assert not counts().eager_calls
    (compiled, loaded), after = made
    assert compiled <= 4 and not loaded and after == (0, compiled)  # the first length is a graph of its own


def test_another_process_loads_for_lengths_that_none_had():
    module = encoder()
    for lengths, compiled in (((16, 24, 32), 2), ((17, 29, 31, 25), 1)):  # a graph of a fixed size comes first
        afresh()
        mine = torch.compile(module, backend="smartmem")
        for length in lengths:
            same(mine, module, torch.randn(1, length, 32))
        assert counts().compiled == compiled and not counts().eager_calls
    assert counts().loaded == 1


def test_what_an_earlier_call_left_is_not_read():
    module = encoder()
    mine = torch.compile(module, backend="smartmem")
    for length in (16, 24):
        same(mine, module, torch.randn(1, length, 32))
    mine(torch.full((1, 61, 32), torch.nan))
    mine(torch.full((1, 64, 32), torch.inf))
    for length in (60, 24, 37, 23):
        same(mine, module, torch.randn(1, length, 32))
    assert counts().compiled == 2


def test_results_stay_when_the_next_call_comes():
    module = encoder()
    mine = torch.compile(module, backend="smartmem")
    kept = [(mine(x), module(x)) for x in (torch.randn(1, length, 32) for length in (16, 24, 25, 50, 64, 31))]
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_drawn_lengths_and_batches(seed):
    """Batch and length change together: 20 calls, of each batch some lengths, with two inputs."""
    generator = torch.Generator().manual_seed(seed)

    def draw(least, most):
        return int(torch.randint(least, most, (), generator=generator))

    module = Sentence().eval()
    mine = torch.compile(module, backend="smartmem", dynamic=None if seed else True)
    for _ in range(20):
        batch, length = draw(1, 4), draw(2, 70)
        mask = torch.ones(batch, length)
        mask[:, max(1, length - draw(0, 5)) :] = 0
        same(mine, module, torch.randint(0, 50, (batch, length), generator=generator), mask)
    assert not counts().eager_calls and counts().compiled < 20, counts()


def test_a_mean_a_window_and_a_size_in_the_result():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.window = nn.Conv1d(8, 8, 3, padding=1)

        def forward(self, x):
            y = self.window(x.transpose(1, 2)).relu()
            return y.mean(2), y.softmax(2), x.sum(1)

    module = Net().eval()
    mine = torch.compile(module, backend="smartmem")
    for length in (5, 9, 31, 17, 2, 64, 63):
        same(mine, module, torch.randn(2, length, 8))
    assert not counts().eager_calls


def test_a_batch_alone_has_kernels_for_each_size():
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).eval()
    mine = torch.compile(module, backend="smartmem")
    for batch in (2, 3, 5, 4):
        same(mine, module, torch.randn(batch, 3, 9, 9))
    assert counts().compiled == 4


def test_changed_weights_are_in_the_next_call():
    module = encoder()
    mine = torch.compile(module, backend="smartmem")
    for length in (16, 24, 30):
        same(mine, module, torch.randn(1, length, 32))
    module.layers[0].linear1.weight.mul_(-1)
    for length in (24, 30, 40):
        same(mine, module, torch.randn(1, length, 32))
    assert not counts().eager_calls


def test_two_threads_with_lengths_of_their_own():
    module, failed = encoder(), []
    mine = torch.compile(module, backend="smartmem")
    for length in (16, 24):
        mine(torch.randn(1, length, 32))

    def call(lengths):
        try:
            with torch.no_grad():
                for length in lengths * 8:
                    same(mine, module, torch.randn(1, length, 32))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(lengths,)) for lengths in ((25, 64, 17), (33, 20, 63))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed and not counts().eager_calls


_CHILD = """
import sys, torch
from torch import nn
sys.path.insert(0, {here!r})
from test_torch_lengths import encoder
torch.manual_seed(0)
module = encoder()
mine = torch.compile(module, backend="smartmem")
with torch.no_grad():
    for length in (16, 24, 40, 64):
        x = torch.randn(1, length, 32)
        torch.testing.assert_close(mine(x), module(x), rtol=1e-4, atol=1e-5)
from smartmem_tvm.torch_backend import counts
print(counts().eager_calls, counts().compiled + counts().loaded)
"""


def test_two_processes_at_once():
    here = __file__.rsplit("/", 1)[0]
    command = [sys.executable, "-c", _CHILD.format(here=here)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [child.communicate()[0].split() for child in children] == [["0", "2"]] * 2
    assert [child.returncode for child in children] == [0, 0]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["0", "2"]


def test_numbers_of_the_code_stay_numbers():
    """With ``dynamic=True`` torch passes the epsilon of a norm, and what a caller gives, as tensors."""
    norm = nn.LayerNorm(8, eps=0.5)
    mine = torch.compile(lambda x, factor: norm(x) * factor, backend="smartmem", dynamic=True)
    for factor in (2.0, 3.0, -0.0, 2.0):
        same(mine, lambda x, factor: norm(x) * factor, torch.randn(3, 8), factor)
    assert not counts().eager_calls and counts().compiled == 3, counts()
    for factor in (5.0, 6.0, 7.0):
        same(mine, lambda x, factor: norm(x) * factor, torch.randn(3, 8), factor)
    assert counts().compiled == 4 and counts().eager_calls == 2
    assert "numbers of its code change again and again" in counts().reasons


def test_marked_dimensions_and_gradients():
    module = encoder()
    mine = torch.compile(module, backend="smartmem")
    for length in (24, 30):
        x = torch.randn(1, length, 32)
        torch._dynamo.mark_dynamic(x, 1)
        same(mine, module, x)
    assert (counts().compiled, counts().eager_calls) == (1, 0)
    with torch.enable_grad():
        mine(torch.randn(1, 24, 32)).sum().backward()
    assert "its results need gradients" in str(counts().reasons) and module.layers[0].linear1.weight.grad is not None


def test_capacities():
    assert capacities_of(24) == [64, 32] and capacities_of(5) == [16] and capacities_of(3) == []
    assert capacities_of(4096) == [4096] and capacities_of(4097) == []

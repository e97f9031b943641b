# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs that are kept on disk, and what decides whether one is the right one: `make test-torch`."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from smartmem_tvm import torch_backend
from smartmem_tvm.options import Options
from smartmem_tvm.torch_backend import counts, source
from smartmem_tvm.torch_backend.graph_key import NotStable, key_of, options_text


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SMARTMEM_TORCH_CACHE", str(tmp_path / "kept"))
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch_backend.reset_counts()
    with torch.no_grad():
        yield tmp_path / "kept"


def once(function, *inputs, **options):
    """Compile a function as a process without earlier graphs would; return what was compiled and loaded for it."""
    torch._dynamo.reset()
    torch_backend.reset_counts()
    torch.testing.assert_close(torch.compile(function, backend="smartmem", options=options)(*inputs), function(*inputs))
    assert not counts().eager, counts().reasons
    return counts().compiled, counts().loaded


def net(seed=0, width=8):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, 8)).eval()


X = torch.linspace(-1, 1, 32).view(4, 8)


def test_an_equal_graph_is_loaded():
    assert once(net(), X) == (1, 0)
    assert once(net(), X * 2) == (0, 1), "other modules and inputs, of the same numbers and shapes"


def scaled(factor):
    return lambda x: x * factor + 1


class Scaled(nn.Module):
    """A graph with a tensor of its own that is no parameter."""

    def __init__(self, factor):
        super().__init__()
        self.factor = torch.full((8,), factor)

    def forward(self, x):
        return x * self.factor


OTHERS = {
    "weights": (net(), net(1)),
    "one weight of large ones": (net(width=4096), net(width=4096)),
    "a width": (net(), net(width=16)),
    "a number in the code": (scaled(2.0), scaled(3.0)),
    "the sign of a zero": (scaled(0.0), scaled(-0.0)),
    "a plain tensor": (Scaled(2.0), Scaled(3.0)),
    "an operator": (torch.exp, torch.log1p),
    "an argument": (lambda x: x.sum(0), lambda x: x.sum(1)),
    "a type": (lambda x: x.to(torch.float16), lambda x: x.to(torch.float64)),
    "an operand": (lambda x: x.exp() - x, lambda x: x - x.exp()),
    "a method": (lambda x: x.sin(), lambda x: x.cos()),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_graph_is_not(case):
    first, second = OTHERS[case]
    if case == "one weight of large ones":
        second[2].weight[5, 77] += 1
    assert once(first, X) == (1, 0) and once(second, X) == (1, 0)
    assert once(first, X) == (0, 1) and once(second, X) == (0, 1)


def test_options_types_sizes_and_settings_of_torch_are_part_of_a_graph():
    module = net()
    assert once(module, X) == (1, 0)
    assert once(module, X, fuse=False) == once(module, X, freeze=False) == (1, 0)
    assert once(module, X[:2]) == (1, 0)
    assert once(lambda x: x + 1, X) == once(lambda x: x + 1, X.double()) == (1, 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert once(torch.matmul, X, X.t()) == (1, 0)
    assert once(torch.matmul, X, X.t()) == (1, 0)


def test_weights_as_inputs_are_not_part_of_it():
    assert once(net(), X, freeze=False) == (1, 0) and once(net(1), X, freeze=False) == (0, 1)


def test_a_change_of_weights_loads_nothing_old():
    module = net()
    mine = torch.compile(module, backend="smartmem")
    for step in range(2):
        torch.testing.assert_close(mine(X), module(X))
        module[0].weight.add_(step + 1)
    torch.testing.assert_close(mine(X), module(X))
    assert (counts().compiled, counts().loaded, counts().recompiled) == (3, 0, 2)
    assert once(module, X) == (0, 1)


def test_a_damaged_file_is_compiled_again(folder, caplog):
    once(net(), X)
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        assert once(net(), X) == (1, 0)
    assert "is damaged" in caplog.text
    assert once(net(), X) == (0, 1)


def test_what_writes_into_its_inputs_is_loaded():
    def written(x):
        x.mul_(2)
        return x @ x.t()

    def run():
        torch._dynamo.reset()
        torch_backend.reset_counts()
        mine, twin = X.clone(), X.clone()
        torch.testing.assert_close(torch.compile(written, backend="smartmem")(mine), written(twin))
        torch.testing.assert_close(mine, twin)
        return counts().compiled, counts().loaded

    assert run() == (1, 0)
    assert run() == (0, 1)


def test_a_full_disk_leaves_no_graph_to_torch(folder, monkeypatch, caplog):
    """Neither the folder nor the system's folder for temporary files takes a library: kernels stay in memory."""

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with caplog.at_level(logging.WARNING):
        assert once(net(), X) == (1, 0)
    assert "No space left on device" in caplog.text and not any(folder.glob("*"))


def test_functions_of_a_program_are_not_kept(folder, caplog):
    graph = torch.fx.Graph()
    graph.output(graph.call_function(scaled(2.0), (graph.placeholder("x"),)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    with pytest.raises(NotStable, match="torch's own"):
        key_of(module, (), False, ("llvm", ""))
    with caplog.at_level(logging.INFO):
        made = source.Source(module, torch_backend.request.Request(), X.device, False)
        assert made._key_of([X], (), source.Snapshot([])) is None
    assert "not kept for other processes" in caplog.text


@pytest.mark.parametrize("name", ["records", "profiles", "measure", "dump_dir", "memory_budget"])
def test_options_of_one_process_are_not_kept(name):
    with pytest.raises(NotStable, match=name):
        options_text(Options(**{name: 10**9 if name == "memory_budget" else "here"}))
    assert options_text(Options()) != options_text(Options(fuse=False))


CHILD = """
import json, sys, torch
from torch import nn
from smartmem_tvm import torch_backend
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
mine, errors = torch.compile(model, backend="smartmem"), []
with torch.inference_mode():
    for length in (4, 6, 7, 11, 6):
        x = torch.randn(2, length, 32)
        errors.append(float((mine(x) - model(x)).abs().max()))
found = torch_backend.counts()
heavy = sorted({"onnx", "smartmem_tvm.schedule.choose", "smartmem_tvm.deploy.build"} & set(sys.modules))
print(json.dumps([found.compiled, found.loaded, found.eager, max(errors) < 1e-4, heavy]))
"""


def processes(count):
    env = {**os.environ, "PYTHONPATH": str(Path(torch_backend.__file__).parents[2])}
    started = [subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, env=env) for _ in range(count)]
    return [json.loads(each.communicate()[0].splitlines()[-1]) for each in started]


def test_other_processes_load_what_two_at_once_have_compiled():
    (first, *_), second = processes(2), processes(1)
    assert 2 <= first[0] + first[1] <= 4 and first[2:4] == [0, True]
    assert second == [[0, first[0] + first[1], 0, True, []]], "nor is a compiler imported"

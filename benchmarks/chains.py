# SPDX-License-Identifier: Apache-2.0
"""Long chains of small kernels: recurrences that are written out, with and without `MergeChains`, beside torch.compile.

    python benchmarks/chains.py --count                                  # kernels of each network; no GPU is needed
    python benchmarks/chains.py --target cuda --jobs 8 -o chains.json    # times on an NVIDIA GPU, all systems in turns

Needs torch, and for ``rwkv`` transformers. Weights are random. Networks are compiled side by side and timed one at a
time. Times are medians of rounds, seconds of one inference on one input; ``error`` is against torch in float64,
relative to the largest output. A system that fails is in ``failed``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import torch
from gpu_audit import Running, Turn, attempt
from torch import nn

import smartmem_tvm as sm
from smartmem_tvm.ir.graph import launches
from smartmem_tvm.pipeline import graph_phases, run_phases
from smartmem_tvm.target import has_half_arithmetic, parse_target
from smartmem_tvm.whole_file import whole

_ROUNDS, _RUNS = 15, 20
_LIMIT = 300  # seconds for one system to compile one network; torch.compile takes longest
TARGETS = ("cuda", "opencl")
PRECISIONS = {"float32": torch.float32, "half": torch.float16}


class Cells(nn.Module):
    """A cell of torch, step after step."""

    def __init__(self, cell: nn.Module, hidden: int):
        super().__init__()
        self.cell, self.hidden = cell, hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All states, the first of each step."""
        state = first = x.new_zeros(x.shape[0], self.hidden)
        if isinstance(self.cell, nn.LSTMCell):
            state = (first, first)
        found = []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(found, 1)


class StateSpace(nn.Module):
    """A selective scan as Mamba has it, without its convolution."""

    def __init__(self, width: int = 64, state: int = 16):
        super().__init__()
        self.decay, self.skip = nn.Parameter(-torch.rand(width, state)), nn.Parameter(torch.rand(width))
        self.project, self.sizes = nn.Linear(width, width + 2 * state), [width, state, state]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sequence, of the same shape."""
        rate, into, out = self.project(x).split(self.sizes, -1)
        rate, found = nn.functional.softplus(rate), []
        state = x.new_zeros(x.shape[0], *self.decay.shape)
        for step in range(x.shape[1]):
            kept = torch.exp(rate[:, step, :, None] * self.decay)
            state = kept * state + (rate[:, step] * x[:, step])[:, :, None] * into[:, step, None, :]
            found.append((state * out[:, step, None, :]).sum(-1))
        return torch.stack(found, 1) + x * self.skip


class Filter(nn.Module):
    """A recursive filter of second order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The filtered signals."""
        last = before = x.new_zeros(x.shape[0])
        found = []
        for step in range(x.shape[1]):
            last, before = 0.2 * x[:, step] + 1.2 * last - 0.5 * before, last
            found.append(last)
        return torch.stack(found, 1)


class Inverse(nn.Module):
    """Newton's iteration for the inverse of matrices."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        """The inverses."""
        scale = a.abs().sum(-1).amax(-1) * a.abs().sum(-2).amax(-1)
        x, one = a.transpose(-1, -2) / scale[:, None, None], torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        for _ in range(16):
            x = x @ (2 * one - a @ x)
        return x


def rwkv(width: int, layers: int) -> nn.Module:
    """RWKV-4 of transformers, whose scan is written out."""
    from transformers import RwkvConfig
    from transformers.models.rwkv.modeling_rwkv import RwkvModel

    config = RwkvConfig(vocab_size=100, hidden_size=width, num_hidden_layers=layers, context_length=64)

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = RwkvModel(config)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(ids, use_cache=False)[0]

    return First()


def _matrices() -> torch.Tensor:
    return torch.eye(16) * 4 + torch.rand(2, 16, 16)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "gru": (lambda: Cells(nn.GRUCell(64, 64), 64), lambda: torch.rand(1, 32, 64)),
    "lstm": (lambda: Cells(nn.LSTMCell(64, 64), 64), lambda: torch.rand(1, 32, 64)),
    "rnn": (lambda: Cells(nn.RNNCell(32, 32), 32), lambda: torch.rand(4, 32, 32)),
    "state space": (StateSpace, lambda: torch.rand(1, 32, 64)),
    "filter": (Filter, lambda: torch.rand(4, 40)),
    "inverse": (Inverse, _matrices),
    "rwkv": (lambda: rwkv(64, 2), lambda: torch.randint(0, 100, (1, 32))),
    "rwkv 768": (lambda: rwkv(768, 2), lambda: torch.randint(0, 100, (1, 32))),
}
"""Name -> the network and its input."""


def main() -> int:
    """Count, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)} (default: all)")
    parser.add_argument("--count", action="store_true", help="count kernels, on any machine")
    parser.add_argument("--target", default="cuda", help="a TVM target (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="networks that are compiled at the same time")
    parser.add_argument("-o", "--output", type=Path, help="write the results to this file")
    parser.add_argument("--one", metavar="LOCK", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(*make(args.networks[0]), args.target, Turn(args.one))))
        return 0
    found = {}
    for name, row in rows(args):
        found[name] = row
        print(name, json.dumps(row), flush=True)
        if args.output:
            with whole(args.output) as path:
                path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def rows(args: argparse.Namespace) -> Iterator[tuple[str, dict]]:
    """Each network with what was counted or measured, as they end."""
    names = list(args.networks or NETWORKS)
    if args.count:
        yield from ((name, counted(*make(name))) for name in names)
        return
    running: dict[str, Running] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--target", args.target, "--one", str(Path(folder, "turn"))]
        while names or running:
            while names and len(running) < args.jobs:
                running[name] = Running.of([*command, name := names.pop(0)])
            time.sleep(0.2)
            for name in [name for name, each in running.items() if each.ended(4 * _LIMIT)]:
                yield name, running.pop(name).row()


def make(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A network with its input, the same with each call."""
    torch.manual_seed(0)
    build, draw = NETWORKS[name]
    return build().eval(), draw()


def imported(module: nn.Module, x: torch.Tensor):
    """The network as a module of TVM's."""
    with torch.no_grad():
        return sm.from_torch(torch.export.export(module, (x,)))


def counted(module: nn.Module, x: torch.Tensor) -> dict[str, list[int]]:
    """Target -> kernels of one inference without the pass, and with it."""
    mod, found = imported(module, x), {}
    for name in TARGETS:
        target = parse_target(name)
        with target:
            both = [run_phases(mod, graph_phases(target), sm.Options(merge_chains=on)) for on in (False, True)]
        found[name] = [sum(launches(each).values()) for each in both]
    return found


def measured(module: nn.Module, x: torch.Tensor, target: str, turn: Turn) -> dict:
    """Seconds of an inference and the error of each system in each precision, the systems in turns.

    Parameters
    ----------
    turn : Turn
        Taken when all is compiled, so that one network is timed at a time.
    """
    exact = module.double()(x.double() if x.is_floating_point() else x).detach()
    module.float()
    mod, systems = imported(module, x), {}
    found: dict = {"seconds": {}, "errors": {}, "compile": {}, "failed": {}}
    outcome = {"seconds": found["compile"], "failed": found["failed"]}
    for precision, dtype in precisions_of(target).items():
        for label, on in (("smartmem", True), ("smartmem, a launch each", False)):
            options = sm.Options(precision=precision, merge_chains=on)
            with attempt(outcome, name := f"{label}, {precision}", _LIMIT):
                systems[name] = _ours(sm.compile(mod, parse_target(target), options), x)
        if target == "cuda":
            with attempt(outcome, name := f"torch, {precision}", _LIMIT):
                systems[name] = _torch(module, x, dtype)
    turn.take()
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(_ROUNDS):
        for name, (run, _) in systems.items():
            start = time.perf_counter()
            run(_RUNS)
            seconds[name].append((time.perf_counter() - start) / _RUNS)
    for name, (_, output) in systems.items():
        found["seconds"][name] = statistics.median(seconds[name])
        found["errors"][name] = float((output().double().cpu() - exact).abs().max() / exact.abs().max())
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {**found, "device": device, "torch": torch.__version__, "date": date.today().isoformat()}


def precisions_of(target: str) -> dict[str, torch.dtype]:
    """Precision -> torch's type, those that the target computes in."""
    half = target == "cuda" or has_half_arithmetic(parse_target(target))
    return {name: each for name, each in PRECISIONS.items() if half or name == "float32"}


def _ours(compiled, x: torch.Tensor):
    vm = compiled.machine()
    main, tensors = vm["main"], vm.tensors([x.numpy()])
    from smartmem_tvm.target import device_of

    device = device_of(compiled.target)

    def run(times: int) -> None:
        for _ in range(times):
            main(*tensors)
        device.sync()

    def output() -> torch.Tensor:
        found = compiled.run(x.numpy())
        return torch.as_tensor(found[0] if isinstance(found, list | tuple) else found)

    run(3)
    return run, output


def _torch(module: nn.Module, x: torch.Tensor, dtype: torch.dtype):
    import copy

    mine = copy.deepcopy(module).to("cuda", dtype)
    given = x.to("cuda", dtype) if x.is_floating_point() else x.to("cuda")
    compiled = torch.compile(mine, mode="reduce-overhead")

    @torch.no_grad()
    def run(times: int) -> None:
        for _ in range(times):
            compiled(given)
        torch.cuda.synchronize()

    run(5)
    return run, torch.no_grad()(lambda: mine(given))


if __name__ == "__main__":
    sys.exit(main())

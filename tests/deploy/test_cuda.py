# SPDX-License-Identifier: Apache-2.0
"""Models for CUDA: what is launched, with what, and that recorded runs compute the same.

A CUDA device is not needed: the recording is done here by functions that stand for TVM's, which call what was recorded
again and again; kernels are those for the CPU.
"""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from helpers import module, op, random
from smartmem_tvm import Options
from smartmem_tvm.deploy import build
from smartmem_tvm.deploy.weights import Machine
from smartmem_tvm.pipeline import lower_phases
from smartmem_tvm.runtime.launches import count_launches
from smartmem_tvm.target import host_target, parse_target
from smartmem_tvm.transform.memory import capture_graphs

SIZE = 192  # of weights that become parameters


def weight(seed: int) -> tvm.ir.Constant:
    return relax.const(random((SIZE, SIZE), seed=seed)[0] / SIZE**0.5)


def network(x):
    for seed in range(3):
        x = op.add(x, op.nn.softmax(op.matmul(x, weight(seed))))
    return x


def reference(x):
    for seed in range(3):
        scores = x @ weight(seed).value.numpy()
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        x = x + powers / powers.sum(-1, keepdims=True)
    return x


def lowered(options: Options):
    target = parse_target("cuda")
    with target:
        graph = build.optimize(module(network, (8, SIZE)), options=options)
        return build.lower(graph, target, options)


def test_kernels_are_on_threads_and_recorded_with_their_weights():
    found = lowered(Options(fuse_attention=False))
    kernels = [func for func in found.module.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    assert kernels and all("blockIdx" in kernel.script() for kernel in kernels)
    assert len(found.weights) == 3 and len(found.module["main"].params) == 4
    assert len(found.kernels_per_graph) == 1 and found.kernels_per_graph[0] >= 3
    assert all(rule["name"] != "-" for rule in found.rules.values())


def test_without_graphs_nothing_is_recorded():
    found = lowered(Options(cuda_graph=False))
    assert found.kernels_per_graph == [] and len(found.weights) == 3
    assert {gvar.name_hint for gvar, func in found.module.functions_items() if isinstance(func, relax.Function)} == {
        "main"
    }


class Recorder:
    """Stands for the functions of TVM that allocate for, record and launch CUDA graphs."""

    def __init__(self):
        self.recorded: dict = {}
        self.allocated = None
        self.launches = 0
        self.call = tvm.get_global_func("vm.builtin.invoke_closure")

    def run_or_capture(self, machine, function, arguments, number):
        """The first time call it twice, as TVM does; later on call the same with the arguments of then."""
        if number not in self.recorded:
            # TVM's second call does not compute; this one must find what the first one may have overwritten.
            tensors = [each for each in arguments if isinstance(each, tvm.runtime.Tensor)]
            before = [each.numpy() for each in tensors]
            self.call(machine, function, *arguments)
            for tensor, content in zip(tensors, before, strict=True):
                tensor.copyfrom(content)
            self.recorded[number] = arguments, self.call(machine, function, *arguments)
            return self.recorded[number][1]
        self.launches += 1
        kept, states = self.recorded[number]
        fresh = self.call(machine, function, *kept)
        for state, tensor in zip(states, fresh, strict=True):
            assert np.shares_memory(np.from_dlpack(state), np.from_dlpack(tensor)), "results move between launches"
        return states

    def get_cached_alloc(self, machine, function, _number):
        """Allocate once."""
        if self.allocated is None:
            self.allocated = self.call(machine, function)
        return self.allocated


@pytest.fixture
def recorder():
    functions, old = Recorder(), {}
    for name in ("run_or_capture", "get_cached_alloc"):
        full = f"vm.builtin.cuda_graph.{name}"
        old[full] = tvm.get_global_func(full, allow_missing=True)
        tvm.register_global_func(full, getattr(functions, name), override=True)
    yield functions
    for full, function in old.items():
        tvm_ffi.registry.remove_global_func(full)
        if function is not None:
            tvm.register_global_func(full, function)


@pytest.fixture
def recorded(monkeypatch):
    """The network with kernels for the CPU, lowered as for CUDA."""
    phases = (lower_phases(None)[0], *lower_phases(parse_target("cuda"))[1:])
    monkeypatch.setattr(build, "lower_phases", lambda _: phases)
    monkeypatch.setattr(capture_graphs, "_allocates", lambda _: False)  # on a CPU, that is registers and the stack
    return build.compile(module(network, (8, SIZE)), host_target(), Options(fuse_attention=False))


def test_recorded_runs_compute_what_their_inputs_ask_for(recorded, recorder):
    for seed in range(3):
        (x,) = random((8, SIZE), seed=seed)
        (got,) = recorded.run(x)
        np.testing.assert_allclose(got, reference(x), rtol=1e-5, atol=1e-5)
    assert recorder.launches == 2 * len(recorded.kernels_per_graph) > 0


def test_results_stay_when_the_next_run_begins(recorded, recorder):
    machine = recorded.machine()
    assert isinstance(machine, Machine)
    first = [machine.tensors(random((8, SIZE), seed=seed)) for seed in range(2)]
    results = [machine["main"](*each) for each in first]
    for tensors, result in zip(first, results, strict=True):
        np.testing.assert_allclose(result.numpy(), reference(tensors[0].numpy()), rtol=1e-5, atol=1e-5)


def test_launches_are_those_of_a_later_inference(recorded, recorder):
    launches = count_launches(recorded, random((8, SIZE)))
    graph_kernels = len(recorded.graph["main"].body.blocks[0].bindings)
    assert launches.total() == graph_kernels > sum(recorded.kernels_per_graph) > 0


def test_dumps_of_all_phases(tmp_path):
    target = parse_target("cuda")
    with target:
        graph = build.optimize(module(network, (8, SIZE)))
        build.lower(graph, target, Options(dump_dir=str(tmp_path)))
    names = sorted(path.name for path in tmp_path.glob("*.py"))
    assert names == ["00_schedule.py", "01_plan_memory.py", "02_cuda_graph.py", "03_finish.py"]

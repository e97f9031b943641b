# SPDX-License-Identifier: Apache-2.0
"""Runs of kernels that are launched without the virtual machine: right by each way, and only where nothing changed."""

import ctypes
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fake_driver import run_with_fake, run_with_pocl
from helpers import constant, module, op
from opencl_child import fake, live, load, problem_of, sentence
from smartmem_tvm.deploy.build import compile
from smartmem_tvm.options import Options
from smartmem_tvm.target import parse_target

SHIM = Path(__file__).parents[1] / "native" / "recordable_opencl.cc"


def network():
    """Six kernels between one that reads the input and one that writes the result."""

    def build(x):
        first = hidden = op.nn.softmax(op.matmul(x, constant(16, 160)))
        for _ in range(3):
            hidden = op.nn.softmax(op.matmul(hidden, constant(160, 160)))
        return op.matmul(op.add(hidden, first), constant(160, 4))

    return module(build, (12, 16))


def compiled_for(target: str, graph: bool = True):
    """The network in kernels of their own, which `merge-chains` would make one launch of."""
    return compile(network(), parse_target(target), Options(cuda_graph=graph, merge_chains=False))


def inputs(times: int):
    return [np.random.default_rng(seed).standard_normal((12, 16)).astype("float32") for seed in range(times)]


def differences(target: str, graph: bool):
    """From the CPU's results, of inferences on inputs that differ; the last two on another machine's weights."""
    compiled, exact = compiled_for(target, graph), compile(network())
    found = [float(np.abs(compiled.run(x)[0] - exact.run(x)[0]).max()) for x in inputs(5)]
    machine = compiled.machine()
    for x in inputs(2):
        given = machine.tensors([x])
        result = machine["main"](*given)
        found.append(float(np.abs(result.numpy() - exact.run(x)[0]).max()))
    return found


def ways(replay: str, shared: int) -> dict[str, str]:
    return {"SMARTMEM_OPENCL_REPLAY": replay, "SMARTMEM_OPENCL_SHARED_ARGUMENTS": str(shared)}


@pytest.mark.device
@pytest.mark.parametrize(
    ("target", "graph", "replay", "shared"),
    [
        ("opencl", True, "launches", 1),
        ("opencl", True, "command-buffer", 0),
        ("opencl-texture", True, "command-buffer", 1),
        ("opencl-texture", True, "launches", 0),
        ("opencl", False, "launches", 0),
    ],
)
def test_replayed_kernels_are_right(target, graph, replay, shared):
    assert max(run_with_pocl(differences, target, graph, env=ways(replay, shared)).value) < 1e-4


def recorded_differences():
    """What `differences` finds, and what the library between counted: of recordings, launches and refusals."""
    found = differences("opencl", True)
    shim = ctypes.CDLL(os.environ["SMARTMEM_OPENCL_LIBRARY"])
    return found, [getattr(shim, f"shim_{name}")() for name in ("enqueued", "launched", "refused")]


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    """The system's OpenCL with recordable queues."""
    file = tmp_path_factory.mktemp("shim") / "recordable_opencl.so"
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared", SHIM, "-o", file]
    subprocess.run(["g++", *flags, "-Wl,--no-as-needed", "-l:libOpenCL.so.1"], check=True)
    return file


@pytest.mark.device
def test_recordable_queues(shim):
    env = {**ways("recordable-queue", 1), "SMARTMEM_OPENCL_LIBRARY": str(shim)}
    found, (enqueued, launched, refused) = run_with_pocl(recorded_differences, env=env).value
    assert max(found) < 1e-4
    # Three replays, whose launches are more than one recording holds; the others are launched.
    assert enqueued >= 6 and enqueued % 3 == 0 and launched > 0 and refused == 0


def with_other_weights():
    """Differences from the CPU where the weights are twice as large from the fourth call on."""
    compiled, exact = compiled_for("opencl"), compile(network())
    machine, found = compiled.machine(), []
    given = machine.tensors(inputs(1))
    changed = [load().runtime.tensor(2 * each.numpy(), each.device) for each in given[1:]]
    cpu = exact.machine()
    expected = cpu.tensors(inputs(1))
    twice = [load().runtime.tensor(2 * each.numpy()) for each in expected[1:]]
    for call in range(7):
        ours = machine["main"](*(given if call < 4 else [given[0], *changed]))
        theirs = cpu["main"](*(expected if call < 4 else [expected[0], *twice]))
        found.append(float(np.abs(ours.numpy() - theirs.numpy()).max()))
    return found


@pytest.mark.device
def test_what_is_called_with_other_weights_is_not_replayed():
    assert max(run_with_pocl(with_other_weights).value) < 1e-4


_KERNEL = """
@T.prim_func(s_tir=True)
def kernel({parameters}):
    T.func_attr({{"global_symbol": "{name}", "tirx.noalias": True, "tirx.is_scheduled": True}})
    for _ in T.thread_binding(1, thread="blockIdx.x"):
        for i in T.thread_binding({size}, thread="threadIdx.x"):
            with T.sblock("{name}"):
                v = T.axis.spatial({size}, i)
                out[v] = T.Cast("{dtype}", {value})
"""
DTYPES = ("float32", "int32", "int8", "uint8", "float64", "int64", "int16")


def drawn_chain(seed: int):
    """The differences from numpy of four inferences of kernels drawn at random, and whether launches were replayed."""
    import tvm
    from tvm import relax
    from tvm.script import from_source, tirx

    from smartmem_tvm.deploy.weights import Machine
    from smartmem_tvm.pipeline import lower_phases, run_phases

    draw = np.random.default_rng(seed)
    size, target = int(draw.choice([1, 7, 31, 64])), parse_target("opencl")
    start = draw.integers(-3, 4, size).astype("int32")
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((size,), "int32"))
    tensors, values, dtypes = [x], [start], ["int32"]
    with builder.function("main", [x]):
        with builder.dataflow():
            for number in range(14):
                last = draw.integers(max(0, len(tensors) - 5), len(tensors), draw.integers(1, 7))
                chosen = [int(each) for each in last]
                dtype = "int32" if number == 13 else str(draw.choice(DTYPES))
                given = [f'a{k}: T.Buffer(({size},), "{dtypes[each]}")' for k, each in enumerate(chosen)]
                terms = " + ".join(f'T.Cast("int32", a{k}[v])' for k in range(len(chosen)))
                text = _KERNEL.format(
                    parameters=", ".join([*given, f'out: T.Buffer(({size},), "{dtype}")']),
                    name=f"kernel_{number}",
                    size=size,
                    dtype=dtype,
                    value=f"tirx.truncmod({terms}, 11) + 12" if dtype == "uint8" else f"tirx.truncmod({terms}, 11)",
                )
                kernel = builder.add_func(from_source(text, {"T": tirx, "tirx": tvm.tirx}), f"kernel_{number}")
                call = relax.op.call_tir(kernel, [tensors[each] for each in chosen], relax.TensorType((size,), dtype))
                total = np.fmod(sum(values[each].astype("int32") for each in chosen), 11)
                tensors.append(builder.emit(call))
                values.append((total + 12 if dtype == "uint8" else total).astype(dtype))
                dtypes.append(dtype)
            result = builder.emit_output(tensors[-1])
        builder.emit_func_output(result)
    with target:
        lowered = run_phases(builder.get(), lower_phases(target), Options())
    machine = Machine(relax.build(lowered, target, relax_pipeline=None), device=tvm.opencl(0))
    given = machine.tensor(start)
    found = [int(np.abs(machine["main"](given).numpy() - values[-1]).max()) for _ in range(4)]
    return found, live()["kernel"]


@pytest.mark.device
@pytest.mark.parametrize("seed", range(6))
def test_tensors_of_all_types_that_share_an_argument(seed):
    found, kernels = run_with_pocl(drawn_chain, seed, env=ways("command-buffer", 1)).value
    assert found == [0, 0, 0, 0]
    assert kernels > 15  # each launch of a recording has one of its own


def counts(target: str):
    """What one inference calls, when all is noted; launches, memory objects alive."""
    compiled = compiled_for(target)
    machine = compiled.machine()
    given = machine.tensors(inputs(1))
    for _ in range(4):
        machine["main"](*given)
    fake().forget()
    machine["main"](*given)
    return fake().report()["calls"], [fake().live("buffer"), fake().live("image")]


@pytest.mark.parametrize(("shared", "most"), [(1, 2.5), (0, 4)])
def test_an_inference_is_one_call_for_each_launch(shared, most):
    outcome = run_with_fake(counts, "opencl", env=ways("", shared))
    (calls, (buffers, images)) = outcome.value
    launches = calls.pop("clEnqueueNDRangeKernel")
    objects = calls.pop("memory objects of launches")
    assert launches >= 5 and launches <= objects <= most * launches
    assert calls == {}, "nothing else is called"
    # The arena, the weights, the input, results that come back.
    assert (buffers <= 5 and images == 0) and not outcome.report["refusals"]
    assert (objects < 2.5 * launches) is bool(shared)


def kernel_objects(target: str):
    """How many there are after four inferences, more than before: without a recording and with one."""
    counts, kept = [live()["kernel"]], []
    for graph in (False, True):
        kept.append(compiled_for(target, graph).machine())
        given = kept[-1].tensors(inputs(1))
        for _ in range(4):
            kept[-1]["main"](*given)
        counts.append(live()["kernel"])
    return [after - before for before, after in pairwise(counts)]


@pytest.mark.parametrize("target", ["opencl", "opencl-texture"])
def test_launches_are_recorded(target):
    without, recorded = run_with_fake(kernel_objects, target).value
    assert recorded >= without + 4  # each launch in between has an object of its own


def misnamed():
    return problem_of(lambda: differences("opencl", True))


def test_a_way_that_there_is_not_is_refused():
    said = sentence(run_with_fake(misnamed, env=ways("quickly", 1)).value)
    assert "SMARTMEM_OPENCL_REPLAY" in said and "command-buffer, recordable-queue, launches" in said

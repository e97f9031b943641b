# SPDX-License-Identifier: Apache-2.0
"""Several inferences of one compiled model at once: the same numbers, and one copy of the weights."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from helpers import constant, module, op
from smartmem_tvm import Options, UserError, compile
from smartmem_tvm.deploy import inference_session
from smartmem_tvm.deploy.export import load, save
from smartmem_tvm.deploy.weights import Machine
from smartmem_tvm.target import device_of, parse_target

THREADS, EACH = 4, 25
MANIFEST = {"inputs": [{"name": "x", "shape": [4, 96], "dtype": "float32"}], "outputs": ["y"]}


def network(x):
    """Several tensors between kernels, which inferences must not share."""
    for _ in range(3):
        x = op.nn.softmax(op.add(op.matmul(x, constant(96, 96)), x))
    return op.permute_dims(x)


@pytest.fixture(scope="module")
def mod():
    return module(network, (4, 96))


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(1).standard_normal((THREADS * EACH, 4, 96)).astype("float32")


def at_once(sessions, inputs) -> np.ndarray:
    """The outputs for all inputs, each session on a thread of its own, begun together."""
    start = threading.Barrier(len(sessions))

    def work(number):
        start.wait()
        return {place: sessions[number].run(inputs[place])[0] for place in range(number, len(inputs), len(sessions))}

    with ThreadPoolExecutor(len(sessions)) as pool:
        found = {place: y for part in pool.map(work, range(len(sessions))) for place, y in part.items()}
    return np.stack([found[place] for place in range(len(inputs))])


def test_threads_get_what_one_thread_gets(mod, inputs):
    compiled = compile(mod)
    expected = np.stack([compiled.run(x)[0] for x in inputs])
    assert np.array_equal(at_once([compiled.session() for _ in range(THREADS)], inputs), expected)
    assert np.array_equal(at_once([compiled] * THREADS, inputs), expected), "one session serves all, one by one"


def test_threads_get_it_from_a_folder_too(mod, inputs, tmp_path):
    compiled = compile(mod)
    expected = np.stack([compiled.run(x)[0] for x in inputs])
    save(compiled, tmp_path / "out", MANIFEST, {})
    loaded = load(tmp_path / "out")
    assert np.array_equal(at_once([loaded.session() for _ in range(THREADS)], inputs), expected)


@pytest.mark.device
@pytest.mark.parametrize("target", ["opencl", "opencl-texture"])
def test_threads_get_it_on_opencl_too(target, mod, inputs):
    device_of(parse_target(target))  # raises with a sentence that says what to install
    compiled, inputs = compile(mod, target), inputs[: 10 * THREADS]
    expected = np.stack([compiled.run(x)[0] for x in inputs])
    assert np.array_equal(at_once([compiled.session() for _ in range(THREADS)], inputs), expected)


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_weights_are_there_once():
    """Those of 16 MB, beside tensors of some kilobytes."""
    compiled = compile(module(lambda x: op.matmul(op.matmul(x, constant(1024, 2048)), constant(2048, 1024)), (1, 1024)))
    x = np.ones((1, 1024), "float32")
    weights = sum(weight.nbytes for weight in compiled.weights)
    assert 16 * 2**20 <= weights < 17 * 2**20  # panels are filled up to whole ones
    compiled.run(x)
    before = resident()
    sessions = [compiled.session() for _ in range(THREADS)]
    assert np.array_equal(at_once(sessions, np.stack([x] * THREADS))[0], compiled.run(x)[0])
    assert resident() - before < weights / 2
    assert {each.vm._weights for each in sessions} == {compiled.vm._weights}


def test_sessions_are_of_functions_too(mod):
    both = mod.clone()
    both["other"] = mod["main"].with_attr("global_symbol", "other")
    one = compile(both).session()
    x = np.ones((4, 96), "float32")
    assert np.array_equal(one.run(x, function="other")[0], one.run(x)[0])
    with pytest.raises(UserError, match="no function 'third'"):
        one.run(x, function="third")


def test_a_memory_budget_is_for_one_inference_at_a_time():
    mod = module(lambda x: op.matmul(x, constant(96, 96)), (4, 96))
    compiled = compile(mod, options=Options(memory_budget=100_000))
    with pytest.raises(UserError, match=r"one arena.* compile it without a budget"):
        compiled.session()
    with pytest.raises(UserError, match="one arena"):
        compiled.streams(2)


def test_where_machines_take_turns_sessions_wait_for_each_other(mod, monkeypatch):
    """As on CUDA, whose graphs are recorded while no other thread may call it."""
    compiled = compile(mod)
    assert compiled.session().turn is not compiled.session().turn
    monkeypatch.setattr(Machine, "takes_turns", True)
    assert compiled.session().turn is compiled.session().turn


def cores_after(own: set | None) -> set:
    """Where a thread may run that TVM has tied to one core, if it chose its own cores before."""
    found = []

    def work():
        if own:
            os.sched_setaffinity(0, own)
        with inference_session.kept_cores():
            os.sched_setaffinity(0, [min(inference_session.process_cpus())])  # as TVM does unless TVM_BIND_THREADS is 0
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def test_threads_are_not_tied_to_the_core_that_tvm_ties_them_to():
    everywhere, first = set(inference_session.process_cpus()), os.sched_getaffinity(os.getpid())
    assert cores_after(None) == everywhere >= first
    own = {max(everywhere)}
    assert cores_after(own) == (own if own != first else everywhere)

# SPDX-License-Identifier: Apache-2.0
"""Models under a memory budget: the same numbers, within the memory, and errors that can be lived with."""

import os
import shutil
import threading
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import tvm

from helpers import constant, module, op
from smartmem_tvm import Options, UserError, compile
from smartmem_tvm.deploy.export import load, save
from smartmem_tvm.deploy.streamed import streamed_memory
from smartmem_tvm.memory_size import memory_bytes
from smartmem_tvm.planner.preload import check_preload, plan_preload

SHAPE = (4, 256)
WIDTH = 256
LAYERS = 6


def layers(x):
    for layer in range(LAYERS):  # numbers of its own each, as equal weights are stored once
        x = op.nn.gelu(op.add(op.matmul(x, constant(WIDTH, WIDTH, seed=layer)), constant(WIDTH)))
    return x


@pytest.fixture(scope="module")
def mod():
    return module(layers, SHAPE)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal(SHAPE).astype("float32")


@pytest.fixture(scope="module")
def expected(mod, x):
    return compile(mod).run(x)[0]


@pytest.fixture(scope="module")
def compiled(mod):
    return compile(mod, options=Options(memory_budget=600_000))


@pytest.fixture
def folder(compiled, tmp_path):
    facts = {"inputs": [{"name": "x", "shape": list(SHAPE), "dtype": "float32"}], "outputs": ["y"]}
    save(compiled, tmp_path / "out", facts, {})
    return tmp_path / "out"


def test_same_numbers_within_every_budget(compiled, x, expected):
    vm = compiled.machine()
    least, everything = vm.least_memory_budget, vm.set_memory_budget(None).bytes
    assert least < 300_000 < LAYERS * WIDTH * WIDTH * 4 < everything
    for budget in (None, least, 300_000, "0.5MB", 600_000, 1_000_000, everything, least):
        plan = vm.set_memory_budget(budget)
        assert plan.bytes <= (everything if budget is None else memory_bytes(budget))
        check_preload(vm.problem, plan, plan.bytes)
        for _ in range(3):
            np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), expected)


def test_what_is_pinned_is_read_once(compiled, x):
    vm = compiled.machine()
    vm.set_memory_budget(None)
    vm["main"](tvm.runtime.tensor(x))
    before = vm.loaded_bytes()
    vm["main"](tvm.runtime.tensor(x))
    assert before >= sum(weight.nbytes for weight in compiled.weights) and vm.loaded_bytes() == before


def test_a_budget_that_is_too_small_names_the_layer_and_the_least(mod, compiled):
    with pytest.raises(
        UserError, match=r"A memory budget of 0.001 MB is too small .*matmul.* the least .* is 0\.\d+ MB"
    ):
        compile(mod, options=Options(memory_budget=1000))
    vm = compiled.machine()
    plan = vm.memory_plan
    with pytest.raises(UserError, match="too small"):
        vm.set_memory_budget(vm.least_memory_budget - 64)
    assert vm.memory_plan == plan


@pytest.mark.parametrize("build", [lambda x: x, lambda x: op.nn.relu(x), lambda x: constant(3, 4)])
def test_models_without_weights_or_without_kernels(build, x):
    plain = module(build, SHAPE)
    compiled = compile(plain, options=Options(memory_budget=10**6))
    np.testing.assert_array_equal(compiled.run(x)[0], compile(plain).run(x)[0])


def test_options(mod):
    assert Options(memory_budget="0.6MB").memory_budget == 600_000
    for wrong in (0, -5, "much", 1.5e-9):
        with pytest.raises(UserError, match="is no memory size"):
            Options(memory_budget=wrong)
    with pytest.raises(UserError, match="leave the memory budget out, or the check"):
        Options(memory_budget=10**6, check="outputs")


def test_a_gpu_has_no_budget(mod):
    with pytest.raises(UserError, match="memory budget is for weights that a CPU's kernels read"):
        compile(mod, "cuda", Options(memory_budget=10**9))


def test_a_folder_runs_within_its_budget_and_others(folder, x, expected):
    loaded = load(folder)
    assert loaded.vm.memory_plan.bytes <= 600_000
    np.testing.assert_array_equal(loaded.run(x)[0], expected)
    start = time.process_time()  # not the clock, as other work may take the cores
    loaded.set_memory_budget("400kB")
    assert time.process_time() - start < 1
    np.testing.assert_array_equal(loaded.run(x)[0], expected)
    smaller = load(folder, memory_budget="300kB")
    assert smaller.vm.memory_plan.bytes <= 300_000
    np.testing.assert_array_equal(smaller.run(x)[0], expected)


def test_a_model_without_a_budget_gets_none_later(mod, tmp_path):
    save(compile(mod), tmp_path / "out", {"inputs": [], "outputs": []}, {})
    with pytest.raises(UserError, match="compile it with a memory budget first"):
        load(tmp_path / "out").set_memory_budget("1MB")


FAULTS = {
    "deleted": lambda file: file.unlink(),
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "changed": lambda file: file.write_bytes(bytes(file.stat().st_size)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_is_not_what_it_was_is_an_error_until_it_is_again(folder, x, expected, fault):
    loaded, file = load(folder), folder / "weights.bin"
    np.testing.assert_array_equal(loaded.run(x)[0], expected)
    shutil.copy(file, folder.parent / "copy")
    FAULTS[fault](file)
    for _ in range(2):
        with pytest.raises(UserError, match=r"weights\.bin"):
            loaded.run(x)
    shutil.copy(folder.parent / "copy", file)
    np.testing.assert_array_equal(loaded.run(x)[0], expected)


def test_an_input_of_another_shape_is_refused_and_the_next_is_right(folder, x, expected):
    loaded = load(folder)
    with pytest.raises(Exception, match="shape"):
        loaded.run(x[:, :8])
    np.testing.assert_array_equal(loaded.run(x)[0], expected)


def test_machines_side_by_side(compiled, x, expected):
    found = []

    def work():
        vm = compiled.machine()
        found.extend(np.array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), expected) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [True] * 60


def test_timeline(compiled, x):
    vm = compiled.machine()
    vm["main"](tvm.runtime.tensor(x))
    found = vm.timeline()
    assert len(found["done"]) == LAYERS and found["done"] == sorted(found["done"])
    assert {each["name"] for each in found["loads"]} <= {
        step["kernel"] for step in compiled.weight_streams["main"]["steps"]
    }


def test_nothing_is_left_open(compiled, x):
    def held():
        return {path for name in ("fd", "task") for path in Path("/proc/self", name).iterdir()}

    compiled.machine()["main"](tvm.runtime.tensor(x))
    before = held()
    for _ in range(30):
        vm = compiled.machine()
        vm["main"](tvm.runtime.tensor(x))
        vm.close()
    # Threads of earlier tests may end meanwhile: only what is new counts.
    assert held() <= before


@pytest.mark.parametrize(
    ("text", "count"), [("100MB", 10**8), ("1.5 GB", 1_500_000_000), ("64MiB", 2**26), (12345, 12345)]
)
def test_sizes(text, count):
    assert memory_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "0", "1XB", "1e3", "nan", "0.1B"])
def test_what_is_no_size(text):
    with pytest.raises(UserError, match="is no memory size"):
        memory_bytes(text)


def test_a_plan_that_is_shown_and_written_is_made_once(monkeypatch):
    calls = []
    once = lru_cache(maxsize=1)(lambda *args, **options: calls.append(args) or plan_preload(*args, **options))
    monkeypatch.setattr("smartmem_tvm.deploy.streamed._plan_once", once)
    steps = [{"kernel": "matmul", "flops": 1000}]
    description = {"budget": 4096, "steps": steps, "tensors": [], "uses": [{"weight": 0, "bytes": 64, "step": 0}]}
    assert streamed_memory(description) == streamed_memory(description)
    assert len(calls) == 1
    streamed_memory({**description, "budget": 2048})
    assert len(calls) == 2

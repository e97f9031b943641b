# SPDX-License-Identifier: Apache-2.0
"""Parallel loops on our threads: every number is computed once, whoever is asleep, and errors come out."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te

from smartmem_tvm import _tvm  # noqa: F401  (opens the library)

THREADS = 4
_COUNTS = "smartmem.threads.counts"


def counts() -> tuple[int, int]:
    """Loops so far, and those by one thread."""
    return tuple(map(int, tvm.get_global_func(_COUNTS)()))[:2]


def workers() -> int:
    """That there are now."""
    return int(tvm.get_global_func(_COUNTS)()[2])


def settled(count: int) -> bool:
    """Whether there are so many soon: a thread is joined before its variables are gone."""
    deadline = time.monotonic() + 20
    while workers() != count and time.monotonic() < deadline:
        time.sleep(0.01)
    return workers() == count


@pytest.fixture(scope="module")
def squares():
    """``(x (n,), y (n,))``: a parallel loop of n steps."""
    n = tvm.tirx.Var("n", "int64")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: x[i] * x[i] + 1, name="y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("y"))[0])
    return tvm.compile(schedule.mod, "llvm")["main"]


def right(squares, size: int) -> bool:
    x = np.random.default_rng(size).standard_normal(size).astype("float32")
    y = tvm.runtime.tensor(np.full(size, np.nan, "float32"))
    squares(tvm.runtime.tensor(x), y)
    return np.allclose(y.numpy(), x * x + 1)


def with_threads(work, count: int = THREADS, cores: int = THREADS):
    """Do something in threads that have so many threads each for their loops; what went wrong."""
    errors = []

    def run(number):
        try:
            tvm.get_global_func("runtime.config_threadpool")(-3, cores, [str(each % 2) for each in range(cores)])
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return errors


def test_loops_of_any_size_from_several_threads(squares):
    before = counts()

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(400):
            size = int(2 ** random.uniform(0, 18))
            assert right(squares, size), size

    assert not with_threads(work)
    loops, alone = (now - then for now, then in zip(counts(), before, strict=True))
    assert loops == 400 * THREADS and 0 < alone < loops


def test_many_small_loops_one_after_the_other(squares):
    """Late workers meet a loop that is over, and the next one."""
    x = tvm.runtime.tensor(np.arange(40_000, dtype="float32"))

    def work(_):
        y = tvm.runtime.empty((40_000,), "float32")
        for _ in range(3000):
            squares(x, y)
        assert np.array_equal(y.numpy(), np.arange(40_000, dtype="float32") ** 2 + 1)

    assert not with_threads(work, count=2)


def test_short_loops_are_done_by_one(squares):
    for _ in range(20):
        assert right(squares, 10)
    before = counts()
    for _ in range(100):
        assert right(squares, 10)
    loops, alone = (now - then for now, then in zip(counts(), before, strict=True))
    assert loops == 100 and alone >= 95


def test_long_loops_are_shared_again(squares):
    """The same loop with another extent."""

    def work(_):
        for _ in range(20):
            assert right(squares, 10)
        for _ in range(30):
            assert right(squares, 2**20)
        before = counts()
        for _ in range(20):
            assert right(squares, 2**20)
        assert counts()[1] - before[1] == 0

    assert not with_threads(work, count=1)


def failing(name: str, extent: int):
    """A parallel loop of calls of a function of that name."""
    x = te.placeholder((extent,), "int32", name="x")
    y = te.extern(
        (extent,),
        [x],
        lambda ins, outs: _calls(name, extent, outs[0]),
        name="y",
        dtype="int32",
    )
    return tvm.compile(te.create_prim_func([x, y]), "llvm")["main"]


def _calls(name: str, extent: int, out):
    i = tvm.tirx.Var("i", "int32")
    call = tvm.tirx.Evaluate(tvm.tirx.call_packed(name, i, out.vload([i])))
    return tvm.tirx.For(i, 0, extent, tvm.tirx.ForKind.PARALLEL, call)


def test_an_error_in_a_task_is_an_error_of_the_call():
    seen = []

    def fails(number, _):
        seen.append(number)
        if number % 2:
            raise ValueError(f"number {number} is odd")

    tvm_ffi.register_global_func("tests.threads.fails", fails, override=True)
    run = failing("tests.threads.fails", 8)

    def work(_):
        arrays = [tvm.runtime.empty((8,), "int32") for _ in range(2)]
        for _ in range(3):
            with pytest.raises((RuntimeError, ValueError), match="is odd"):
                run(*arrays)

    assert not with_threads(work, count=1)
    assert seen


def test_other_processes_do_not_hold_up_small_loops(squares):
    """TVM's pool waits for a slice of time in each: seconds for these."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        x, y = (tvm.runtime.tensor(np.zeros(4096, "float32")) for _ in range(2))
        squares(x, y)
        times = []
        for _ in range(300):
            start = time.perf_counter()
            squares(x, y)
            times.append(time.perf_counter() - start)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    assert sorted(times)[len(times) // 2] < 1e-3


def test_a_fork_has_threads_of_its_own(squares):
    assert right(squares, 2**18)
    child = os.fork()
    if not child:
        os._exit(0 if all(right(squares, 2**18 + number) for number in range(5)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert right(squares, 2**18)


def test_threads_end_with_the_thread_that_they_work_for(squares):
    assert right(squares, 2**18)
    before = int(tvm.runtime.num_threads()) - 1
    assert settled(before)
    for _ in range(5):
        assert not with_threads(lambda _: [right(squares, 2**18) for _ in range(3)])
        assert settled(before)
    seen = []
    assert not with_threads(lambda _: (right(squares, 2**18), seen.append(workers())), count=1)
    assert seen == [before + THREADS - 1]


_CHILD = """
import tvm, numpy as np, smartmem_tvm as sm
from tvm import relax
builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((512, 512), "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        y = builder.emit_output(relax.op.nn.softmax(x))
    builder.emit_func_output(y)
array = np.random.rand(512, 512).astype("float32")
found = sm.compile(builder.get()).run(array)[0]
assert np.allclose(found.sum(1), 1, atol=1e-4)
counts = tvm.get_global_func("smartmem.threads.counts", allow_missing=True)
print([int(each) for each in counts()] if counts else None)
"""


@pytest.mark.parametrize(
    ("settings", "shared"), [({}, True), ({"TVM_NUM_THREADS": "1"}, False), ({"SMARTMEM_THREADS": "tvm"}, None)]
)
def test_who_runs_the_loops_of_a_compiled_model(settings, shared):
    env = {**os.environ, "TVM_NUM_THREADS": "2", **settings}
    done = subprocess.run([sys.executable, "-c", _CHILD], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = eval(done.stdout)
    assert (found is None) == (shared is None)
    assert shared is None or (found[0] > found[1]) == shared

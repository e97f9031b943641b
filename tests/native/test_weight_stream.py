# SPDX-License-Identifier: Apache-2.0
"""The library that streams weights: what it loads and when, what goes wrong with files, and what it leaves behind."""

import gc
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tvm_ffi

from opencl_package import declared
from smartmem_tvm.deploy import stream_library as library
from smartmem_tvm.errors import UserError

ROOT = Path(__file__).resolve().parent.parent.parent
api = library.functions()
BYTES = 1 << 20


class Load(NamedTuple):
    file_offset: int
    bytes: int
    arena_offset: int
    after: int
    step: int
    pinned: int = 0


class File:
    """A file of random weights, and plans for it."""

    def __init__(self, path: Path, size: int = BYTES):
        self.path = path
        self.data = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        self.data.tofile(path)

    def open(self):
        return api.open(str(self.path), self.data.nbytes)

    def planned(self, loads, arena=BYTES, patience_ms=10_000, offsets=(0,)):
        stream = self.open()
        plan(stream, loads, arena, patience_ms, offsets)
        return stream

    def holds(self, load: Load) -> np.ndarray:
        return self.data[load.file_offset : load.file_offset + load.bytes]


def plan(stream, loads, arena=BYTES, patience_ms=10_000, offsets=(0,)):
    numbers = [number for load in loads for number in load]
    api.plan(stream, arena, list(offsets), numbers, [f"layer{index}" for index in range(len(loads))], patience_ms)


def weight(stream, index, load):
    return np.from_dlpack(api.weight(stream, index, [load.bytes], "uint8"))


def infer(file, stream, loads):
    """An inference of one step for each load, that checks what it reads."""
    api.begin(stream)
    for index, load in enumerate(loads):
        assert np.array_equal(weight(stream, index, load), file.holds(load))
        api.done(stream, load.step)
    api.end(stream)


def settled(stream) -> int:
    """Bytes loaded, once the loader has gone as far as it may."""
    before = -1
    while before != (now := api.loaded_bytes(stream)):
        before = now
        time.sleep(0.05)
    return now


def eventually(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture
def file(tmp_path):
    return File(tmp_path / "weights.bin")


GOOD = Load(0, 64, 0, -1, 0)
# The second comes to the place of the first.
LOADS = [Load(5, 1000, 0, -1, 0), Load(4000, 3000, 0, 0, 1), Load(10_000, 500_000, 4096, 0, 2)]


def test_a_load_waits_for_the_step_whose_place_it_takes(file):
    stream = file.planned(LOADS)
    api.begin(stream)
    first = weight(stream, 0, LOADS[0])
    assert np.array_equal(first, file.holds(LOADS[0]))
    assert settled(stream) == LOADS[0].bytes
    assert np.array_equal(first, file.holds(LOADS[0]))
    api.done(stream, 0)
    assert np.array_equal(weight(stream, 1, LOADS[1]), file.holds(LOADS[1]))
    assert np.array_equal(first, file.holds(LOADS[1])[:1000])
    for index in (1, 2):
        assert np.array_equal(weight(stream, index, LOADS[index]), file.holds(LOADS[index]))
        api.done(stream, index)
    api.end(stream)
    infer(file, stream, LOADS)


def test_loads_larger_than_a_piece_are_whole(tmp_path):
    file = File(tmp_path / "weights.bin", 9 << 20)
    load = Load(1, (9 << 20) - 1, 64, -1, 0)
    stream = file.planned([load], arena=10 << 20)
    infer(file, stream, [load])


def test_pinned_loads_are_read_once(file):
    loads = [Load(0, 1000, 0, -1, 0, 1), Load(7000, 2000, 1024, 0, 1), Load(3000, 3000, 4096, -1, 2, 1)]
    stream = file.planned(loads)
    for _ in range(5):
        infer(file, stream, loads)
    assert settled(stream) == 1000 + 3000 + 5 * 2000
    plan(stream, loads)
    infer(file, stream, loads)
    assert settled(stream) == 2 * (1000 + 3000) + 6 * 2000


def test_the_next_inference_is_prefetched_when_one_ends(file):
    stream = file.planned(LOADS)
    infer(file, stream, LOADS)
    each = sum(load.bytes for load in LOADS)
    assert settled(stream) == each + LOADS[0].bytes
    infer(file, stream, LOADS)
    assert settled(stream) == 2 * each + LOADS[0].bytes
    begin, end, asked, got = list(api.timeline(stream))[:4]
    assert begin <= end < 0 <= asked == got


def test_the_timeline_is_that_of_the_last_inference(file):
    loads = [Load(0, 64, 0, -1, 0, 1), Load(64, 64, 64, 0, 2)]
    stream = file.planned(loads)
    assert list(api.timeline(stream)) == []
    for inference in range(2):
        api.begin(stream)
        weight(stream, 0, loads[0])
        api.done(stream, 0)
        time.sleep(0.02)
        weight(stream, 1, loads[1])
        api.done(stream, 2)
        api.end(stream)
        times = list(api.timeline(stream))
        assert len(times) == 4 * 2 + 3
        assert [math.isnan(each) for each in times] == [inference == 1] * 2 + [False] * 6 + [False, True, False]
        begin, end, asked, got = times[4:8]
        assert 0 <= times[2] <= times[3] <= times[8] <= begin <= end and asked <= got <= times[10]
        assert times[10] >= 0.02


def test_views_are_of_the_arena_and_made_once(file):
    stream = file.planned(LOADS, offsets=[0, 4096])
    one = api.tensor(stream, 1, [2, 3], "float32")
    np.from_dlpack(one)[:] = 7
    assert one.same_as(api.tensor(stream, 1, tvm_ffi.Shape([2, 3]), tvm_ffi.dtype("float32")))
    assert np.array_equal(np.from_dlpack(api.tensor(stream, 1, [6], "float32")), np.full(6, 7, "float32"))
    assert np.from_dlpack(one).ctypes.data - np.from_dlpack(api.tensor(stream, 0, [1], "int8")).ctypes.data == 4096
    assert np.from_dlpack(one).ctypes.data % 64 == 0
    api.begin(stream)
    assert api.weight(stream, 0, [250], "float32").same_as(api.weight(stream, 0, [250], "float32"))


def test_a_new_plan_leaves_views_that_somebody_holds(file):
    stream = file.planned([GOOD])
    api.begin(stream)
    held = weight(stream, 0, GOOD)
    api.end(stream)
    plan(stream, [GOOD._replace(file_offset=1000)], arena=64)
    infer(file, stream, [GOOD._replace(file_offset=1000)])
    api.close(stream)
    assert np.array_equal(held, file.holds(GOOD))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_new_plan_and_closing_give_memory_back(tmp_path):
    size = 32 << 20
    path = tmp_path / "weights.bin"
    with path.open("wb") as out:
        out.truncate(size)
    stream = api.open(str(path), size)
    before = resident()
    for _ in range(2):
        plan(stream, [Load(0, size, 0, -1, 0)], arena=size)
        eventually(lambda: resident() > before + 0.9 * size)
        plan(stream, [], arena=64)
        assert resident() < before + 0.2 * size
    plan(stream, [Load(0, size, 0, -1, 0)], arena=size)
    eventually(lambda: resident() > before + 0.9 * size)
    api.close(stream)
    assert resident() < before + 0.2 * size


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be opened (No such file or directory)"),
        (lambda path: path.write_bytes(b"123"), "it has 3 bytes in place of 1048576"),
        (lambda path: path.mkdir(), "it is no regular file"),
        (os.mkfifo, "it is no regular file"),
    ],
    ids=["missing", "size", "folder", "pipe"],
)
def test_what_cannot_be_the_weights_is_not_opened(tmp_path, make, message):
    path = tmp_path / "weights.bin"
    make(path)
    with pytest.raises(RuntimeError, match=re.escape(f"the weights {path} ") + ".*" + re.escape(message)):
        api.open(str(path), BYTES)


def cut(path):
    os.truncate(path, 100)


def replace(path):
    data = path.read_bytes()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(data)


def write(path):
    with path.open("r+b") as out:
        out.write(b"other")


def append(path):
    with path.open("ab") as out:
        out.write(b"more")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, "deleted while they were open"),
        (cut, "truncated from 1048576 to 100 bytes while they were open"),
        (replace, "changed while they were open (another file has taken their place)"),
        (write, "changed while they were open"),
        (append, "changed while they were open"),
    ],
)
def test_each_inference_sees_what_has_happened_to_the_file(file, change, message):
    stream = file.planned(LOADS)
    infer(file, stream, LOADS)
    change(file.path)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=re.escape(f"the weights {file.path} were {message}")):
            api.begin(stream)
    with pytest.raises(RuntimeError, match=r"in no inference: call smartmem\.stream\.begin"):
        api.end(stream)
    file.data.tofile(file.path)
    again = file.planned(LOADS)
    infer(file, again, LOADS)


def test_a_file_that_comes_back_is_used_again(file):
    stream = file.planned(LOADS)
    infer(file, stream, LOADS)
    away = file.path.with_suffix(".away")
    file.path.rename(away)
    with pytest.raises(RuntimeError, match="deleted"):
        api.begin(stream)
    away.rename(file.path)
    infer(file, stream, LOADS)


def test_a_file_cut_in_the_middle_of_an_inference_names_the_layer(file):
    before = file.path.stat()
    stream = file.planned(LOADS)
    api.begin(stream)
    weight(stream, 0, LOADS[0])
    cut(file.path)
    api.done(stream, 0)
    for index in (1, 2):  # those behind it fail for the same reason
        with pytest.raises(RuntimeError, match=rf"layer 'layer1' .*{file.path} at byte 4000 \(the file ends there"):
            weight(stream, index, LOADS[index])
    with pytest.raises(RuntimeError, match="truncated from 1048576 to 100 bytes"):
        api.begin(stream)
    file.data.tofile(file.path)
    os.utime(file.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    infer(file, stream, LOADS)


def descriptor(path: Path) -> int:
    found = [int(each.name) for each in Path("/proc/self/fd").iterdir() if each.is_symlink() and each.exists()]
    (one,) = [number for number in found if Path(f"/proc/self/fd/{number}").readlink() == path]
    return one


def test_a_file_that_cannot_be_read_names_the_layer_and_the_reason(file):
    stream = file.planned(LOADS)
    api.begin(stream)
    weight(stream, 0, LOADS[0])
    number = descriptor(file.path)
    good, unreadable = os.dup(number), os.open(file.path, os.O_WRONLY)
    os.dup2(unreadable, number)
    api.done(stream, 0)
    with pytest.raises(RuntimeError, match=r"layer 'layer1' .* at byte 4000 \(Bad file descriptor\)"):
        weight(stream, 1, LOADS[1])
    os.dup2(good, number)
    os.close(good)
    os.close(unreadable)
    infer(file, stream, LOADS)


@pytest.mark.parametrize(
    ("loads", "message"),
    [
        ([GOOD._replace(file_offset=-1)], r"load 0 \(layer 'layer0'\) is not within the 1048576 bytes of the file"),
        ([GOOD._replace(file_offset=BYTES - 63)], "is not within the 1048576 bytes of the file"),
        ([GOOD._replace(bytes=-1)], "is not within the 1048576 bytes of the file"),
        ([GOOD._replace(file_offset=(1 << 63) - 1)], "is not within the 1048576 bytes of the file"),
        ([GOOD._replace(arena_offset=-64)], "is not within the 4096 bytes of the arena"),
        ([GOOD._replace(arena_offset=4096)], "is not within the 4096 bytes of the arena"),
        ([GOOD._replace(arena_offset=8)], "begins at no multiple of 64"),
        ([GOOD._replace(after=0)], "begins after a step that is not before its own"),
        ([GOOD._replace(after=-2)], "begins after a step that is not before its own"),
        ([GOOD._replace(step=-1)], "is of step -1"),
        ([GOOD._replace(pinned=2)], "is neither pinned, 1, nor not, 0"),
        ([GOOD._replace(pinned=1, after=1, step=2)], "is pinned and waits for a step"),
        ([GOOD, Load(0, 64, 64, 3, 4), Load(0, 64, 128, -1, 3)], r"load 2 .*comes behind load 1 .*waits for a step"),
    ],
)
def test_wrong_plans_are_refused(file, loads, message):
    stream = file.planned(LOADS)
    with pytest.raises(
        ValueError, match=f"a plan for streaming weights is wrong, as .*{message}.*: make the plan anew"
    ):
        plan(stream, loads, arena=4096)
    infer(file, stream, LOADS)  # the old one stays


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, [], [], [], 1), "the arena has less than no bytes"),
        ((64, [], [], [], 0), "the patience is not from 1 to 2147483647 ms"),
        ((64, [8], [], [], 1), "tensor 0 is not in the arena at a multiple of 64 bytes"),
        ((64, [0, 128], [], [], 1), "tensor 1 is not in the arena at a multiple of 64 bytes"),
        ((64, [], [*GOOD][:5], ["a"], 1), "has six numbers and one name, and there are 5 and 1"),
        ((64, [], [*GOOD], [], 1), "has six numbers and one name, and there are 6 and 0"),
    ],
)
def test_wrong_arguments_of_plans_are_refused(file, arguments, message):
    stream = file.open()
    with pytest.raises(ValueError, match=message):
        api.plan(stream, *arguments)
    with pytest.raises(RuntimeError, match="has no plan"):
        api.begin(stream)


def test_an_arena_beyond_all_memory_is_one_sentence(file):
    stream = file.planned(LOADS)
    with pytest.raises(RuntimeError, match="no memory for an arena of 4611686018427387904 bytes"):
        plan(stream, LOADS, arena=1 << 62)
    with pytest.raises(RuntimeError, match="has no plan"):
        api.begin(stream)
    plan(stream, LOADS)
    infer(file, stream, LOADS)


def test_calls_out_of_order_are_refused(file):
    stream = file.planned(LOADS)
    for call in (lambda: api.weight(stream, 0, [1], "int8"), lambda: api.done(stream, 0), lambda: api.end(stream)):
        with pytest.raises(RuntimeError, match="in no inference"):
            call()
    api.begin(stream)
    with pytest.raises(RuntimeError, match="an inference is running"):
        plan(stream, LOADS)
    api.done(stream, 2)
    for step in (-1, 1, 2, 1 << 40):
        with pytest.raises(ValueError, match=f"step {step} is done after step 2"):
            api.done(stream, step)
    for function, index in ((api.weight, 3), (api.weight, -1), (api.tensor, 1), (api.tensor, -1)):
        with pytest.raises(ValueError, match=f"there is no (load|tensor) {index} among the"):
            function(stream, index, [1], "int8")
    for shape in ([1001], [-1, -1], [1 << 62, 1 << 62]):
        with pytest.raises(ValueError, match=r"does not fit into the 1000 bytes at byte 0 of the arena"):
            api.weight(stream, 0, shape, "int8")
    with pytest.raises(ValueError, match="does not fit into the 1048576 bytes"):
        api.tensor(stream, 0, [BYTES // 4 + 1], "float32")


def test_nothing_works_after_closing(file):
    stream = file.planned(LOADS)
    api.begin(stream)
    api.close(stream)
    api.close(stream)
    calls = [(api.begin,), (api.end,), (api.timeline,), (api.loaded_bytes,), (api.done, 0), (plan, LOADS)]
    calls += [(function, 0, [1], "int8") for function in (api.weight, api.tensor)]
    for function, *arguments in calls:
        with pytest.raises(RuntimeError, match="was closed: open the file anew"):
            function(stream, *arguments)


def test_an_inference_can_be_given_up_in_the_middle(file):
    stream = file.planned(LOADS)
    for steps in (0, 1, 2, 0):
        api.begin(stream)
        for index in range(steps):
            weight(stream, index, LOADS[index])
            api.done(stream, index)
    infer(file, stream, LOADS)


def test_a_step_that_is_never_done_is_no_wait_for_ever(file):
    stream = file.planned(LOADS, patience_ms=200)
    api.begin(stream)
    begun = time.monotonic()
    message = r"layer 'layer2' has waited 200 ms .*'layer1' are loaded after step 0, .*the last is -1"
    with pytest.raises(RuntimeError, match=message):
        weight(stream, 2, LOADS[2])
    assert 0.2 <= time.monotonic() - begun < 5
    infer(file, stream, LOADS)


@pytest.mark.parametrize(
    ("interrupt", "message"), [(api.close, "was closed while"), (api.begin, "was begun anew or ended while")]
)
def test_who_waits_is_told_when_nothing_comes_any_more(file, interrupt, message):
    stream = file.planned(LOADS, patience_ms=60_000)
    api.begin(stream)
    errors = []

    def wait():
        try:
            weight(stream, 1, LOADS[1])
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    interrupt(stream)
    for thread in threads:
        thread.join(10)
    assert len(errors) == 3 and all(f"{message} a layer waited for its weights" in error for error in errors)


def random_plan(rng) -> tuple[int, int, list[Load]]:
    """Some slots that loads take in turn, each after the last step that read the one before; some with their own."""
    sizes = [64 * int(rng.integers(1, 800)) for _ in range(rng.integers(1, 6))]
    starts = np.cumsum([0, *sizes]).tolist()
    free, arena, loads = [-1] * len(sizes), starts[-1], []
    for step in range(rng.integers(1, 25)):
        if rng.random() < 0.2:
            size = int(rng.integers(1, 20_000))
            loads.append(Load(int(rng.integers(0, BYTES - size)), size, arena, -1, step, 1))
            arena += -(-size // 64) * 64
        else:
            slot = int(rng.integers(len(sizes)))
            size = int(rng.integers(0, sizes[slot] + 1))
            loads.append(Load(int(rng.integers(0, BYTES - size)), size, starts[slot], free[slot], step))
            free[slot] = step
    return arena, loads


def test_random_plans_load_what_they_should(file):
    rng = np.random.default_rng(1)
    stream = file.open()
    for _ in range(20):
        arena, loads = random_plan(rng)
        plan(stream, loads, arena)
        for _ in range(15):
            stop = rng.integers(len(loads)) if rng.random() < 0.2 else len(loads)
            api.begin(stream)
            for index, load in enumerate(loads[:stop]):
                seen = weight(stream, index, load)
                assert np.array_equal(seen, file.holds(load))
                if rng.random() < 0.1:
                    time.sleep(0.0005)
                # Nothing may come to its place while the step computes.
                assert np.array_equal(seen, file.holds(load))
                api.done(stream, load.step)
            if stop == len(loads):
                api.end(stream)
        if stop != len(loads):
            infer(file, stream, loads)


def held() -> set[Path]:
    """Open files and threads. What earlier tests left may end meanwhile: compare sets, as only what is new counts."""
    return {path for name in ("fd", "task") for path in Path("/proc/self", name).iterdir()}


def test_nothing_is_left_of_a_hundred_streams(file):
    api.close(file.planned(LOADS))
    gc.collect()
    before = held()
    for index in range(100):
        stream = file.planned(LOADS)
        api.begin(stream)
        weight(stream, 0, LOADS[0])
        if index % 2:
            api.close(stream)
        del stream
    gc.collect()
    assert held() <= before


def test_failing_to_open_leaves_nothing(file):
    before = held()
    for _ in range(20):
        with pytest.raises(RuntimeError):
            api.open(str(file.path), 1)
    assert held() <= before


def test_a_forked_child_is_told_and_does_not_hang(file):
    stream = file.planned(LOADS)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it if it hangs
        code = 1
        try:
            api.begin(stream)
        except RuntimeError as error:
            code = 0 if "was opened before a fork" in str(error) else 2
        api.close(stream)
        del stream
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    infer(file, stream, LOADS)


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/types.h>
#include <unistd.h>
char fault; /* n: none, e: error, i: interrupted, s: short, w: waits */
size_t largest;
static int calls;
ssize_t pread64(int file, void* to, size_t bytes, off_t offset) {
  static ssize_t (*real)(int, void*, size_t, off_t);
  if (!real) real = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
  if (bytes > largest) largest = bytes;
  if (fault == 'e') return errno = EIO, -1;
  if (fault == 'i' && calls++ % 2) return errno = EINTR, -1;
  if (fault == 's' && bytes > 7) bytes /= 3;
  while (fault == 'w') usleep(1000);
  return real(file, to, bytes, offset);
}
ssize_t pread(int file, void* to, size_t bytes, off_t offset) { return pread64(file, to, bytes, offset); }
"""

# Nothing of TVM but tvm_ffi, which is enough for the library.
CHILD = """
import ctypes, sys, types
import tvm_ffi
library, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
opened = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
call = lambda name, *args: tvm_ffi.get_global_func("smartmem.stream." + name)(*args)
fault = ctypes.c_char.in_dll(ctypes.CDLL(None), "fault")
data = open(path, "rb").read()
stream = call("open", path, size)
call("plan", stream, size, [], [0, size, 0, 0, 1, 0], ["conv"], 300)
def infer(kind):
    fault.value = kind
    call("begin", stream)
    call("done", stream, 0)
    try:
        tensor = call("weight", stream, 0, [size], "uint8")
    except RuntimeError as error:
        return str(error)
    finally:
        fault.value = b"n"
    right = ctypes.string_at(tensor.data_ptr(), size) == data
    call("done", stream, 1)
    call("end", stream)
    return right
for kind in b"nisewn":
    print(infer(bytes([kind])))
print(ctypes.c_size_t.in_dll(ctypes.CDLL(None), "largest").value)
"""


def test_reads_that_fail_wait_or_are_interrupted(tmp_path):
    file = File(tmp_path / "weights.bin", 9 << 20)
    (tmp_path / "shim.c").write_text(SHIM)
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "shim.so", "shim.c", "-ldl"], cwd=tmp_path, check=True)
    command = [sys.executable, "-c", CHILD, library.library_path(), file.path, str(9 << 20)]
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "shim.so")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    none, interrupted, short, failed, waited, after, largest = done.stdout.splitlines()
    assert (none, interrupted, short, after) == ("True",) * 4
    assert int(largest) == 4 << 20  # closing waits for one read
    assert f"the weights of layer 'conv' cannot be read from {file.path} at byte 0 (Input/output error)" in failed
    assert f"layer 'conv' waits for its weights, and no byte of {file.path} came in 300 ms" in waited


def test_a_library_that_is_missing_or_broken_says_what_to_do(tmp_path, monkeypatch):
    path = tmp_path / "stream.so"
    monkeypatch.setattr(library, "library_path", lambda: path)
    ask = library.functions.__wrapped__
    with pytest.raises(UserError, match=rf"{path}, which was not built: run `python native/build\.py`"):
        ask()
    path.with_suffix(".txt").write_text("no C++ compiler was found\n")
    with pytest.raises(
        UserError, match=r"not built \(no C\+\+ compiler was found\): run .*, or reinstall smartmem-tvm"
    ):
        ask()
    path.write_text("no library")
    with pytest.raises(UserError, match=rf"{path}, which does not load \(.*\): run `python native/build\.py`"):
        ask()
    path.unlink()
    monkeypatch.undo()
    assert library.functions() is library.functions() is api


def test_an_installation_without_compiler_leaves_the_reason(tmp_path):
    command = [sys.executable, "setup.py", "-q", "build_native", f"--build-lib={tmp_path}", f"--build-temp={tmp_path}"]
    environment = {**os.environ, "CXX": "false"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    reason = (tmp_path / "smartmem_tvm" / "lib" / "stream.txt").read_text(encoding="utf-8").strip()
    assert reason.startswith("false failed on ")
    assert f"smartmem-tvm is installed without streaming of weights: {reason}." in done.stderr.splitlines()


def test_both_libraries_are_installed(tmp_path):
    import setuptools

    command = declared()["cmdclass"]["build_native"](setuptools.Distribution())
    command.build_lib = str(tmp_path)
    folder = tmp_path / "smartmem_tvm" / "lib"
    outputs = command.get_outputs()
    assert outputs[:3] == [str(folder / name) for name in ("opencl.so", "stream.so", "threads.so")]
    assert str(tmp_path / "smartmem_tvm" / "native" / "run" / "CMakeLists.txt") in outputs

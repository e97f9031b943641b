# SPDX-License-Identifier: Apache-2.0
"""The profile store: keys, answers, and a file that survives whatever happens to it."""

import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tvm import relax
from tvm.script import tirx as T
from tvm.target import Target

from helpers import legal, nodes, only_node, op
from smartmem_tvm.errors import UserError
from smartmem_tvm.ir.kernel import emit, parse
from smartmem_tvm.transform import EliminateLayout
from smartmem_tvm.tune import profile_store
from smartmem_tvm.tune.profile_store import ProfileStore, Question, kernel_key

TARGET = Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 4})


def kernel(build, *shapes, dtype="float32"):
    """The PrimFunc of one operator."""
    return emit(only_node(build, *shapes, dtype=dtype).kernel)


MATMUL, RELU = kernel(op.matmul, (4, 6), (6, 5)), kernel(op.nn.relu, (4, 5))
BOTH = kernel(op.nn.softmax, (4, 5))  # stands for the two as one kernel
QUESTION = Question((BOTH,), (MATMUL, RELU))


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "logs" / "cpu.jsonl"


def store_at(path, **changes) -> ProfileStore:
    return ProfileStore(path, changes.get("target", TARGET), changes.get("threads", 1))


# Keys


def test_key_does_not_depend_on_names():
    @T.prim_func(s_tir=True)
    def one(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in T.serial(4):
            with T.sblock("move"):
                vi = T.axis.spatial(4, i)
                y[vi] = x[3 - vi]

    @T.prim_func(s_tir=True)
    def other(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for k in T.serial(4):
            with T.sblock("reverse"):
                vj = T.axis.spatial(4, k)
                b[vj] = a[3 - vj]

    assert kernel_key(one) == kernel_key(other)
    assert kernel_key(emit(parse(one))) == kernel_key(one)


def test_different_kernels_have_different_keys():
    square = (4, 4)
    builds = [
        lambda x, y: op.add(x, op.permute_dims(y)),
        lambda x, y: op.add(op.permute_dims(x), y),
        lambda x, y: op.subtract(x, op.permute_dims(y)),
    ]
    kernels = [emit(nodes(EliminateLayout()(legal(build, square, square)))[0].kernel) for build in builds]
    kernels += [kernel(op.add, square, square), kernel(op.add, square, square, dtype="float16")]
    kernels += [kernel(op.add, (4, 5), (4, 5)), kernel(op.add, (5, 4), (5, 4))]
    kernels += [kernel(lambda x, c=c: op.multiply(x, relax.const(c)), square) for c in (2.0, 3.0)]
    assert len({kernel_key(func) for func in kernels}) == len(kernels)


KEYS_ELSEWHERE = """
import sys
sys.path.insert(0, sys.argv[1])
from helpers import only_node, op
from smartmem_tvm.ir.kernel import emit
from smartmem_tvm.tune.profile_store import kernel_key
only_node(op.exp, (7, 7))
print(kernel_key(emit(only_node(op.nn.softmax, (4, 5)).kernel)))
print(kernel_key(emit(only_node(op.matmul, (4, 6), (6, 5)).kernel)))
"""


def test_keys_are_the_same_in_every_process():
    command = [sys.executable, "-c", KEYS_ELSEWHERE, str(Path(__file__).parents[1])]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    assert outputs[0] == outputs[1] == [kernel_key(BOTH), kernel_key(MATMUL)]


# Answers


def test_questions_are_remembered_once_until_they_are_answered():
    store = store_at(None)
    assert store.faster(QUESTION) is None and store.faster(Question((BOTH,), (MATMUL, RELU))) is None
    assert store.asked == [QUESTION] and store.answered == []
    for func, seconds in ((BOTH, 1.0), (MATMUL, 0.8)):
        store.add(func, seconds)
        assert store.faster(QUESTION) is None
    store.add(RELU, 0.3)
    store.forget_questions()
    assert store.faster(QUESTION) is True
    assert store.asked == []
    ((fused, parts),) = store.answered
    assert (fused, parts) == (1.0, pytest.approx(1.1))


def test_parts_may_be_faster_and_a_tie_is_fused():
    store = store_at(None)
    store.add(BOTH, 2.0)
    store.add(MATMUL, 1.0)
    store.add(RELU, 0.5)
    assert store.faster(QUESTION) is False
    store.add(RELU, 1.5)  # the median of the two is 1.0
    assert store.faster(QUESTION) is True


def test_a_kernel_that_is_launched_twice_counts_twice():
    store = store_at(None)
    store.add(BOTH, 1.0)
    store.add(RELU, 0.6)
    assert store.compare((BOTH,), (RELU, RELU)) == (1.0, pytest.approx(1.2))


def test_latency_is_the_median_of_all_sessions():
    store = store_at(None)
    assert store.latency(RELU) is None
    for seconds in (1.0, 9.0, 2.0):
        store.add(RELU, seconds)
    assert store.latency(RELU) == 2.0
    assert store.kernels == 1


def test_the_latest_measurement_of_a_session_counts():
    store = store_at(None)
    store.add(RELU, 1.0, together="s")
    store.add(RELU, 3.0, together="s")
    assert store.latency(RELU) == 3.0


def test_what_was_measured_in_turns_is_compared():
    """The parts of a noisy session are not held against the fused kernel of a quiet one."""
    store = store_at(None)
    for session, noise in (("quiet", 1), ("noisy", 10), ("noisier", 100)):
        store.add(BOTH, 1.0 * noise, together=session)
        store.add(MATMUL, 0.8 * noise, together=session)
        store.add(RELU, 0.4 * noise, together=session)
    store.add(MATMUL, 0.01, together="elsewhere")
    store.add(RELU, 0.01, together="elsewhere")
    assert store.faster(QUESTION) is True
    fused, parts = store.compare(QUESTION.fused, QUESTION.parts)
    assert fused / parts == pytest.approx(1 / 1.2)


# The file


def test_what_is_added_is_found_by_the_next_process(path):
    store = store_at(path)
    store.add(RELU, 1.5e-5)
    store.add(MATMUL, 2e-3, together="s")
    again = store_at(path)
    assert again.latency(RELU) == 1.5e-5 and again.latency(MATMUL) == 2e-3
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    record = json.loads(lines[0])
    assert record["kernel"] == kernel_key(RELU)
    assert record["operands"] == "float32[4,5] float32[4,5]"
    assert record["threads"] == 1 and record["target"] == str(TARGET)


def test_nothing_is_written_by_asking(path):
    store_at(path).faster(QUESTION)
    assert not path.exists()


@pytest.mark.parametrize("field", ["target", "cpu", "threads", "tvm", "schedules"])
def test_measurements_made_in_other_circumstances_do_not_count(path, field):
    store_at(path).add(RELU, 1.0)
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {field: "something else"}) + "\n")
    store = store_at(path)
    assert store.latency(RELU) is None
    assert store.damaged == 0
    store.add(RELU, 2.0)
    assert len(path.read_text().splitlines()) == 2, "the other line is still there"


def test_other_threads_and_targets_share_a_file(path):
    other = Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 8})
    store_at(path).add(RELU, 1.0)
    store_at(path, threads=2).add(RELU, 2.0)
    store_at(path, target=other).add(RELU, 3.0)
    assert store_at(path).latency(RELU) == 1.0
    assert store_at(path, threads=2).latency(RELU) == 2.0
    assert store_at(path, target=other).latency(RELU) == 3.0


def test_fields_of_later_versions_are_ignored(path):
    store_at(path).add(RELU, 1.0)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"energy": {"joule": 1}}) + "\n")
    assert store_at(path).latency(RELU) == 1.0


def test_torn_last_line_is_ignored_and_the_next_one_is_whole(path, caplog):
    """A process was killed while it wrote, at every possible byte."""
    store = store_at(path)
    store.add(RELU, 1.0)
    whole = path.read_bytes()
    store.add(MATMUL, 2.0)
    second = path.read_bytes()[len(whole) :]
    for written in (*range(1, len(second), 7), len(second) - 1):
        path.write_bytes(whole + second[:written])
        with caplog.at_level(logging.WARNING):
            survivor = store_at(path)
        complete = written == len(second) - 1  # only the line break is missing
        assert survivor.damaged == (not complete)
        assert survivor.latency(RELU) == 1.0
        assert survivor.latency(MATMUL) == (2.0 if complete else None)
        survivor.add(BOTH, 3.0)
        again = store_at(path)
        assert (again.latency(RELU), again.latency(BOTH)) == (1.0, 3.0)
    assert "line 2 was not written to its end and is skipped" in caplog.text


DAMAGED = [
    b"{", b"not json", b"[1, 2]", b"null", b"\xff\xfe\x00", b'{"seconds": 1}', b'{"kernel": 3, "seconds": 1.0}',
    b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED)
def test_damaged_line_in_the_middle_is_skipped_and_counted(path, line, caplog):
    store_at(path).add(RELU, 1.0)
    whole = path.read_bytes()
    path.write_bytes(
        whole + line + b"\n\n" + whole.replace(b"1.0", b"3.0").replace(b'"together": "', b'"together": "x')
    )
    store = store_at(path)
    assert store.latency(RELU) == 2.0
    assert store.damaged == 1
    assert f"{path}: line 2 is no measurement and is skipped" in caplog.text


@pytest.mark.parametrize("seconds", ["0", "-1.0", "NaN", "Infinity", "true", '"1.0"', "null", "1" + "0" * 400])
def test_a_time_that_is_none_is_damage(path, seconds):
    store_at(path).add(RELU, 1.0)
    path.write_text(path.read_text().replace('"seconds": 1.0', f'"seconds": {seconds}'))
    store = store_at(path)
    assert store.latency(RELU) is None and store.damaged == 1


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_cannot_be_added(path, seconds):
    with pytest.raises(ValueError, match="positive number of seconds"):
        store_at(path).add(RELU, seconds)
    assert not path.exists()


def test_empty_file(path):
    path.parent.mkdir()
    path.touch()
    assert store_at(path).kernels == 0


def test_unreadable_file_is_named(tmp_path):
    with pytest.raises(UserError, match=f"Profile store {tmp_path} cannot be read"):
        store_at(tmp_path)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    store = store_at(tmp_path / "file" / "store.jsonl")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written \(File exists\).*--profiles"):
        store.add(RELU, 1.0)


def test_a_full_disk_is_named(path, monkeypatch):
    real = profile_store.os.write
    monkeypatch.setattr(profile_store.os, "write", lambda handle, data: real(handle, data[:5]))
    with pytest.raises(UserError, match="the disk is full"):
        store_at(path).add(RELU, 1.0)
    monkeypatch.undo()
    store_at(path).add(RELU, 1.0)
    assert store_at(path).latency(RELU) == 1.0


APPENDING = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tvm.target import Target
from helpers import only_node, op
from smartmem_tvm.ir.kernel import emit
from smartmem_tvm.tune.profile_store import ProfileStore
func = emit(only_node(op.nn.relu, (4, 5)).kernel)
store = ProfileStore(Path(sys.argv[2]), Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 4}), 1)
for _ in range(50):
    store.add(func, 1.0)
"""


def test_several_processes_append(path):
    command = [sys.executable, "-c", APPENDING, str(Path(__file__).parents[1]), str(path)]
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: subprocess.run(command, capture_output=True, text=True), range(3)))
    assert [each.returncode for each in done] == [0, 0, 0], done[0].stderr
    lines = path.read_text().splitlines()
    assert len(lines) == 150
    assert len({json.loads(line)["together"] for line in lines}) == 150
    assert store_at(path).damaged == 0


# GPUs


def test_what_counts_for_a_gpu_is_its_name(path):
    """And not the CPU beside it, nor its threads."""
    store = ProfileStore(path, TARGET, 1, device="one")
    store.add(RELU, 1.0)
    assert ProfileStore(path, TARGET, 8, device="one").latency(RELU) == 1.0
    assert ProfileStore(path, TARGET, 1, device="other").latency(RELU) is None
    assert store_at(path).latency(RELU) is None
    (record,) = map(json.loads, path.read_text().splitlines())
    assert record["device"] == "one" and not {"cpu", "threads"} & set(record)


def test_a_gpu_and_the_cpu_share_a_file(path):
    gpu = ProfileStore(path, TARGET, 1, device="one")
    gpu.add(RELU, 1.0)
    store_at(path).add(RELU, 2.0)
    assert ProfileStore(path, TARGET, 1, device="one").latency(RELU) == 1.0
    assert store_at(path).latency(RELU) == 2.0


# CPUs of other machines


def test_another_cpu_goes_by_its_name_and_by_its_threads_where_they_are_known(path):
    there = ProfileStore(path, TARGET, 8, cpu="Cortex-A76")
    there.add(RELU, 1.0)
    (record,) = map(json.loads, path.read_text().splitlines())
    assert (record["cpu"], record["threads"]) == ("Cortex-A76", 8)
    assert ProfileStore(path, TARGET, 8, cpu="Cortex-A76").latency(RELU) == 1.0
    assert ProfileStore(path, TARGET, cpu="Cortex-A76").latency(RELU) == 1.0
    assert ProfileStore(path, TARGET, 1, cpu="Cortex-A76").latency(RELU) is None
    assert ProfileStore(path, TARGET, 8, cpu="Cortex-X3").latency(RELU) is None
    assert store_at(path, threads=8).latency(RELU) is None

# SPDX-License-Identifier: Apache-2.0
"""Filling a profile store: the passes ask until every question has its answer."""

import json
import logging
import math
import time
from collections import Counter

import pytest
import tvm

from at_once import executor
from helpers import legal, op
from smartmem_tvm.deploy.fill_profiles import fill, measured_by, measured_target, other_cpu
from smartmem_tvm.errors import UserError
from smartmem_tvm.target import host_target, parse_target
from smartmem_tvm.tune.profile_store import ProfileStore, Question, kernel_key

TARGET = tvm.target.Target("llvm")


def kernel(length: int) -> tvm.tirx.PrimFunc:
    """A PrimFunc; different lengths have different keys."""
    (func,) = (f for f in legal(op.exp, (length,)).functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    return func


KERNELS = {length: kernel(length) for length in range(1, 8)}
SECONDS = {kernel_key(func): float(length) for length, func in KERNELS.items()}


def question(fused: tuple[int, ...], parts: tuple[int, ...]) -> Question:
    return Question(tuple(KERNELS[i] for i in fused), tuple(KERNELS[i] for i in parts))


class Asker:
    """Passes that ask the first question, and the next one if the answer is yes."""

    def __init__(self, store: ProfileStore, questions: list[Question]):
        self.store, self.questions, self.runs = store, questions, 0

    def __call__(self) -> tvm.IRModule:
        self.runs += 1
        for each in self.questions:
            if not self.store.faster(each):
                break
        return tvm.IRModule()


def measure(functions):
    return [SECONDS[kernel_key(func)] for func in functions]


def each(measure):
    """What measures questions, by a function that measures one; as an executor does it."""

    def measure_all(questions, end):
        for number, functions in enumerate(questions):
            if time.monotonic() > end:
                return
            try:
                answer = measure(functions)
            except RuntimeError as error:
                answer = error
            yield number, answer

    return measure_all


@pytest.fixture
def store(tmp_path):
    return ProfileStore(tmp_path / "store.jsonl", TARGET)


def test_answers_raise_new_questions_until_there_are_none(store):
    asker = Asker(store, [question((1,), (2, 3)), question((4,), (2, 3)), question((7,), (1, 2)), question((1,), (1,))])
    seen = []
    filled = fill(store, asker, each(measure), progress=lambda done, asked: seen.append((done, asked)))
    # Yes (1 < 5), yes (4 < 5), no (7 > 3): the last one is never asked.
    assert (filled.measured, filled.fused, filled.kept, filled.open, filled.failed) == (3, 2, 1, 0, 0)
    assert asker.runs == filled.sweeps == 4
    assert seen == [(1, 1)] * 3
    assert isinstance(filled.module, tvm.IRModule)


def test_what_is_known_is_not_measured_again(store):
    questions = [question((1,), (2, 3)), question((4,), (2, 3))]
    fill(store, Asker(store, questions), each(measure))
    again = ProfileStore(store.path, TARGET)
    filled = fill(again, Asker(again, questions), each(lambda _: pytest.fail("measured")))
    assert (filled.measured, filled.fused, filled.sweeps) == (0, 2, 1)


def test_all_kernels_of_a_question_are_measured_in_turns(store):
    batches = []

    def batch(functions):
        batches.append([kernel_key(func) for func in functions])
        return measure(functions)

    fill(store, Asker(store, [question((1,), (2, 2))]), each(batch))
    (keys,) = batches
    assert keys == [kernel_key(KERNELS[1]), kernel_key(KERNELS[2])], "a kernel that is launched twice is measured once"
    lines = store.path.read_text().splitlines()
    assert len({line.split('"together": ')[1].split(",")[0] for line in lines}) == 1


def test_a_kernel_that_cannot_be_measured_is_left_to_the_cost_model(store, caplog):
    def fail(functions):
        if SECONDS[kernel_key(functions[0])] == 1:
            raise RuntimeError("Traceback\nno such instruction")
        return measure(functions)

    class Both(Asker):
        def __call__(self):
            self.runs += 1
            for each in self.questions:
                self.store.faster(each)
            return tvm.IRModule()

    with caplog.at_level(logging.WARNING):
        filled = fill(store, Both(store, [question((1,), (2,)), question((3,), (4,))]), each(fail))
    assert (filled.measured, filled.failed, filled.open, filled.fused) == (1, 1, 0, 1)
    assert "a kernel could not be measured (no such instruction)" in caplog.text


def test_a_store_that_cannot_be_written_stops_at_once(tmp_path):
    store = ProfileStore(tmp_path / "file" / "store.jsonl", TARGET)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        fill(store, Asker(store, [question((1,), (2,))]), each(measure))


def test_the_budget_ends_measuring_and_keeps_what_there_is(store, monkeypatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("smartmem_tvm.deploy.fill_profiles.time.monotonic", lambda: next(clock))
    questions = [question((1,), (2,)), question((2,), (3,)), question((3,), (4,)), question((4,), (5,))]
    filled = fill(store, Asker(store, questions), each(measure), budget=45)
    assert filled.open == 1
    assert 0 < filled.measured < len(questions)
    rest = fill(store, Asker(store, questions), each(measure))
    assert filled.measured + rest.measured == len(questions)


def test_a_target_of_another_cpu_is_refused():
    assert str(measured_target("cpu")) == str(host_target())
    assert measured_target('{"kind": "llvm"}').kind.name == "llvm"
    other = "skylake" if "skylake" not in str(host_target()) else "znver2"
    with pytest.raises(UserError, match=f"is a {other} and this machine a .*on the machine"):
        measured_target(f'{{"kind": "llvm", "mcpu": "{other}"}}')


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("cpu", None),
        ('{"kind": "llvm"}', None),
        ("opencl", None),
        ("adreno-740", None),
        ('{"kind": "llvm", "mcpu": "pentium4"}', "pentium4"),
        ('{"kind": "llvm", "mtriple": "riscv64-linux-gnu"}', "riscv64-linux-gnu"),
        ('{"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "sifive-u74"}', "sifive-u74"),
    ],
)
def test_a_cpu_that_this_machine_is_not_goes_by_its_targets_name(target, name):
    assert other_cpu(parse_target(target)) == name


def test_answers_are_stored_in_the_order_in_which_they_come(store):
    """As several devices measure at a time."""

    def last_first(questions, end):
        yield from reversed(list(each(measure)(questions, end)))

    class Both(Asker):
        def __call__(self):
            for each in self.questions:
                self.store.faster(each)
            return tvm.IRModule()

    questions = [question((1,), (2,)), question((3,), (4,))]
    filled = fill(store, Both(store, questions), last_first)
    assert (filled.measured, filled.fused, filled.failed) == (2, 2, 0)
    assert [json.loads(line)["seconds"] for line in store.path.read_text().splitlines()] == [3.0, 4.0, 1.0, 2.0]


def test_a_question_is_measured_by_an_executor():
    servers, questions = Counter(), [[KERNELS[1], KERNELS[2]], [KERNELS[3]]]
    (number, seconds), *rest = measured_by(executor(host_target()), servers)(questions, math.inf)
    assert number == 0 and len(seconds) == 2 and all(0 < each < 1 for each in seconds)
    assert [number for number, _ in rest] == [1] and servers == {"": 2}


def test_a_machine_that_fails_ends_it_and_a_question_that_does_not(monkeypatch):
    def fail(device, kernels):
        raise RuntimeError(reasons.pop(0))

    reasons = ["it fell", "No space left on device", "never asked"]
    monkeypatch.setattr("smartmem_tvm.deploy.fill_profiles.kernel_seconds", fail)
    found = measured_by(executor(host_target()), Counter())([[KERNELS[1]]] * 3, math.inf)
    number, answer = next(found)
    assert number == 0 and isinstance(answer, RuntimeError) and str(answer) == "RuntimeError: it fell"
    with pytest.raises(UserError, match=r"could not be measured here \(RuntimeError: No space left on device\)"):
        next(found)
    assert reasons == ["never asked"]

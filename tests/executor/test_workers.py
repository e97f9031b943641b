# SPDX-License-Identifier: Apache-2.0
"""Workers that crash, hang, and take too much memory; processes, all of them real."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import worker_jobs as jobs
from smartmem_tvm.errors import UserError
from smartmem_tvm.executor import workers as workers_module
from smartmem_tvm.executor.faults import NO_WORKER
from smartmem_tvm.executor.gpu_turn import gpu_turn
from smartmem_tvm.executor.workers import Answer, Confines, Workers
from smartmem_tvm.tune.candidate_faults import failure_of


@pytest.fixture(autouse=True)
def light(monkeypatch):
    """Workers import TVM for their jobs only, as those of the command do."""
    monkeypatch.setattr(sys, "argv", ["smartmem"])


@pytest.fixture(scope="module")
def two():
    workers = Workers(2, patience=30)
    yield workers
    workers.close()


@contextmanager
def running(folder, program, told):
    """A process that runs a program, once a worker of it has told its number in a file."""
    (folder / "smartmem").write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, folder / "smartmem"], env=environment) as process:
        while not (told.exists() and told.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        yield process


def is_alive(process):
    """Whether it runs; one that has ended without being waited for does not."""
    try:
        return "Z" not in (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_answers_come_in_the_order_of_the_jobs_and_workers_stay(two):
    assert [each.value for each in two.map(jobs.double, list(range(7)))] == [0, 2, 4, 6, 8, 10, 12]
    before = {each.value for each in two.map(jobs.whoami, range(20))}
    assert 1 <= len(before) <= 2 and os.getpid() not in before
    assert {each.value for each in two.map(jobs.whoami, range(20))} <= before
    assert two.map(jobs.double, []) == []


def test_what_a_job_raises_is_its_answer(two):
    answers = two.map(jobs.refuse, ["no space left on device"])
    assert answers == [Answer(error="ValueError: no space left on device")]


def test_a_crash_is_the_fault_of_the_job_and_costs_no_other(two):
    crashed = two.map(jobs.crash, [None])[0]
    assert "crashed (SIG" in crashed.error and failure_of(crashed.error).candidate
    assert [each.value for each in two.map(jobs.double, [1, 2, 3])] == [2, 4, 6]


def test_a_job_that_hangs_is_ended_even_where_no_thread_of_its_process_can_run(two):
    start = time.monotonic()
    (answer,) = two.map(jobs.loop, [None], patience=0.5)
    assert answer.error == "The job took longer than 0.5 s." and failure_of(answer.error).candidate
    assert time.monotonic() - start < 10


def test_who_has_answered_is_not_late(two, monkeypatch):
    """Whoever listens may be held up: by another worker's end, or by Ctrl-Z."""
    two.map(jobs.double, [1, 2])
    monkeypatch.setattr(workers_module._Worker, "wait", lambda worker: time.sleep(2) or worker._process.join(5))
    crashed, slow = two.map(jobs.crash_or_nap, [None, 0.5], patience=1.5)
    assert "crashed" in crashed.error and slow == Answer(0.5)


@pytest.mark.parametrize("by", ["time limit", "death of the parent"])
def test_compilers_end_with_the_worker(by, tmp_path):
    told = tmp_path / "pid"
    program = f"""
import worker_jobs
from smartmem_tvm.executor.workers import Workers
if __name__ == "__main__":
    workers = Workers(1, {0.5 if by == "time limit" else 600})
    workers.map(worker_jobs.compile_and_tell, [{str(told)!r}])
    workers.close()
"""
    with running(tmp_path, program, told) as parent:
        if by == "time limit":
            assert parent.wait(30) == 0
        else:
            parent.kill()
        end = time.monotonic() + 10
        while (alive := is_alive(int(told.read_text()))) and time.monotonic() < end:
            time.sleep(0.02)
        assert not alive


def test_a_worker_that_is_killed_is_no_fault_of_the_job(two):
    (answer,) = two.map(jobs.be_killed, [None])
    assert "was killed from outside" in answer.error and not failure_of(answer.error).candidate


def test_a_job_is_not_blamed_for_what_an_earlier_one_has_broken():
    workers = Workers(1, patience=30)
    broken, next_one = workers.map(jobs.crash_if_broken, [True, False])
    assert broken.value and next_one.value and broken.value != next_one.value
    workers.close()


def test_a_job_that_wants_all_memory_gets_an_error_and_the_machine_stays():
    workers = Workers(1, patience=30, confines=Confines(memory=4 * jobs.MEGABYTES))
    much, little = workers.map(jobs.take_memory, [8, 1])
    assert much.error.startswith("MemoryError") and failure_of(much.error).candidate
    assert little.value == jobs.MEGABYTES
    workers.close()


def test_workers_run_on_the_cores_they_were_given():
    core = max(os.sched_getaffinity(0))
    workers = Workers(1, patience=30, confines=Confines(cores=[core]))
    assert workers.map(jobs.cores, [None])[0].value == {core}
    workers.close()


def test_a_worker_that_cannot_start_is_the_fault_of_the_machine():
    workers = Workers(1, patience=30, confines=Confines(cores=[10**4]))
    answers = workers.map(jobs.double, [1, 2])
    assert all(each.error.startswith(NO_WORKER) for each in answers)
    assert not any(failure_of(each.error).candidate for each in answers)


def test_modules_are_imported_before_the_first_job():
    workers = Workers(1, patience=30, imports=["colorsys", "missing_module"])
    assert workers.map(jobs.double, [1])[0].error.startswith(NO_WORKER)
    workers = Workers(1, patience=30, imports=["colorsys"])
    assert [each.value for each in workers.map(jobs.imported, ["colorsys", "wave"])] == [True, False]


def test_a_worker_that_does_not_get_going_is_the_fault_of_the_machine(monkeypatch):
    monkeypatch.setattr(workers_module, "_START", 0.01)
    (answer,) = Workers(1, patience=30).map(jobs.double, [1])
    assert answer.error == f"{NO_WORKER} within 0.01 s." and not failure_of(answer.error).candidate


def test_ctrl_c_is_not_for_workers_not_even_before_they_have_begun(monkeypatch):
    process = multiprocessing.get_context("spawn").Process
    start = process.start

    def interrupted(self):
        start(self)
        os.kill(self.pid, signal.SIGINT)

    monkeypatch.setattr(process, "start", interrupted)
    workers = Workers(1, patience=30)
    assert workers.map(jobs.double, [1]) == [Answer(2)]
    os.kill(workers.map(jobs.whoami, [0])[0].value, signal.SIGINT)
    assert workers.map(jobs.double, [2]) == [Answer(4)]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    workers.close()


def test_idle_workers_end_by_themselves_when_the_program_does(tmp_path):
    (tmp_path / "smartmem").write_text(f"""
import worker_jobs
from smartmem_tvm.executor.workers import Workers
if __name__ == "__main__":
    workers = Workers(2, 600)
    workers.map(worker_jobs.tell_at_exit, [{str(tmp_path / "one")!r}, {str(tmp_path / "two")!r}])
""")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, tmp_path / "smartmem"], env=environment, check=True, timeout=60)
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text() == "ended"


def test_workers_end_when_their_parent_is_killed(tmp_path):
    told = tmp_path / "pid"
    program = f"""
import worker_jobs
from smartmem_tvm.executor.workers import Workers
if __name__ == "__main__":
    Workers(1, 600).map(worker_jobs.loop_and_tell, [{str(told)!r}])
"""
    with running(tmp_path, program, told) as parent:
        worker = int(told.read_text())
        assert is_alive(worker)
        parent.kill()
        parent.wait()
        end = time.monotonic() + 10
        while is_alive(worker) and time.monotonic() < end:
            time.sleep(0.02)
        assert not is_alive(worker)


def test_workers_work_while_it_is_their_turn():
    heard = []

    @contextmanager
    def turn():
        heard.append("mine")
        yield
        heard.append("yours")

    workers = Workers(1, 30.0, turn=turn)
    assert workers.map(abs, [-1, -2]) == [Answer(1), Answer(2)] and heard == ["mine", "yours"]
    workers.close()


def test_answers_come_as_they_are_done(two):
    two.map(jobs.double, [1, 2])
    found = list(two.as_done(jobs.crash_or_nap, [0.6, 0.0]))
    assert found == [(1, Answer(0.0)), (0, Answer(0.6))]


def test_nothing_is_begun_any_more_when_it_is_not_to_go_on(two):
    """What has begun is done all the same."""
    going = iter([True] * 4)
    found = dict(two.as_done(jobs.double, range(100), go_on=lambda: next(going, False)))
    assert 1 <= len(found) <= 4 and found == {number: Answer(2 * number) for number in found}
    assert list(two.as_done(jobs.double, [1], go_on=lambda: False)) == []


def test_a_caller_who_leaves_ends_it(two):
    answers = two.as_done(jobs.crash_or_nap, [0.0, *[30.0] * 5])
    assert next(answers) == (0, Answer(0.0))
    start = time.monotonic()
    answers.close()
    assert time.monotonic() - start < 10
    assert two.map(jobs.double, [1]) == [Answer(2)]


def test_a_result_tells_whose_fault_it_is():
    assert Answer(3).result() == 3
    with pytest.raises(RuntimeError, match="it fell"):
        Answer(error="it fell").result()
    with pytest.raises(UserError, match=r"could not be measured here \(No worker .*\); run the command again"):
        Answer(error=f"{NO_WORKER}.").result()


def test_two_commands_measure_on_a_gpu_one_after_the_other(tmp_path):
    waiter = "from smartmem_tvm.executor.gpu_turn import gpu_turn; print('here', flush=True)\n"
    waiter += f"with gpu_turn(): open({str(tmp_path / 'done')!r}, 'w')"
    with gpu_turn():
        other = subprocess.Popen([sys.executable, "-c", waiter], stdout=subprocess.PIPE)
        assert other.stdout.readline() == b"here\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
        assert not (tmp_path / "done").exists()
    assert other.wait(30) == 0 and (tmp_path / "done").exists()
    other.stdout.close()

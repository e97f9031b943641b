# SPDX-License-Identifier: Apache-2.0
"""What latencies depend on in a machine, and where they are kept."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.tune import host


def test_cpu_has_a_name():
    name = host.cpu_name()
    assert name and name == name.strip() and "\n" not in name


def test_cpu_without_a_model_name_is_named_by_its_architecture(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "processor : 0\nBogoMIPS : 50.00\n")
    monkeypatch.setattr(host.platform, "processor", lambda: "")
    monkeypatch.setattr(host.platform, "machine", lambda: "aarch64")
    assert host.cpu_name.__wrapped__() == "aarch64"


def test_threads(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert host.run_threads() == 3
    monkeypatch.setenv("TVM_NUM_THREADS", "")
    assert host.run_threads() == host.usable_cores()
    assert 1 <= host.usable_cores() <= len(os.sched_getaffinity(0))
    monkeypatch.setenv("TVM_NUM_THREADS", "all")
    with pytest.raises(UserError, match="TVM_NUM_THREADS is 'all', which is no number"):
        host.run_threads()


def test_cores_are_those_of_all_threads_of_the_process():
    """TVM ties the first one to one of them."""
    everywhere, found = set(host.process_cpus()), []

    def work():
        os.sched_setaffinity(0, [min(everywhere)])
        found.append(host.process_cpus())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert set(found[0]) == everywhere >= os.sched_getaffinity(0)


def test_threads_among_some_cores(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "")
    assert host.run_threads([min(host.process_cpus())]) == 1
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert host.run_threads([min(host.process_cpus())]) == 3


def test_tvm_runs_on_as_many(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    assert host.set_threads(None) == 1
    assert host.set_threads(1) == 1
    # TVM's own threads sleep at once: those of a process that ends would be waited for.
    assert os.environ["TVM_THREAD_POOL_SPIN_COUNT"] == "0"


@pytest.mark.parametrize(
    ("cpu", "file"),
    [("AMD EPYC 9B14 96-Core", "amd_epyc_9b14_96_core.jsonl"), ("(R) @", "r.jsonl"), ("@", "cpu.jsonl")],
)
def test_default_store_is_named_after_the_cpu(monkeypatch, cpu, file):
    monkeypatch.delenv(host.STORE_VARIABLE, raising=False)
    monkeypatch.setattr(host, "cpu_name", lambda: cpu)
    assert host.default_store() == Path("tuning_logs") / file


def test_the_default_store_of_a_gpu_is_named_after_it(monkeypatch):
    monkeypatch.delenv(host.STORE_VARIABLE, raising=False)
    assert host.default_store("NVIDIA H100 80GB HBM3") == Path("tuning_logs/nvidia_h100_80gb_hbm3.jsonl")


def test_the_variable_names_the_store(monkeypatch):
    monkeypatch.setenv(host.STORE_VARIABLE, "/some/where.jsonl")
    assert host.default_store() == Path("/some/where.jsonl")
    monkeypatch.setenv(host.STORE_VARIABLE, "")
    assert host.default_store() is None


def test_tvm_is_not_imported():
    code = "import sys, smartmem_tvm.tune.host; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

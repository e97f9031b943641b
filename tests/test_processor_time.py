# SPDX-License-Identifier: Apache-2.0
"""`pytest --processor-time FILE` counts what tests compute, in this process and in children, and not that they wait."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import subprocess, sys, time

BUSY = "import time; end = time.process_time() + 0.5\\nwhile time.process_time() < end: pass"

def test_busy(): exec(BUSY)
def test_child(): subprocess.run([sys.executable, "-c", BUSY], check=True)
def test_waits(): time.sleep(0.5)
"""


def test_workers_report_what_each_test_has_used(tmp_path):
    tests = Path(__file__).parent
    (tmp_path / "test_it.py").write_text(TESTS)
    shutil.copy(tests.parent / "pyproject.toml", tmp_path)
    for name in ("conftest.py", "covering.py", "processor_time.py"):
        shutil.copy(tests / name, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--processor-time", "times.json", "test_it.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads((tmp_path / "times.json").read_text())
    times = {name.partition("::")[2]: seconds for name, seconds in found["tests"].items()}
    assert set(times) == {"test_busy", "test_child", "test_waits"} and list(times)[-1] == "test_waits"
    assert times["test_busy"] >= 0.5 and times["test_child"] >= 0.5 and times["test_waits"] < 0.4
    assert len(found["collection"]) == 2 and all(each > 0.05 for each in found["collection"])

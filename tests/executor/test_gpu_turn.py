# SPDX-License-Identifier: Apache-2.0
"""Processes that measure on the same GPU do so one at a time."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

TAKING_TURNS = """
import sys, time
sys.argv[0] = "smartmem"
from pathlib import Path
from smartmem_tvm.executor.gpu_turn import gpu_turn
for _ in range(5):
    with gpu_turn(Path(sys.argv[1])):
        start = time.monotonic()
        time.sleep(0.02)
        print(start, time.monotonic())
"""


def test_processes_measure_one_at_a_time(tmp_path):
    command = [sys.executable, "-c", TAKING_TURNS, str(tmp_path / "lock")]
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: subprocess.run(command, capture_output=True, text=True), range(3)))
    assert [each.returncode for each in done] == [0, 0, 0], done[0].stderr
    turns = sorted(tuple(map(float, line.split())) for each in done for line in each.stdout.splitlines())
    assert len(turns) == 15
    assert all(before[1] <= after[0] for before, after in pairwise(turns))

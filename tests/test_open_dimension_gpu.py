# SPDX-License-Identifier: Apache-2.0
"""benchmarks/open_dimension_gpu.py: one network is timed at a time, and none takes the others down."""

import argparse
import runpy
import sys
from pathlib import Path

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parent.parent / "benchmarks" / "open_dimension_gpu.py"))
WAITS = 'print(\'{"turn": "wanted"}\', flush=True); input(); '
TIMED = (
    "import time; before = time.monotonic(); time.sleep(0.3); print('{\"busy\": %f}' % (time.monotonic() - before));"
    'print(\'{"turn": "over"}\', flush=True)'
)
COUNTS = """
import time
before, gap, start = time.monotonic(), 0, time.monotonic()
while gap < 0.25 and before - start < 15:
    time.sleep(0.001)
    now = time.monotonic()
    before, gap = now, now - before
print('{"gap": %f}' % gap, flush=True)
"""


def rows_of(programs, **limits):
    args = argparse.Namespace(networks=list(programs), **{"jobs": 4, "seconds": 20, "total": 40, **limits})
    return SCRIPT["Networks"](args, lambda name: [sys.executable, "-c", programs[name]]).measure()


def test_others_are_stopped_while_one_is_timed():
    rows = rows_of({"timed": "import time; time.sleep(2); " + WAITS + TIMED, "counts": COUNTS})
    (gap,) = [row["gap"] for row in rows if "gap" in row]
    assert gap >= 0.25, "it stood still, and went on afterwards"


def test_what_crashes_or_takes_too_long_is_a_row():
    programs = {
        "crashes": "import os; os.abort()",
        "in its turn": WAITS + "import os; os.abort()",
        "hangs": "import time; time.sleep(60)",
        "ends": WAITS + TIMED,
    }
    rows = rows_of(programs, seconds=3)
    failed = {row["network"]: row["failed"] for row in rows if "failed" in row}
    assert failed.keys() == {"crashes", "in its turn", "hangs"}
    assert "no time left" in failed["hangs"]
    assert any("busy" in row for row in rows)


def test_no_network_goes_on_after_the_whole_time():
    rows = rows_of({"hangs": "import time; time.sleep(60)", "waits": "pass"}, jobs=1, total=1)
    assert [row["network"] for row in rows] == ["hangs"]


def test_summary():
    row = {"network": "a", "precision": "half", "size": 1, "error": 0.5, "device_ms": 2, "static_device_ms": 1}
    row |= {"run_ms": 3, "static_run_ms": 3}
    other = {**row, "network": "b", "device_ms": 8}
    found = SCRIPT["summary"]([row, other, {"network": "a", "precision": "half", "checked": [1, 2], "error": 0.1}])
    assert found["half"]["device_ms"] == {"a": 2, "b": 8, "mean": 4}
    assert found["half"]["run_ms"]["mean"] == 1
    assert (found["half"]["checked"], found["half"]["error"]) == (1, 0.5)

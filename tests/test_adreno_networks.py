# SPDX-License-Identifier: Apache-2.0
"""The table of whole networks on Adrenos: its figures of a row, its files, and what is left to make."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "adreno_networks.py"
BENCH = runpy.run_path(str(SCRIPT))


def kernel(issue, bound, memory, by="arithmetic", **more):
    facts = {"rule": "GpuMatmul", "launches": 1, "scratch": 0, "arithmetic_share": 0.8, "loop": True}
    times = {"issue_seconds": issue, "bound_seconds": bound, "memory_seconds": memory, "bound_by": by}
    return {"kernel": "k", **facts, **times, **more}


def row(*kernels, network="swin_t", lines=3.0):
    facts = {
        "network": network,
        "precision": "half",
        "gpu": 740,
        "lines": lines,
        "bytes": 8.0,
        "mesa": "1",
        "date": "d",
    }
    return {**facts, "kernels": list(kernels)}


def test_a_row_adds_up_the_longer_of_issue_and_memory():
    found = BENCH["summary"](
        row(
            kernel(4.0, 1.0, 2.0, launches=2, scratch=3),
            kernel(1.0, 1.0, 5.0, arithmetic_share=0.6),
            kernel(None, 7.0, 6.0, rule="GpuRows"),  # no trips are known: the bound stands for them
            kernel(9.0, 1.0, 1.0, by="memory", rule="WindowSlide"),
            {"kernel": "k", "refused": "why"} | kernel(None, None, None),
        )
    )
    assert found["seconds"] == 2 * 4 + 5 + 7 + 9 and found["scratch"] == 3
    assert (found["kernels"], found["refused"], found["unknown"], found["above"]) == (4, 1, 1, 1)
    assert found["mean"] == pytest.approx(2.0) and found["worst"] == 4.0 and found["share"] == pytest.approx(0.7)


def test_files_are_read_as_they_were_written_and_compared(tmp_path):
    rows = {
        "a, half, 740": row(kernel(1.0, 1.0, 2.0)),
        "b, half, 740": row(kernel(1.0, 1.0, 3.0), kernel(1.0, 1.0, 1.0)),
    }
    BENCH["save"](tmp_path / "rows.json", rows)
    assert BENCH["read"](tmp_path / "rows.json") == rows and BENCH["read"](tmp_path / "none.json") == {}
    (line,) = BENCH["beside"]({"a, half, 740": row(kernel(1.0, 1.0, 4.0))}, rows)
    assert line.startswith("a, half, 740: 4000.000 -> 2000.000 ms (0.500x)")


def test_what_is_asked_for_and_large_networks_come_first():
    wanted = BENCH["_wanted"]
    assert wanted(["squeezenet", "half", "660"]) == [("extra/squeezenet", "half", 660)]
    assert len(wanted([])) == 18 * 2 * 4 and {each[0] for each in wanted([])[:16]} == {"sd_unet", "pythia_1b"}


def test_rows_of_the_file_are_not_made_again(tmp_path):
    path = tmp_path / "rows.json"
    BENCH["save"](path, {"swin_t, half, 740": row(kernel(1.0, 1.0, 2.0))})
    command = [
        sys.executable,
        str(SCRIPT),
        "--only",
        "swin_t",
        "half",
        "740",
        "--into",
        str(path),
        "--beside",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("swin_t, half, 740: 2000.000 -> 2000.000 ms (1.000x)")

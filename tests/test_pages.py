# SPDX-License-Identifier: Apache-2.0
"""Every page of results shows the committed measurements, and is written by one command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from render import CHARTS, PAGES  # noqa: E402

PARTS = [part for parts in PAGES.values() for part in parts]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.page} {part.mark}".strip())
def test_pages_are_those_of_the_committed_files(part):
    page = part.path.read_text(encoding="utf-8")
    assert not part.mark or (f"<!-- {part.mark} -->\n" in page and f"<!-- /{part.mark} -->" in page)
    assert part.rendered() == page


def test_every_marked_part_of_a_page_is_written():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    marks = {
        (path.relative_to(ROOT).as_posix(), mark)
        for path in pages
        for mark in re.findall(r"^<!-- /(.+) -->$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert marks == {(part.page, part.mark) for part in PARTS if part.mark} and set(CHARTS) <= set(PAGES)


def test_make_writes_pages_that_there_are():
    written = re.findall(r"benchmarks/render\.py(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert written and {name for names in written for name in names.split()} == set(PAGES)


def test_a_page_that_there_is_not():
    command = [sys.executable, str(ROOT / "benchmarks" / "render.py"), "nonsense"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 2 and "there is no page nonsense; there are readme, accuracy" in found.stderr

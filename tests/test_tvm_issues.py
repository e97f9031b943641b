# SPDX-License-Identifier: Apache-2.0
"""Each program of docs/tvm-issues.md still shows its fault; otherwise its entry and the work-around can go."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "tvm-issues.md"
PARTS = re.split(r"^### (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def programs(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


(COMMON,) = programs(PARTS[0])
FAULTS = {title: program for title, part in zip(PARTS[1::2], PARTS[2::2]) for program in programs(part)}


def test_every_fault_has_a_program():
    assert len(FAULTS) == len(PARTS) // 2


@pytest.mark.parametrize("title", FAULTS)
def test_the_fault_is_still_there(title):
    scope = {}
    exec(COMMON, scope)
    try:
        exec(FAULTS[title], scope)
    except AssertionError:
        pytest.fail(f"TVM has mended '{title}': take it from {PAGE.name}, and the work-around from the package")

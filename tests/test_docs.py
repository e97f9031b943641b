# SPDX-License-Identifier: Apache-2.0
"""What all pages of docs/ have in common."""

import re
from pathlib import Path

import pytest

from smartmem_tvm.cli import main

PAGES = sorted((Path(__file__).resolve().parent.parent / "docs").glob("*.md"))
LINES = sorted({line for page in PAGES for line in re.findall(r"^smartmem .*", page.read_text("utf-8"), re.MULTILINE)})


@pytest.mark.parametrize("line", LINES)
def test_commands_shown_exist(line, capsys):
    command, *words = line.partition("#")[0].split()[1:]
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert [word for word in words if word.startswith("-") and word not in shown] == []

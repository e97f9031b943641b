# SPDX-License-Identifier: Apache-2.0
"""Golden files of generated source: how they are written, compared and updated."""

import difflib
import re
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"
UPDATE = "--update-golden"
_NUMBER = re.compile(r"(?<![A-Za-z0-9.])\d+(?![\w.])")
_FEWEST_BLOCKS, _LONGEST_BLOCK = 4, 48


def assert_golden(path: str, text: str, update: bool) -> None:
    """Compare a text with the golden file of that name, or write it there.

    Parameters
    ----------
    path : str
        Below the folder of golden files.
    update : bool
        Whether pytest was started with `UPDATE`.
    """
    file, made = FOLDER / path, "\n".join(folded(text.strip().splitlines())) + "\n"
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(made, encoding="utf-8")
        return
    known = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [each.splitlines(keepends=True) for each in (known, made)]
    difference = "".join(difflib.unified_diff(*lines, f"tests/golden/{path}", "generated now"))
    assert not difference, f"{difference}\nIf this was to change: pytest {UPDATE} -k golden, then read the diff.\n"


def folded(lines: list[str]) -> list[str]:
    """Shorten unrolled loops: keep the first and the last of repeated blocks whose numbers change evenly.

    No information is lost: the blocks between follow from these two and their count.
    """
    found, start = [], 0
    while start < len(lines):
        length, count = max(_blocks(lines[start:]), key=lambda block: (block[0] * block[1], -block[0]))
        first, last = (lines[start + block * length :][:length] for block in (0, count - 1))
        indent = re.match(r"\s*", first[0])[0]
        found += [*folded(first), f"{indent}... {count} times in all, to", *folded(last)] if count > 1 else first
        start += length * count
    return found


def _blocks(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the length of each block that is repeated from the first line on, and its count."""
    yield 1, 1
    patterns = [_NUMBER.sub("#", line) for line in lines[: 2 * _LONGEST_BLOCK]]
    for length in range(1, _LONGEST_BLOCK + 1):
        if patterns[:length] == patterns[length : 2 * length]:
            blocks = [lines[at : at + length] for at in range(0, len(lines), length)]
            count = _evenly([_numbers(block) for block in blocks])
            if count >= _FEWEST_BLOCKS:
                yield length, count


def _numbers(block: list[str]) -> tuple[list[str], list[int]]:
    text = "\n".join(block)
    return _NUMBER.split(text), [int(number) for number in _NUMBER.findall(text)]


def _evenly(blocks: list[tuple[list[str], list[int]]]) -> int:
    """Count the blocks, from the first one on, that differ only in numbers with constant steps."""
    alike = list(takewhile(lambda block: block[0] == blocks[0][0], blocks))
    steps = [[b - a for a, b in zip(one[1], other[1], strict=True)] for one, other in pairwise(alike)]
    return 1 + len(list(takewhile(lambda step: step == steps[0], steps)))

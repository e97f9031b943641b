# SPDX-License-Identifier: Apache-2.0
"""The table of functions: complete, without contradictions, and as docs/adreno.md shows it."""

from pathlib import Path

import pytest

from smartmem_tvm.analysis.roofline import Speed
from smartmem_tvm.ir import native_formulas
from smartmem_tvm.tables.functions import FUNCTIONS, LIBRARY, formula_of, instructions_of
from smartmem_tvm.tables.targets import TARGETS, Row

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "adreno.md").read_text(encoding="utf-8")


def rows_of_the_page():
    section = PAGE.split("## Functions")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {(name, each[1]): each for each in cells if len(each) == 8 for name in each[0].split(", ")}


def test_each_function_has_both_types_once():
    keys = [(each.name, each.dtype) for each in FUNCTIONS]
    assert len(set(keys)) == len(keys)
    assert {name for name, _ in keys} == {name for name, dtype in keys if dtype == "float16"}
    assert len(keys) == 2 * len({name for name, _ in keys})


@pytest.mark.parametrize("row", FUNCTIONS, ids=lambda row: f"{row.name}-{row.dtype}")
def test_a_row(row):
    assert row.formula == LIBRARY or callable(getattr(native_formulas, row.formula))
    assert (row.formula == LIBRARY) == (row.absolute == row.relative == 0) == (row.library == ())
    assert formula_of(row.name, row.dtype) == row.formula
    cells = rows_of_the_page()[row.name, row.dtype]
    assert row.why in cells[2]
    assert cells[6:] == [" / ".join(map(str, row.instructions)) or "-", " / ".join(map(str, row.library))]
    for limit, found in zip((row.absolute, row.relative), cells[3:5]):
        assert not limit or not found or float(found) <= limit


def test_the_roofline_of_a_phone_charges_what_the_table_has():
    phones = [row for row in TARGETS.values() if row.phone]
    assert phones and instructions_of(740)["erf"] == 11 and instructions_of(830)["exp"] == 2
    for row in phones:
        calls = Speed.of_row(row).calls
        assert {name: round(row.peak / rate) for name, rate in calls.items()} == instructions_of(740)
    assert not Speed.of_row(Row("another", "opencl")).calls

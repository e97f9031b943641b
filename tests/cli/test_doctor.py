# SPDX-License-Identifier: Apache-2.0
"""``smartmem doctor``: the findings as a table, as JSON and as an exit code."""

import pytest

from smartmem_tvm.doctor import Check

GOOD = Check("python", True, "3.11")
OPTIONAL = Check("extra [tune]", False, "missing: xgboost", "pip install xgboost", required=False)
BAD = Check("tvm", False, "a pair that may crash", "pip install apache-tvm==0.27.0.post1")


@pytest.mark.parametrize(("checks", "code"), [([GOOD], 0), ([GOOD, OPTIONAL], 0), ([GOOD, OPTIONAL, BAD], 1)])
def test_exit_code(smartmem, monkeypatch, checks, code):
    monkeypatch.setattr("smartmem_tvm.doctor.diagnose", lambda: checks)
    outcome = smartmem("doctor", "--json")
    assert outcome.code == code
    assert outcome.data["ok"] is (code == 0)
    assert [each["name"] for each in outcome.data["checks"]] == [each.name for each in checks]


def test_table_shows_remedies(smartmem, monkeypatch):
    monkeypatch.setattr("smartmem_tvm.doctor.diagnose", lambda: [GOOD, OPTIONAL, BAD])
    outcome = smartmem("doctor")
    assert "extra [tune]" in outcome.out  # square brackets are no markup
    assert "pip install apache-tvm==0.27.0.post1" in outcome.out
    assert "WRONG" in outcome.out and "optional" in outcome.out


def test_this_machine(smartmem):
    assert smartmem("doctor").code == 0


def test_works_with_the_wrong_tvm(smartmem, monkeypatch):
    monkeypatch.setattr("smartmem_tvm.cli.version_problem", lambda: "wrong")
    monkeypatch.setattr("smartmem_tvm.doctor.diagnose", lambda: [BAD])
    outcome = smartmem("doctor")
    assert outcome.code == 1 and "a pair that may crash" in outcome.out

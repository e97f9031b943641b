# SPDX-License-Identifier: Apache-2.0
"""Every operator of ONNX in every version of its schema: right, or refused as listed."""

import json
import re
from pathlib import Path

import pytest

import smartmem_tvm as sm
from onnx_versions import cases, joined, versions
from smartmem_tvm.frontend.old_versions import is_old
from smartmem_tvm.pipeline import Options

KNOWN = json.loads(versions.KNOWN.read_text())
CASES = versions.cases()
PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
OLDEST = (1, 6, 11)  # of all opsets these have most old forms


def test_every_version_has_a_case():
    have = {(case.op, opset) for case, opset in CASES.values()}
    every = {(op, version) for op, numbers in cases.versions().items() for version in numbers}
    assert every - have == cases.withdrawn()


def outcome(name):
    """Whether a case is imported, and why not."""
    case, opset = CASES[name]
    try:
        want, _ = versions.right(case, opset)
        sm.from_onnx(versions.stated(case, opset, want))
    except sm.UserError as error:
        return str(error)
    return ""


def test_what_is_refused_is_listed():
    assert {name: outcome(name) for name in KNOWN["refused"]} == KNOWN["refused"]


def test_a_part_of_the_others_is_imported():
    names = [name for name in CASES if name not in KNOWN["refused"]][::10]
    assert not {name: why for name in names if (why := outcome(name))}


@pytest.mark.parametrize("opset", OLDEST)
def test_old_forms_are_right(opset):
    """One model of all that has another form since."""
    old = {
        name: case
        for name, (case, version) in CASES.items()
        if version == opset and case.graph is None and is_old(case.op, opset)
    }
    model, feeds, wanted = joined.joined(old, opset)
    compiled = sm.compile(sm.from_onnx(model), options=Options(schedule=False, fuse=False, eliminate=False))
    got = iter(compiled.run(**feeds))
    wrong = {name: versions.difference([next(got) for _ in want], want) for name, want in wanted.items()}
    assert len(wrong) > 10 and not any(wrong.values()), {name: why for name, why in wrong.items() if why}


def test_a_wrong_number_is_found():
    case, opset = CASES["Add-1-3"]
    want, who = versions.right(case, opset)
    assert who == versions.NUMPY and not versions.difference(want, want)
    assert versions.difference([want[0] + 1e-2], want) == "output 0 is off by 0.01"
    assert versions.difference([want[0][0]], want) == "output 0 is float32[3, 4] for float32[2, 3, 4]"


def test_the_figures_of_the_page():
    row = re.search(r"^\| cases of versions \|.*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[0]
    refused = len(KNOWN["refused"])
    assert [int(each) for each in re.findall(r"\d+", row)[:3]] == [len(CASES), len(CASES) - refused, refused]


@pytest.mark.slow
def test_all_are_right_or_refused_as_listed():
    results = versions.run_all(list(CASES), workers=2)
    assert {status for status, _ in results.values()} == {"pass", "refused"}
    assert {name: why for name, (status, why) in results.items() if status == "refused"} == KNOWN["refused"]

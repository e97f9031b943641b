# SPDX-License-Identifier: Apache-2.0
"""A few of the inputs of `make fuzz-readers`, always the same; and what longer runs have found."""

import pytest

from fuzz_readers.harness import run, summary
from fuzz_readers.readers import READERS

# Inputs that take half a second or so, by the cost of one.
FEW = {"compile": 6, "import": 60, "records": 60, "tuned": 60, "report-manifest": 60, "report-explanation": 60}
QUICK = 100


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_taken_or_refused(name):
    outcome = run(name, range(FEW.get(name, QUICK)))
    assert not outcome.faults and outcome.inputs == FEW.get(name, QUICK), summary(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_files_are_taken_or_refused(name):
    outcome = run(name, range(10**6, 10**6 + 30 * FEW.get(name, QUICK)))
    assert not outcome.faults, summary(outcome)

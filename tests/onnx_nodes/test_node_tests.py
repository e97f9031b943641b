# SPDX-License-Identifier: Apache-2.0
"""ONNX's own node tests: none is wrong, crashes or ends in an internal error; the list of refusals holds."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import node_tests

LEAST = {"strict": 1350, "frozen": 1600}


@pytest.mark.slow
@pytest.mark.parametrize("mode", node_tests.MODES)
def test_all_pass_or_are_refused_as_listed(mode):
    results = node_tests.run_all(list(node_tests.tests()), mode, workers=2)
    known = {name: tuple(result) for name, result in json.loads(node_tests.KNOWN.read_text())[mode].items()}
    assert {name: result for name, result in results.items() if result[0] != "pass"} == known
    assert {status for status, _ in results.values()} <= {"pass", "refused"}
    assert sum(status == "pass" for status, _ in results.values()) >= LEAST[mode]

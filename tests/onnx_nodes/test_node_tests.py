# SPDX-License-Identifier: Apache-2.0
"""ONNX's own node tests: none is wrong, crashes or ends in an internal error; the list of refusals holds."""

import json
import re
import sys
from pathlib import Path

import pytest
import tvm

sys.path.insert(0, str(Path(__file__).parent))

import node_tests

import smartmem_tvm as sm

LEAST = {"strict": 1350, "frozen": 1600}


@pytest.mark.slow
@pytest.mark.parametrize("mode", node_tests.MODES)
def test_all_pass_or_are_refused_as_listed(mode):
    results = node_tests.run_all(list(node_tests.tests()), mode, workers=2)
    known = {name: tuple(result) for name, result in json.loads(node_tests.KNOWN.read_text())[mode].items()}
    assert {name: result for name, result in results.items() if result[0] != "pass"} == known
    assert {status for status, _ in results.values()} <= {"pass", "refused"}
    assert sum(status == "pass" for status, _ in results.values()) >= LEAST[mode]


@pytest.mark.device
@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "sapphirerapids"])
def test_attention_of_bfloat16_compiles_for_any_cpu(cpu):
    """Vectors of choices between numbers of bfloat16, some lanes of which are masked."""
    found = [test.model for name, test in node_tests.tests().items() if re.search("attention.*bf16", name)]
    assert len(found) == 10
    for model in found:
        sm.compile(sm.from_onnx(model), tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2}))


def test_another_cpu_is_asked_for():
    """As the command line does with ``--cpu``."""
    assert node_tests.judge(("test_add", "strict", "haswell")) == ("pass", "")
    assert not node_tests.is_frozen("test_add") and node_tests.is_frozen("test_slice")

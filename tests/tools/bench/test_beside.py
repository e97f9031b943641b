# SPDX-License-Identifier: Apache-2.0
"""Latencies of systems that are only here for a line beside other figures."""

import numpy as np

from bench_systems import Adder
from smartmem_tvm.tools.bench.beside import latencies


def found(*requests, patience=60.0):
    named = [{"system": f"s{number}", **each} for number, each in enumerate(requests)]
    return list(latencies(Adder, named, {"x": np.ones(1)}, 3, patience).values())


def test_short_runs_are_repeated_and_long_ones_are_not():
    short, long = found({"seconds": 0.01}, {"first_seconds": 1.1})
    assert (short["runs"], long["runs"]) == (3, 1)
    assert short["latency_ms"] >= 10 and long["latency_ms"] >= 1100


def test_what_fails_or_is_late_says_so():
    refused, dead, late = found({"trouble": "refuses"}, {"trouble": "dies"}, {"first_seconds": 90}, patience=15.0)
    assert refused == {"error": "Tensor 'x' is odd; give an even one."}
    assert "signal SIGKILL" in dead["error"]
    assert late["error"] == "s2 gave no answer within 15 s."

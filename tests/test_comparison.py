# SPDX-License-Identifier: Apache-2.0
"""How far results are off."""

import numpy as np
import pytest

from smartmem_tvm.comparison import compare

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("got", "expected", "ok", "absolute", "relative"),
    [
        ([1.0, 2.0], [1.0, 2.0], True, 0, 0),
        ([1.0, 2.5], [1.0, 2.0], False, 0.5, 0.25),
        ([1.1, 20.0], [1.0, 20.0], True, 0.1, 0.005),
        ([0.0], [0.0], True, 0, 0),
        ([1e-9], [0.0], False, 1e-9, INF),
        ([NAN, 1.0], [NAN, 1.0], True, 0, 0),
        ([INF, -INF], [INF, -INF], True, 0, 0),
        ([INF, INF], [INF, -INF], False, INF, INF),
        ([NAN, 1.0], [1.0, 1.0], False, INF, INF),
        ([1.0, 1.0], [NAN, 1.0], False, INF, INF),
        ([INF, 1.0], [1.0, 1.0], False, INF, INF),
        ([], [], True, 0, 0),
    ],
)
def test_compare(got, expected, ok, absolute, relative):
    found = compare(np.array(got), np.array(expected), rtol=0.01, atol=0)
    assert found["ok"] is ok
    assert (found["max_abs_err"], found["max_rel_err"]) == (pytest.approx(absolute), pytest.approx(relative))


def test_compare_is_exact_for_integers():
    big = np.array([30000, 5])
    assert not compare(big + 1, big, rtol=0.01, atol=2)["ok"]
    assert compare(big, big, rtol=0, atol=0)["ok"]


@pytest.mark.parametrize("other", [np.zeros((2, 1), "float32"), np.zeros(2, "float64")])
def test_compare_wants_the_same_type(other):
    found = compare(other, np.zeros(2, "float32"), rtol=1, atol=1)
    assert not found["ok"] and "ONNX Runtime gives float32 [2]" in found["reason"]

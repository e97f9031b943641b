# SPDX-License-Identifier: Apache-2.0
"""The measures of error between results."""

import numpy as np
import pytest

from smartmem_tvm.comparison import compare, judge_difference

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


EXACT = np.array([1.0, -2.0, 4.0])


def judged(got, expected, rough=None, dtype="float32", rtol=1e-4, strict=False):
    got, expected, rough = (np.asarray(each, dtype) for each in (got, expected, EXACT if rough is None else rough))
    errors = compare(got, expected, rtol, 0.0)
    assert not errors["ok"]
    return judge_difference(errors, got, expected, EXACT, rough, (rtol, 0.0), strict)


def test_who_is_right_is_told_by_a_third():
    found = judged(EXACT, EXACT * 1.01)
    assert found["ok"] and found["reason"].startswith("right: 0.0e+00 from the exact numbers, ONNX Runtime 1.0e-02")
    assert found["exact"] == {"output": 0.0, "reference": pytest.approx(0.01, rel=1e-3), "digits_lost": 0.0}


def test_who_is_wrong_too():
    found = judged(EXACT * 1.01, EXACT)
    assert not found["ok"] and "exact" not in found


def test_two_ways_to_round_are_no_fault_of_either():
    found = judged(EXACT * 1.01, EXACT * 0.99, EXACT * 1.005)
    assert found["ok"] and found["exact"]["digits_lost"] == pytest.approx(5.2, abs=0.06)
    assert not judged(EXACT * 1.01, EXACT * 0.99, EXACT * 1.005, strict=True)["ok"]
    assert found["reason"].startswith("no worse: 1.0e-02 from") and found["reason"].endswith("of 7.2 digits lost")


def test_a_third_that_is_wrong_itself_excuses_nothing():
    """Both results are far from the third, which is not far from itself: it computes another operator."""
    assert not judged(EXACT * 3, EXACT * 2.9)["ok"]


def test_much_worse_than_the_reference_is_wrong():
    assert not judged(EXACT * 1.1, EXACT * 0.99, EXACT * 1.01)["ok"]


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_whole_numbers_are_right_or_quantized(dtype):
    exact = np.array([10, 20, 200])

    def found(got, expected, rough):
        given = [np.asarray(each, dtype) for each in (got, expected, exact, rough)]
        return judge_difference({"ok": False}, *given, (1e-4, 0.0))["ok"]

    assert found(exact, exact - 1, exact)
    assert not found(exact - 1, exact, exact)
    assert found(exact - 1, exact + [0, 0, 1], exact + [1, 0, 0]) == (dtype == "uint8")


def test_other_shapes_and_places_of_nan_stay_wrong():
    errors = compare(EXACT[:2], EXACT, 1e-4, 0.0)
    assert judge_difference(errors, EXACT[:2], EXACT, EXACT, EXACT, (1e-4, 0.0)) == errors
    assert not judged([1.0, np.nan, 4.0], EXACT * 1.01, EXACT * 1.01)["ok"]

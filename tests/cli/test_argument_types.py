# SPDX-License-Identifier: Apache-2.0
"""Numbers that make no sense are refused before anything else happens."""

import pytest

WHERE = ("--tracker", "127.0.0.1:1", "--key", "k")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e12"])
@pytest.mark.parametrize(
    "options", [("measure", "out", "--timeout"), ("measure", "out", "--limit"), ("tune", "m", "--timeout")]
)
def test_no_limit_in_seconds(smartmem, options, text):
    outcome = smartmem(*options, text, *WHERE)
    assert outcome.code == 2 and f"{text} is not a number of seconds between 0 and 1e+06" in outcome.err


@pytest.mark.parametrize("text", ["-1", "99999999999999999999"])
@pytest.mark.parametrize("command", [("tune", "m"), ("run", "m"), ("bench", "m"), ("measure", "out", *WHERE)])
def test_no_seed(smartmem, command, text):
    outcome = smartmem(*command, "--seed", text)
    assert outcome.code == 2 and f"{text} is not a number from 0 to 2147483647" in outcome.err


@pytest.mark.parametrize("text", ["-1", "nan", "inf"])
@pytest.mark.parametrize("command", [("verify", "m"), ("measure", "out", *WHERE)])
def test_no_tolerance(smartmem, command, text):
    outcome = smartmem(*command, "--rtol", text)
    assert outcome.code == 2 and f"{text} is not a number from 0 up" in outcome.err


@pytest.mark.parametrize("text", ["3-1", "3-1,0", "a", "1-"])
def test_no_cores(smartmem, text):
    outcome = smartmem("tune", "m", "--cores", text)
    assert outcome.code == 2 and f"{text} is no list of cores" in outcome.err

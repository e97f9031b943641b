# SPDX-License-Identifier: Apache-2.0
"""Targets by name, and what is said about unknown ones."""

import os

import pytest

from smartmem_tvm import UserError
from smartmem_tvm.deploy.target import host_target, parse_target


def test_the_host_uses_all_cores_it_may():
    target = host_target()
    assert target.kind.name == "llvm"
    assert int(target.attrs["num-cores"]) == len(os.sched_getaffinity(0))
    assert target.attrs["mcpu"]


@pytest.mark.parametrize("text", [None, "cpu", "llvm"])
def test_names_of_the_host(text):
    assert str(parse_target(text)) == str(host_target())


def test_a_target_of_tvms():
    assert parse_target('{"kind": "llvm", "num-cores": 3}').attrs["num-cores"] == 3


@pytest.mark.parametrize(
    ("text", "words"), [("gpu9000", "not known to TVM"), ("opencl", "opencl target"), ("cuda", "cuda target")]
)
def test_other_targets_are_refused_in_one_sentence(text, words):
    with pytest.raises(UserError) as caught:
        parse_target(text)
    message = str(caught.value)
    assert text in message and words in message and "use 'cpu'" in message
    assert "\n" not in message

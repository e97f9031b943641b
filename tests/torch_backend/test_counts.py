# SPDX-License-Identifier: Apache-2.0
"""Counts of what became of torch's graphs; nothing here needs torch."""

import logging
import sys
from threading import Thread
from types import SimpleNamespace

import pytest

from smartmem_tvm.torch_backend import Counts, counts, reset_counts
from smartmem_tvm.torch_backend.counts import count, left_to_torch


@pytest.fixture(autouse=True)
def from_zero(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    reset_counts()
    yield
    reset_counts()


def test_nothing_happened():
    assert counts() == Counts() == Counts(0, 0, 0, 0, 0, 0, {}, {})


def test_what_happened_is_counted():
    for event in ("compiled", "calls", "calls", "eager_calls", "recompiled"):
        count(event)
    assert counts() == Counts(compiled=1, recompiled=1, calls=2, eager_calls=1)


def test_reasons_are_one_line_and_the_most_frequent_comes_first():
    for reason in ("draws\n random numbers.", "takes no tensors", "takes no tensors"):
        left_to_torch(reason)
    found = counts()
    assert found.eager == 3
    assert list(found.reasons.items()) == [("takes no tensors", 2), ("draws random numbers", 1)]


def test_the_first_graph_that_is_left_is_a_warning(caplog):
    caplog.set_level(logging.INFO)
    for reason in ("one.", "two"):
        left_to_torch(reason)
    assert [(each.levelname, each.name) for each in caplog.records] == [
        ("WARNING", "smartmem_tvm.torch_backend"),
        ("INFO", "smartmem_tvm.torch_backend"),
    ]
    assert "not as kernels of smartmem: one. smartmem_tvm.torch_backend.counts() counts them all." in caplog.text
    reset_counts()
    left_to_torch("three")
    assert caplog.records[-1].levelname == "WARNING"


def test_breaks_of_graphs_are_torchs_own_count(monkeypatch):
    breaks = {"Data-dependent branch\n  Explanation: ...": 2, "": 1}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters={"graph_break": breaks}))
    assert counts().graph_breaks == {"Data-dependent branch": 2, "": 1}


def test_several_threads_count():
    threads = [Thread(target=lambda: [count("calls") for _ in range(1000)]) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert counts().calls == 4000

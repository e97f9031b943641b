# SPDX-License-Identifier: Apache-2.0
"""Requests to one model, several at a time."""

import os
import threading

import numpy as np
import pytest

from helpers import constant, module, op
from smartmem_tvm import UserError, compile
from smartmem_tvm.tune.host import most_threads


@pytest.fixture(scope="module")
def compiled():
    return compile(module(lambda x, y: op.nn.softmax(op.add(op.matmul(x, constant(64, 64)), y)), (4, 64), (4, 64)))


@pytest.fixture(scope="module")
def requests():
    return list(np.random.default_rng(0).standard_normal((40, 2, 4, 64)).astype("float32"))


def test_outputs_come_in_the_order_of_the_requests(compiled, requests):
    expected = [compiled.run(*each)[0] for each in requests]
    with compiled.streams(3, 1) as streams:
        assert all(np.array_equal(*pair) for pair in zip((y for (y,) in streams.map(map(tuple, requests))), expected))
        named = ({"x0": x, "x1": y} for x, y in requests)
        assert all(np.array_equal(*pair) for pair in zip((y for (y,) in streams.map(named)), expected))
        assert np.array_equal(streams.submit(requests[0][0], x1=requests[0][1]).result()[0], expected[0])


def test_each_thread_has_a_session_and_so_many_threads(compiled):
    import tvm

    ready = threading.Barrier(2)

    def look(session):
        ready.wait()
        return threading.get_ident(), session, tvm.runtime.num_threads()

    with compiled.streams(2, 2) as streams:
        found = [future.result() for future in [streams.call(look) for _ in range(2)]]
    assert len({thread for thread, _, _ in found}) == len({id(session) for _, session, _ in found}) == 2
    assert [count for _, _, count in found] == [2, 2]


def test_threads_are_shared_equally(compiled, monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "4")
    for count, share in ((1, 4), (2, 2), (3, 1), (most_threads(), 1)):
        with compiled.streams(count) as streams:
            assert (streams.count, streams.threads) == (count, share)


def test_an_error_belongs_to_its_request(compiled, requests):
    with compiled.streams(2, 1) as streams:
        wrong, right = streams.submit(requests[0][0]), streams.submit(*requests[0])
        with pytest.raises(UserError, match="'x1'"):
            wrong.result()
        assert np.array_equal(right.result()[0], compiled.run(*requests[0])[0])


@pytest.mark.parametrize(
    ("count", "threads", "words"),
    [
        (0, None, "0 is no number of streams"),
        (2, 0, "0 is no number of threads"),
        (2, 4 * (os.cpu_count() or 1), "too many for this machine"),
    ],
)
def test_numbers_that_make_no_sense(compiled, count, threads, words):
    with pytest.raises(UserError, match=words):
        compiled.streams(count, threads)

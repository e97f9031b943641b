# SPDX-License-Identifier: Apache-2.0
"""Memory in huge pages: which pages are asked for, and that the numbers stay."""

import mmap
from types import SimpleNamespace

import numpy as np
import pytest

from smartmem_tvm import huge_pages
from smartmem_tvm.huge_pages import PAGE, use_huge_pages, whole_pages


def test_only_pages_within_a_range_are_touched():
    random = np.random.default_rng(0)
    for _ in range(200):
        address, nbytes = int(random.integers(0, 8 * PAGE)), int(random.integers(0, 4 * PAGE))
        found = whole_pages(address, nbytes)
        inside = [page for page in range(13) if address <= page * PAGE and (page + 1) * PAGE <= address + nbytes]
        assert found == ((inside[0] * PAGE, len(inside) * PAGE) if inside else None), (address, nbytes)


@pytest.mark.parametrize("answer", [0, -1])
def test_what_the_system_is_asked_for(monkeypatch, answer):
    """Pages are collapsed only if huge ones are allowed; what is too small is left alone."""
    asked = []

    monkeypatch.setattr(huge_pages.ctypes, "CDLL", lambda _: SimpleNamespace(madvise=_Call(asked, answer)))
    use_huge_pages([(PAGE + 1, 3 * PAGE), (0, PAGE - 1)])
    want = [(2 * PAGE, 2 * PAGE, mmap.MADV_HUGEPAGE), (2 * PAGE, 2 * PAGE, 25)]
    assert asked == want[: 1 if answer else 2]


class _Call:
    """A function that notes its arguments."""

    def __init__(self, asked, answer):
        self.asked, self.answer = asked, answer

    def __call__(self, *given):
        self.asked.append(given)
        return self.answer


def test_numbers_stay():
    array = np.random.default_rng(0).standard_normal(3 * PAGE // 4).astype("float32")
    kept = array.copy()
    for _ in range(2):
        use_huge_pages([(array.ctypes.data, array.nbytes)])
        np.testing.assert_array_equal(array, kept)

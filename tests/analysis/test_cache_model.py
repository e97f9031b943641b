# SPDX-License-Identifier: Apache-2.0
"""The cache against one that is written down access by access."""

from collections import OrderedDict, defaultdict

import numpy as np
import pytest

from smartmem_tvm.analysis.cache_model import misses


def one_by_one(lines, size, ways, copies):
    sets = size // ways
    content = defaultdict(OrderedDict)
    missed = []
    for line, copy in zip(lines.tolist(), copies.tolist()):
        recent = content[copy, (line ^ (line // sets) ^ (line // sets**2)) % sets]
        missed.append(line not in recent)
        recent[line] = True
        recent.move_to_end(line)
        if len(recent) > ways:
            recent.popitem(last=False)
    return missed


@pytest.mark.parametrize(("size", "ways"), [(1, 1), (8, 8), (64, 4), (256, 16), (96, 3)])
@pytest.mark.parametrize("spread", [3, 50, 400])
@pytest.mark.parametrize("caches", [1, 5])
def test_random_accesses(size, ways, spread, caches):
    random = np.random.default_rng(size + spread)
    lines = np.cumsum(random.integers(-spread, spread + 1, 3000)) % 1000  # near what came before
    copies = random.integers(0, caches, 3000)
    got = misses(lines, size, ways, copies)
    assert got.tolist() == one_by_one(lines, size, ways, copies)
    assert 0 < got.sum() < len(got) or size == 1


def test_what_fits_is_missed_once():
    lines = np.tile(np.arange(64), 5)
    assert misses(lines, 64, 64).sum() == 64
    assert misses(lines, 64, 4).sum() == 64  # the sets are filled evenly
    assert misses(lines, 63, 63).all()  # the least recently used one goes just before it is needed


def test_a_stride_is_spread_over_the_sets():
    lines = np.tile(np.arange(0, 64 * 64, 64), 2)
    assert misses(lines, 256, 4).sum() == 64


def test_caches_of_several_cores_are_apart():
    lines, cores = np.tile(np.arange(8), 4), np.repeat([0, 1], 16)
    assert misses(lines, 8, 8).sum() == 8
    assert misses(lines, 8, 8, cores).sum() == 16


def test_no_accesses():
    assert misses(np.zeros(0, np.int64), 8, 8).shape == (0,)

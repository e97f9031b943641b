# SPDX-License-Identifier: Apache-2.0
"""Which tiles a model with items has, and which sizes of a list need no function of their own."""

import numpy as np
import pytest
from tvm.target import Target

from smartmem_tvm.analysis import item_cost
from smartmem_tvm.analysis.item_cost import cost, covers, tile_items, tiles
from smartmem_tvm.analysis.items import ItemWork
from smartmem_tvm.planner.tiles import cover

CONVOLUTIONS = ItemWork([], sums=[(100_000_000, 100_000), (1_000_000, 1_000_000)], kernels=5)
LINEAR = ItemWork([], sums=[(1_000_000, 1_000_000)] * 4, kernels=5)


def test_tiles_grow_until_weights_are_read_seldom_enough():
    assert tile_items(CONVOLUTIONS, 16) == [1, 2, 3]
    assert tile_items(ItemWork([], sums=CONVOLUTIONS.sums[:1], kernels=5), 16) == [1]
    assert tile_items(LINEAR, 7) == [1, 2, 3, 4, 6]
    assert tile_items(LINEAR, 1000) == [1, 2, 3, 4, 6, 8, 12, 16, 24]


def test_tiles_of_gpus_grow_until_launches_matter_little():
    one, large = (ItemWork([], sums=[each], kernels=k) for each, k in (((10**8, 10**5), 5), ((2 * 10**9, 10**7), 20)))
    assert tile_items(one, 1000, Target("cuda")) == tiles(48)
    assert tile_items(large, 64, Target("cuda")) == [1, 2, 3, 4, 6, 8, 12]


def test_sizes_that_smaller_ones_compute():
    assert covers(LINEAR, list(range(1, 9)), 1000) == {}
    assert covers(LINEAR, [64, 128, 32], 1000) == {64: (32, 32), 128: (32,) * 4}
    assert covers(LINEAR, [64, 128, 32], 1_000_000) == {}  # copies take too long
    convolutions = ItemWork([], sums=[(100_000_000, 100_000)], kernels=5)
    assert covers(convolutions, [4, 2, 1], 1000) == {2: (1, 1), 4: (1,) * 4}
    assert covers(convolutions, [3, 5, 8], 1000) == {8: (5, 3)}


def test_sizes_keep_functions_where_many_cores_wake_for_each_kernel():
    work = ItemWork([], sums=[(100_000_000, 100_000)], kernels=5)
    few, many = (Target({"kind": "llvm", "num-cores": cores}) for cores in (1, 64))
    assert covers(work, [1, 2, 4], 1000, few) == {2: (1, 1), 4: (1,) * 4}
    assert covers(work, [1, 2, 4], 1000, many) == {}


@pytest.mark.parametrize("seed", range(5))
def test_drawn_lists(seed):
    """Each size has as many items as its tiles, which are sizes with functions, and takes at most 1.02 as long."""
    random = np.random.default_rng(seed)
    sums = [tuple(map(int, 10 ** random.uniform(3, 8, 2))) for _ in range(4)]
    work = ItemWork([], sums=sums, kernels=int(random.integers(1, 50)))
    counts = sorted(set(map(int, random.integers(1, 40, 10))))
    found = covers(work, counts, 100)
    for items, parts in found.items():
        assert sum(parts) == items and set(parts) <= set(counts) - found.keys()
        assert sum(cost(work, each) for each in parts) <= item_cost.MORE * cost(work, items)
    assert set(covers(work, counts, 100)) <= set(counts) - {min(counts)}


@pytest.mark.parametrize("seed", range(5))
def test_drawn_tiles(seed):
    """Of all ways none takes less time."""
    random = np.random.default_rng(seed)
    costs = {int(items): int(random.integers(1, 100)) for items in random.choice(range(1, 7), 3, replace=False)}

    def least(count, exact):
        if count <= 0:
            return 0 if count == 0 or not exact else float("inf")
        return min(value + least(count - items, exact) for items, value in costs.items())

    for count in range(1, 9):
        for exact in (False, True):
            parts = cover(count, costs, exact)
            if parts is None:
                assert exact and least(count, True) == float("inf")
                continue
            assert sum(costs[each] for each in parts) == least(count, exact)
            assert sum(parts) == count if exact else sum(parts) >= count

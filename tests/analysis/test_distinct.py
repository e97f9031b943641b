# SPDX-License-Identifier: Apache-2.0
"""How many different places index maps reach, against an enumeration by sets."""

import itertools

import pytest
from tvm import tirx

from smartmem_tvm.analysis import distinct
from smartmem_tvm.analysis.distinct import Points, conjuncts, count, count_together, is_index
from smartmem_tvm.ir.index_map import evaluate

I, J, K = (tirx.Var(name, "int64") for name in "ijk")
EXTENTS = {I: 7, J: 5, K: 4}


def by_sets(points: Points, extents) -> set:
    found = set()
    for values in itertools.product(*map(range, extents.values())):
        at = dict(zip(extents, values))
        indices = tuple(int(evaluate(index, at)) for index, _ in points.dims)
        inside = all(size is None or 0 <= i < size for i, (_, size) in zip(indices, points.dims))
        if inside and all(evaluate(each, at) for each in points.conditions):
            found.add(indices)
    return found


MAPS = {
    "all": Points(((I, 7), (J, 5))),
    "a part": Points(((I, 3),)),
    "twice the same": Points(((I, 7), (J, 5), (I, 7))),
    "a window": Points(((I + K - 1, 7), (J, 5))),
    "a window that is also read by its taps": Points(((I + K - 1, 7), (K, 4))),
    "a stride": Points(((I * 2, 9), (J * 2 + K, 12))),
    "nothing": Points(),
    "one place": Points(((tirx.const(2, "int64"), 3),)),
    "outside": Points(((tirx.const(3, "int64"), 3), (I, 7))),
    "a reshape": Points(((tirx.floordiv(I * 5 + J, 7), 5), (tirx.floormod(I * 5 + J, 7), 7))),
    "half of a reshape": Points(((tirx.floordiv(I * 5 + J, 7), 5),)),
    "every other point": Points(((tirx.floordiv(I + K, 2), 7), (K, None)), (tirx.floormod(I + K, 2).equal(0),)),
    "a condition alone": Points(((J, 5),), (I < 3,)),
    "conditions that never hold": Points(((J, 5),), (I > 6,)),
    "far apart": Points(((I * 100000 + J, None), (J * 70000 - K, None), (K + I, None))),
}


@pytest.mark.parametrize("points", MAPS.values(), ids=MAPS)
def test_different_places_are_counted(points):
    assert count(points, EXTENTS) == len(by_sets(points, EXTENTS))


def test_a_large_space_counts_each_place_within_the_sizes(monkeypatch):
    monkeypatch.setattr(distinct, "_MOST_POINTS", 10)
    assert count(MAPS["a window"], EXTENTS) == 7 * 5  # 7 * 4 points for 7 places
    assert count(Points(((I + K, None),)), EXTENTS) == 7 * 4


def test_maps_into_one_tensor_are_joined():
    several = [(Points(((I, 10), (J, 5))), EXTENTS), (Points(((I + 3, 10), (J, 5))), EXTENTS)]
    assert count_together(several, (10, 5)) == 50
    assert count_together(several[:1], (10, 5)) == 35
    even, odd = (Points(((I * 2 + n, 12),)) for n in (0, 1))
    assert count_together([(even, EXTENTS), (odd, EXTENTS), (even, EXTENTS)], (12,)) == 12


def test_maps_that_are_not_enumerated_count_one_by_one(monkeypatch):
    unknown = Points(((I, 7),), exact=False)
    assert count_together([(unknown, EXTENTS), (Points(((I, 9),)), EXTENTS)], (9,)) == 9
    assert count_together([(unknown, EXTENTS), (Points(((I, 30),)), EXTENTS)], (30,)) == 14
    monkeypatch.setattr(distinct, "_MOST_POINTS", 3)
    assert count_together([(Points(((I, 30),)), EXTENTS)] * 2, (30,)) == 14


def test_parts_of_a_condition():
    assert len(conjuncts(tirx.all(I < 3, J < 2, K > 0))) == 3
    assert is_index(tirx.all(I < 3, tirx.floormod(J, 2).equal(1)))
    x = tirx.decl_buffer([7], "int64", "x")
    assert not is_index(x[I]) and not is_index(tirx.sqrt(tirx.const(2.0, "float32")))

# SPDX-License-Identifier: Apache-2.0
"""How many different places index maps reach, against an enumeration by sets."""

import itertools

import pytest
from tvm import tirx

from smartmem_tvm.analysis import distinct
from smartmem_tvm.analysis.distinct import Points, conjuncts, count, count_together, is_index
from smartmem_tvm.ir.index_map import evaluate

A, B, C = (tirx.Var(name, "int64") for name in "abc")
EXTENTS = {A: 7, B: 5, C: 4}


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
    "all": Points(((A, 7), (B, 5))),
    "a part": Points(((A, 3),)),
    "twice the same": Points(((A, 7), (B, 5), (A, 7))),
    "a window": Points(((A + C - 1, 7), (B, 5))),
    "a window that is also read by its taps": Points(((A + C - 1, 7), (C, 4))),
    "a stride": Points(((A * 2, 9), (B * 2 + C, 12))),
    "nothing": Points(),
    "one place": Points(((tirx.const(2, "int64"), 3),)),
    "outside": Points(((tirx.const(3, "int64"), 3), (A, 7))),
    "a reshape": Points(((tirx.floordiv(A * 5 + B, 7), 5), (tirx.floormod(A * 5 + B, 7), 7))),
    "half of a reshape": Points(((tirx.floordiv(A * 5 + B, 7), 5),)),
    "every other point": Points(((tirx.floordiv(A + C, 2), 7), (C, None)), (tirx.floormod(A + C, 2).equal(0),)),
    "a condition alone": Points(((B, 5),), (A < 3,)),
    "conditions that never hold": Points(((B, 5),), (A > 6,)),
    "far apart": Points(((A * 100000 + B, None), (B * 70000 - C, None), (C + A, None))),
}


@pytest.mark.parametrize("points", MAPS.values(), ids=MAPS)
def test_different_places_are_counted(points):
    assert count(points, EXTENTS) == len(by_sets(points, EXTENTS))


def test_a_large_space_counts_each_place_within_the_sizes(monkeypatch):
    monkeypatch.setattr(distinct, "_MOST_POINTS", 10)
    assert count(MAPS["a window"], EXTENTS) == 7 * 5  # 7 * 4 points for 7 places
    assert count(Points(((A + C, None),)), EXTENTS) == 7 * 4


def test_maps_into_one_tensor_are_joined():
    several = [(Points(((A, 10), (B, 5))), EXTENTS), (Points(((A + 3, 10), (B, 5))), EXTENTS)]
    assert count_together(several, (10, 5)) == 50
    assert count_together(several[:1], (10, 5)) == 35
    even, odd = (Points(((A * 2 + n, 12),)) for n in (0, 1))
    assert count_together([(even, EXTENTS), (odd, EXTENTS), (even, EXTENTS)], (12,)) == 12


def test_maps_that_are_not_enumerated_count_one_by_one(monkeypatch):
    unknown = Points(((A, 7),), exact=False)
    assert count_together([(unknown, EXTENTS), (Points(((A, 9),)), EXTENTS)], (9,)) == 9
    assert count_together([(unknown, EXTENTS), (Points(((A, 30),)), EXTENTS)], (30,)) == 14
    monkeypatch.setattr(distinct, "_MOST_POINTS", 3)
    assert count_together([(Points(((A, 30),)), EXTENTS)] * 2, (30,)) == 14


def test_parts_of_a_condition():
    assert len(conjuncts(tirx.all(A < 3, B < 2, C > 0))) == 3
    assert is_index(tirx.all(A < 3, tirx.floormod(B, 2).equal(1)))
    x = tirx.decl_buffer([7], "int64", "x")
    assert not is_index(x[A]) and not is_index(tirx.sqrt(tirx.const(2.0, "float32")))

# SPDX-License-Identifier: Apache-2.0
"""Storage orders: the paper's example, ties, tensors that stay as they are, demands that nothing can serve."""

import itertools

import pytest

from smartmem_tvm.planner.storage_order import Demand, as_stored, storage_order


def demand(*dims, elements=1, reader="r"):
    return Demand(frozenset(dims), elements, reader)


def test_the_paper_s_example():
    """Figure 4: Reduce' wants D1, Reduce and Conv want D3. A texture serves all three, a buffer the latter two."""
    wanted = [demand(2, reader="Reduce"), demand(0, reader="Reduce'"), demand(2, reader="Conv")]
    texture = storage_order((8, 4, 12), wanted, 2)
    assert texture.fast == (2, 0) and texture.order == (1, 0, 2) and not texture.unserved
    buffer = storage_order((8, 4, 12), wanted, 1)
    assert buffer.fast == (2,) and buffer.order == (0, 1, 2)
    assert [each.reader for each in buffer.unserved] == ["Reduce'"]


def test_whoever_reads_most_comes_first():
    chosen = storage_order((4, 5, 6), [demand(1, elements=10), demand(2, elements=9)], 1)
    assert chosen.order == (0, 2, 1) and chosen.fast == (1,)


def test_of_equals_the_innermost_stays():
    assert storage_order((4, 5, 6), [demand(1), demand(2)], 1).order == (0, 1, 2)
    assert storage_order((4, 5, 6), [demand(0, 1, 2)], 1).order == (0, 1, 2)


def test_one_dimension_may_serve_everybody():
    chosen = storage_order((4, 5, 6), [demand(0, 2), demand(0, 1)], 1)
    assert chosen.fast == (0,) and not chosen.unserved


def test_no_demand_no_change():
    assert storage_order((4, 5), [], 2).order == (0, 1)
    assert as_stored((), []).fast == ()


def test_dimensions_of_one_element_are_not_what_lies_innermost():
    assert not as_stored((4, 5, 1), [demand(1)]).unserved
    assert as_stored((1, 1), []).fast == (1,)


def test_a_texture_as_it_lies_in_memory():
    """Columns and the texel are contiguous; of an image of one column it is the rows."""
    assert as_stored((4, 3, 8, 4), [demand(2), demand(3)], 2).fast == (3, 2)
    assert as_stored((4, 3, 1, 4), [], 2).fast == (3, 1)
    assert [each.dims for each in as_stored((4, 3, 8, 4), [demand(1), demand(2)], 2).unserved] == [{1}]


@pytest.mark.parametrize("fast_axes", [1, 2, 3])
def test_never_worse_than_what_was_there(fast_axes):
    """Every set of three demands over three dimensions: a permutation, and no fewer served than in row-major order."""
    some = [frozenset(c) for n in (1, 2) for c in itertools.combinations(range(3), n)]
    for sets in itertools.product(some, repeat=3):
        wanted = [Demand(dims, 1 + n, str(n)) for n, dims in enumerate(sets)]
        chosen = storage_order((3, 4, 5), wanted, fast_axes)
        assert sorted(chosen.order) == [0, 1, 2] and len(chosen.fast) <= fast_axes
        assert chosen.order[-1] == chosen.fast[0]
        now = as_stored((3, 4, 5), wanted)
        if fast_axes == 1:
            best = max(sum(d.elements for d in wanted if dim in d.dims) for dim in range(3))
            assert sum(d.elements for d in chosen.served) == best
        assert sum(d.elements for d in chosen.served) >= sum(d.elements for d in now.served)
        assert {*chosen.served, *chosen.unserved} == set(wanted)

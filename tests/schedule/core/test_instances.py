# SPDX-License-Identifier: Apache-2.0
"""Expressions at many places: the same as when each is simplified by itself."""

from itertools import product

import pytest
import tvm_ffi
from tvm import ir, tirx

from smartmem_tvm.ir.kernel import substitute
from smartmem_tvm.schedule.core.instances import Alike, Instances
from smartmem_tvm.schedule.core.nest import Scope, fresh, index


class Counting(Scope):
    """Counts the indices that it simplifies."""

    indices = 0

    def index(self, expr):
        self.indices += 1
        return super().index(expr)


EXTENTS = {"y": 4, "p": 3, "q": 1}


def padded(image, table, y, p, q, c):
    at = y * index(2) + p - index(1)
    inside = tirx.And(at >= index(0), at < index(13))
    return tirx.if_then_else(inside, image[c, at, q], tirx.const(0, "float32")) * table[p, c]


def gathered(image, table, y, p, q, c):
    row = tirx.Cast("int64", table[p * index(1) + q, c])
    return image[c, row, y + p] + tirx.exp(image[c, y + q, index(0)])


def nested(image, table, y, p, q, c):
    first = tirx.if_then_else(p < index(2), image[c, y, q], image[c, p, q])
    return tirx.if_then_else(y + p < index(1), tirx.const(1, "float32"), first)


def plain(image, table, y, p, q, c):
    return image[c, y, p]


@pytest.mark.parametrize("build", [padded, gathered, nested, plain])
def test_the_same_as_each_place_by_itself(build):
    image = tirx.decl_buffer([index(n) for n in (5, 13, 7)], "float32", "image")
    table = tirx.decl_buffer([index(3), index(5)], "float32", "table")
    y, p, q, c, thread = (fresh(name) for name in ("y", "p", "q", "c", "thread"))
    expr, scope = build(image, table, y, p, q, c), Scope()
    scope.analyzer.bind(thread, ir.Range(index(0), index(5)))
    instances, found = Instances(scope, expr, [y, p, q]), []
    for key in product(*map(range, EXTENTS.values())):
        where = {c: thread, **dict(zip((y, p, q), map(index, key), strict=True))}
        found.append(instances.at(key, lambda where=where: where))
        assert tvm_ffi.structural_equal(found[-1], scope.simplify(substitute(expr, where)))
    for one, other in product(found, repeat=2):
        assert tvm_ffi.structural_equal(one, other) == (one is other)


def test_an_index_is_worked_out_once_for_all_places_that_have_it_in_common():
    image = tirx.decl_buffer([index(4), index(3)], "float32", "image")
    y, p, scope = fresh("y"), fresh("p"), Counting()
    instances = Instances(scope, image[y, p], [y, p])
    for key in product(range(4), range(3)):
        instances.at(key, lambda key=key: {y: index(key[0]), p: index(key[1])})
    assert scope.indices == 4 + 3


def test_what_two_expressions_have_in_common_is_the_same_object():
    image = tirx.decl_buffer([index(8)], "float32", "image")
    y, p, alike = fresh("y"), fresh("p"), Alike()
    one, other = (Instances(Scope(), image[at], [y, p], alike) for at in (y + p, p * index(2) + y))
    at = [each.at((1, p_at), lambda p_at=p_at: {y: index(1), p: index(p_at)}) for each, p_at in ((one, 2), (other, 1))]
    assert at[0] is at[1]


def test_places_of_a_window_with_the_same_sums_are_the_same_place():
    image = tirx.decl_buffer([index(16), index(8)], "float32", "image")
    y, p, q, asked = fresh("y"), fresh("p"), fresh("q"), []
    expr = tirx.if_then_else(y * 2 + p < index(5), image[y * 2 + p - index(1), q // index(2)], tirx.const(0, "float32"))
    instances, found = Instances(Scope(), expr, [y, p, q]), {}
    for key in product(range(4), range(3), range(4)):
        where = dict(zip((y, p, q), map(index, key), strict=True))
        made = instances.at(key, lambda where=where: asked.append(where) or where)
        assert tvm_ffi.structural_equal(made, Scope().simplify(substitute(expr, where)))
        found.setdefault((2 * key[0] + key[1], key[2]), made)
        assert made is found[2 * key[0] + key[1], key[2]]
    rows, columns = 9, 4
    # A condition and an index for each row, an index for each column, and for each place what they are put into.
    assert len(asked) <= 2 * rows + columns + len(found)

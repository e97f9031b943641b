# SPDX-License-Identifier: Apache-2.0
"""Axes that stages share: read off the buffers between them."""

import pytest
from tvm import te, topi

from smartmem_tvm.ir.axes import axes_of, shared_rows, without_unit_iterators
from smartmem_tvm.ir.kernel import Opaque, parse


def kernel_of(*tensors):
    return without_unit_iterators(parse(te.create_prim_func(list(tensors))))


def last_reduction(kernel):
    return [stage for stage in kernel.stages if stage.reduction][-1]


def softmax(transposed: bool):
    """A softmax over the last axis, written with its other axes exchanged or not."""
    x, k = te.placeholder((3, 4, 5), name="x"), te.reduce_axis((0, 5), "k")
    total = te.compute((3, 4), lambda i, j: te.sum(te.exp(x[i, j, k]), k), name="total")
    if transposed:
        return kernel_of(x, te.compute((4, 3, 5), lambda j, i, k: te.exp(x[i, j, k]) / total[i, j], name="out"))
    return kernel_of(x, te.compute((3, 4, 5), lambda i, j, k: te.exp(x[i, j, k]) / total[i, j], name="out"))


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_are_read_off_the_buffers_between_stages(transposed):
    kernel = softmax(transposed)
    rows = shared_rows(kernel, last_reduction(kernel))
    total, out = kernel.stages
    assert [total.extents[v] for v in rows.rows_of(total)] == [out.extents[v] for v in rows.rows_of(out)] == [3, 4]
    assert rows.inner(total) == () and [out.extents[v] for v in rows.inner(out)] == [5]


def test_both_ways_find_the_same_axes():
    x = te.placeholder((6, 7), name="x")
    kernel = kernel_of(x, topi.nn.softmax(x))
    axes, extents = axes_of(kernel)
    rows = shared_rows(kernel, last_reduction(kernel))
    (row,) = {axes[s][v] for s in kernel.stages for v in rows.rows_of(s)}
    assert extents[row] == 6 and all(len(rows.rows_of(s)) == 1 for s in kernel.stages)


def test_maps_are_allowed_within_a_row_only():
    x, k = te.placeholder((6, 8), name="x"), te.reduce_axis((0, 8), "k")
    turned = te.compute((6, 8), lambda i, j: x[i, j] + 1.0, name="turned")
    total = te.compute((6,), lambda i: te.sum(turned[i, 7 - k], k), name="total")
    kernel = kernel_of(x, te.compute((6, 8), lambda i, j: turned[i, j] / total[i], name="out"))
    rows = shared_rows(kernel, last_reduction(kernel))
    assert len(rows.shared) == 1
    with pytest.raises(Opaque, match="through a map"):
        axes_of(kernel)
    crossed = kernel_of(x, te.compute((6, 8), lambda i, j: turned[i, j] / total[5 - i], name="out"))
    with pytest.raises(Opaque, match="rows"):
        shared_rows(crossed, last_reduction(crossed))

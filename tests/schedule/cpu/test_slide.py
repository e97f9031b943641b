# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few channels against numpy: strides, dilation, groups, sizes that tiles do not divide."""

from itertools import pairwise

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from covering import singles
from smartmem_tvm.schedule import CpuParams
from smartmem_tvm.schedule.core.decisions import deciding
from smartmem_tvm.schedule.cpu.slide import Slide
from vector_products import vector_products

# images, channels, height, width; channels of the result, groups; window, stride, padding, dilation
SHAPES = [
    (1, 4, 7, 7, 4, 1, 3, 1, 0, 1),
    (1, 32, 14, 14, 32, 4, 3, 1, 0, 1),
    (2, 6, 11, 17, 15, 3, 5, 1, 0, 1),
    (1, 8, 13, 29, 10, 2, 3, 2, 0, 1),
    (1, 3, 20, 20, 32, 1, 7, 3, 0, 1),
    (3, 4, 9, 9, 6, 2, 3, 1, 0, 2),
    (1, 6, 16, 15, 4, 2, 3, 2, 0, 3),
    (1, 64, 8, 4, 64, 8, 3, 1, 0, 1),
]
PADDED = [
    (1, 32, 14, 14, 32, 4, 3, 1, 1, 1),
    (1, 16, 15, 15, 24, 8, 3, 2, 1, 1),
    (2, 6, 9, 31, 9, 3, 5, 1, 2, 1),
    (1, 3, 23, 17, 5, 1, 7, 3, 3, 1),
    (1, 4, 7, 7, 4, 2, 3, 1, 2, 2),
    (1, 6, 2, 13, 6, 3, 3, 1, 1, 1),
    (1, 4, 13, 2, 4, 2, 3, 1, 3, 1),
    (1, 5, 1, 1, 4, 1, 3, 1, 2, 1),
]


def convolution(shape, before=False):
    """A convolution with what usually follows it: a sum per channel, then a maximum; these too `before` it."""
    n, c, h, w, out, groups, size, stride, pad, dilation = shape
    x, k = te.placeholder((n, c, h, w), name="x"), te.placeholder((out, c // groups, size, size), name="k")
    b = te.placeholder((out,), name="b")
    c_ = te.placeholder((c,), name="c")

    def ahead(i, f, y, z):
        return tirx.max(x[i, f, y, z] + c_[f], tirx.const(0.0, "float32"))

    seen = te.compute(x.shape, ahead) if before else x
    total = topi.nn.group_conv2d_nchw(seen, k, stride, pad, dilation, groups)
    result = te.compute(total.shape, lambda i, f, y, z: tirx.max(total[i, f, y, z] + b[f], tirx.const(0.0, "float32")))

    def reference(x, k, b, c_=None):
        x = np.maximum(x + c_[:, None, None], 0) if before else x
        reach = dilation * (size - 1) + 1
        x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        seen = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), axis=(2, 3))
        seen = seen[:, :, ::stride, ::stride, ::dilation, ::dilation]
        seen = seen.reshape(n, groups, c // groups, *seen.shape[2:])
        total = np.einsum("ngiyzpq,goipq->ngoyz", seen, k.reshape(groups, -1, *k.shape[1:]))
        return np.maximum(total.reshape(n, out, *total.shape[3:]) + b[:, None, None], 0)

    return [x, k, b, *([c_] if before else [])], result, reference


@pytest.mark.parametrize("shape", SHAPES)
def test_results(check, shape):
    check(*convolution(shape), "Slide")


@pytest.mark.parametrize(("shape", "lanes"), singles(PADDED, [4, 8, 16]))
def test_a_padded_picture_is_copied_by_each_task(check, shape, lanes):
    """With what is computed before it; no padded copy of all of it is in memory."""
    inputs, output, reference = convolution(shape, before=True)
    check(inputs, output, reference, "Slide")
    scheduled = check(inputs, output, reference, "Slide", params=CpuParams(lanes=lanes, cores=8, serial_below=1))
    outermost = scheduled.body.block
    assert not outermost.alloc_buffers and "band" in scheduled.script()


def test_what_is_padded_may_be_read_by_the_epilogue_too(check):
    x, k = te.placeholder((1, 4, 9, 9), name="x"), te.placeholder((4, 4, 3, 3), name="k")
    padded = topi.nn.pad(x, [0, 0, 1, 1], name="padded")
    total = topi.nn.conv2d_nchw(padded, k, 1, 0, 1)
    output = te.compute(total.shape, lambda n, f, y, z: total[n, f, y, z] + padded[n, f, y + 1, z + 1])

    def reference(x, k):
        seen = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        seen = np.lib.stride_tricks.sliding_window_view(seen, (3, 3), axis=(2, 3))
        return np.einsum("niyzpq,fipq->nfyz", seen, k) + x

    check([x, k], output, reference, "Slide")


@pytest.mark.parametrize(("pad", "stride"), singles([(0, 1, 1), (1, 0, 0), (2, 1, 0), (1, 1, 1)], [1, 2]))
def test_padding_in_another_dimension_than_lines_and_columns(check, pad, stride):
    x, k = te.placeholder((1, 3, 5, 7, 9), name="x"), te.placeholder((4, 3, 3, 3, 3), name="k")
    output = topi.nn.conv3d_ncdhw(x, k, stride, [*pad, *pad], 1, 1)

    def reference(x, k):
        seen = np.pad(x, ((0, 0), (0, 0), *((each, each) for each in pad)))
        seen = np.lib.stride_tricks.sliding_window_view(seen, (3, 3, 3), axis=(2, 3, 4))
        return np.einsum("nizyxopq,fiopq->nfzyx", seen[:, :, ::stride, ::stride, ::stride], k)

    check([x, k], output, reference, "InSequence" if pad[0] else "Slide")


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("shape", [(1, 16, 56, 56, 32, 2, 3, 2, 1, 1), (1, 16, 7, 7, 16, 1, 3, 1, 1, 1)])
def test_sums_of_a_copy_are_whole_vectors_in_registers(mcpu, shape):
    """Also behind the last line, where what is computed in vain costs less than a few lanes by themselves."""
    inputs, output, _ = convolution(shape)
    lines, products, register = vector_products(Slide(), te.create_prim_func([*inputs, output]), mcpu)
    assert len(products) >= 8 and all(register in lines[n] for n in products)
    runs = (lines[first:after] for first, after in pairwise(products) if after - first < 12)
    assert not any("rsp" in line and "vmov" in line and register in line for run in runs for line in run)


def test_lines_are_chosen_by_what_they_cost():
    """Few of them copy some lines twice, many leave the cache; the last vector of some is computed in vain."""
    params = CpuParams(cores=1, tasks_per_core=1)
    shapes = [(1, 32, 112, 112, 32, 1, 3, 2, 1, 1), (1, 16, 14, 14, 16, 1, 3, 1, 1, 1)]
    found = []
    for shape in shapes:
        inputs, output, _ = convolution(shape)
        func = te.create_prim_func([*inputs, output])
        with deciding(func) as taken:
            Slide(params).apply(func, tvm.target.Target("llvm"))
        found.append(taken[0].values["lines"])
    assert 2 < found[0] < 28 and found[1] >= 7


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]])
def test_other_vectors_and_lines_in_tasks(check, shape, lanes):
    """Few groups and many cores: each task has some of the lines."""
    check(*convolution(shape), "Slide", params=CpuParams(lanes=lanes, cores=8, serial_below=1))


def test_strided_pictures_of_long_lines_slide_with_more_rows(check):
    """Packing would gather each element for each place of the window; short lines compute too much in vain."""
    check(*convolution((1, 2, 5, 61, 65, 1, 3, 2, 0, 1)), "Slide")
    check(*convolution((1, 2, 5, 17, 65, 1, 3, 2, 0, 1)), "Matmul")
    check(*convolution((1, 2, 5, 61, 129, 1, 3, 2, 0, 1)), "Matmul")


def test_nothing_is_packed(check):
    """The only scratch of a convolution without stride and padding is that of its sums."""
    text = check(*convolution(SHAPES[1]), "Slide").script()
    assert "sums" in text and "right" not in text and "band" not in text
    assert "band" in check(*convolution(SHAPES[3]), "Slide").script()


def test_many_channels_are_a_matmul(check):
    check(*convolution((1, 8, 9, 9, 33, 1, 3, 1, 0, 1)), "Matmul")


@pytest.mark.parametrize("size, stride", [(1, 1), (3, 3)])
def test_windows_that_do_not_overlap_are_a_matmul(check, size, stride):
    check(*convolution((1, 8, 9, 9, 16, 1, size, stride, 0, 1)), "Matmul")


def test_reductions_in_the_picture_that_run_backwards_are_packed(check):
    """A true convolution, with the window turned round, walks against the memory."""
    x, k = te.placeholder((1, 4, 9, 9), name="x"), te.placeholder((8, 4, 3, 3), name="k")
    i, p, q = (te.reduce_axis((0, extent), name) for extent, name in ((4, "i"), (3, "p"), (3, "q")))
    output = te.compute(
        (1, 8, 7, 7),
        lambda n, f, y, z: te.sum(x[n, i, y + 2 - p, z + 2 - q] * k[f, i, p, q], [i, p, q]),
    )

    def reference(x, k):
        seen = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[..., ::-1, ::-1]
        return np.einsum("niyzpq,fipq->nfyz", seen, k)

    check([x, k], output, reference, "Matmul")

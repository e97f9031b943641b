# SPDX-License-Identifier: Apache-2.0
"""Matmul and convolution schedules against numpy: remainders of every kind, views, prologues, epilogues."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.ir.walk import collect, stores
from smartmem_tvm.schedule import CpuParams, Matmul
from smartmem_tvm.schedule.core.contraction import contraction_of
from smartmem_tvm.schedule.core.expressions import has_select
from smartmem_tvm.schedule.core.reduction import reduction_of
from smartmem_tvm.schedule.cpu.matmul_plan import MatmulPlan
from smartmem_tvm.schedule.cpu.tile import best_tile, fits, narrow_rows, row_tiles
from vector_products import vector_products


def f32(value):
    return tirx.const(value, "float32")


def matmul(rows, depth, columns, transposed=False):
    a = te.placeholder((rows, depth), name="a")
    b = te.placeholder((columns, depth) if transposed else (depth, columns), name="b")
    k = te.reduce_axis((0, depth), "k")
    right = (lambda k, j: b[j, k]) if transposed else (lambda k, j: b[k, j])
    return [a, b], te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * right(k, j), k))


@pytest.mark.parametrize("depth", [3, 4, 12, 20, 33, 64])
def test_a_left_operand_that_is_computed_is_copied_in_vectors(check, depth):
    """Channels that are scaled before a product: few of them, which LLVM would gather from many pixels."""
    x, y, scale = (te.placeholder(s, name=n) for n, s in (("x", (150, depth)), ("y", (150, depth)), ("s", (depth,))))
    w, k = te.placeholder((depth, 24), name="w"), te.reduce_axis((0, depth), "k")
    left = te.compute((150, depth), lambda i, k: tirx.max(x[i, k] * scale[k] + y[i, k], f32(0)))
    output = te.compute((150, 24), lambda i, j: te.sum(left[i, k] * w[k, j], k))
    func = check([x, y, scale, w], output, lambda x, y, s, w: np.maximum(x * s + y, 0) @ w, "Matmul")
    loops = [loop for loop in collect(func.body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
    assert any(each.buffer.name == "left" for loop in loops for each in stores(loop)) or depth < 4


@pytest.mark.parametrize(("first", "second"), [(8, 8), (5, 16), (1, 7), (20, 33)])
def test_each_of_joined_tensors_is_copied_in_vectors(check, first, second):
    """Each has a line of its own, of which nothing is asked; what is added to both has one line."""
    parts = [te.placeholder((150, n), name=name) for name, n in (("x", first), ("y", second))]
    depth = first + second
    z, w = te.placeholder((150, depth), name="z"), te.placeholder((depth, 24), name="w")
    k = te.reduce_axis((0, depth), "k")

    def left(i, k):
        return tirx.if_then_else(k < first, parts[0][i, k], parts[1][i, k - first]) + z[i, k]

    output = te.compute((150, 24), lambda i, j: te.sum(left(i, k) * w[k, j], k))
    func = check([*parts, z, w], output, lambda x, y, z, w: (np.concatenate([x, y], 1) + z) @ w, "Matmul")
    copies = [store for store in stores(func.body) if store.buffer.name == "left"]
    assert copies and not any(has_select(store.value) for store in copies)


@pytest.mark.parametrize("dtype", ["float64", "int32", "float16"])
def test_other_element_types(check, dtype):
    a, b = te.placeholder((37, 21), dtype, name="a"), te.placeholder((21, 45), dtype, name="b")
    k = te.reduce_axis((0, 21), "k")
    wide = "float32" if dtype == "float16" else dtype
    output = te.compute((37, 45), lambda i, j: te.sum(a[i, k].astype(wide) * b[k, j].astype(wide), k))
    draw = np.random.default_rng(2)
    check(
        [a, b],
        output,
        lambda a, b: a.astype(wide) @ b.astype(wide),
        "Matmul",
        draw=lambda t: draw.integers(-4, 5, [int(d) for d in t.shape]),
    )


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512"])
def test_the_tile_stays_in_registers(mcpu):
    """The inner loop of a built kernel multiplies in full vectors and spills none of them."""
    inputs, output = matmul(96, 64, 96)
    lines, products, register = vector_products(Matmul(), te.create_prim_func([*inputs, output]), mcpu)
    assert len(products) >= 8 and all(register in lines[n] for n in products)
    assert not any("rsp" in line and "vmov" in line for line in lines[products[0] : products[-1]])


def test_deep_and_wide_products(check):
    """Chunks are bounded by the cache: a deep product has short row chunks."""
    for shape in ((130, 900, 70), (40, 30, 900)):
        inputs, output = matmul(*shape)
        check(inputs, output, np.matmul, "Matmul")


@pytest.mark.each_value
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("shape", [(37, 240, 96), (130, 1000, 70), (61, 359, 45), (300, 512, 64)])
def test_deep_products_of_weights_in_panels_are_added_up_in_parts(check, shape, lanes):
    """With an epilogue, chunks of rows and of columns, a narrower panel at the end, and a shorter part."""
    rows, depth, columns = shape
    params = CpuParams(
        lanes=lanes, cores=3, serial_below=1, tile_rows=(6,), tile_vectors=(2,), panel_bytes=4 * 2 * lanes * 100
    )
    width, k = 2 * lanes, te.reduce_axis((0, depth), "k")
    a = te.placeholder((rows, depth), name="a")
    b = te.placeholder((-(-columns // width), depth, width), name="b")
    total = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[j // width, k, j % width], k), name="total")
    plan = with_rows(rows, ([a, b], total), params)
    assert plan.in_panels and plan.depth_parts == -(-depth // 100) > 2

    def reference(a, b):
        return np.maximum(a @ b.swapaxes(0, 1).reshape(depth, -1)[:, :columns] + 0.5, 0)

    check([a, b], topi.nn.relu(topi.add(total, f32(0.5))), reference, "Matmul", params=params)


def test_the_tile_of_a_product_in_parts_is_that_of_a_panel_that_stays_near():
    params = CpuParams(lanes=16, registers=32)
    deep, near = (with_rows(128, matmul(128, depth, 1024), params) for depth in (16384, 1024))
    assert deep.tile == near.tile and deep.depth_parts == 16 and near.depth_parts == 1


def test_a_product_of_few_rows_reads_its_weights_once():
    params = CpuParams(panel_bytes=4 * 64 * 24)
    assert with_rows(3, matmul(3, 4000, 64), params).depth_parts == 1
    assert with_rows(64, matmul(64, 4000, 3), params).depth_parts > 1


@pytest.mark.parametrize("pixels", [(6, 8), (7, 7), (1, 5)])
def test_channels_first_result_of_a_channels_last_product(check, pixels):
    high, wide = pixels
    a, b = te.placeholder((high, wide, 40), name="a"), te.placeholder((40, 24), name="b")
    k = te.reduce_axis((0, 40), "k")
    total = te.compute((24, high, wide), lambda c, y, x: te.sum(a[y, x, k] * b[k, c], k), name="total")
    scale, rest = te.placeholder((24,), name="scale"), te.placeholder((24, high, wide), name="rest")
    output = te.compute((24, high, wide), lambda c, y, x: total[c, y, x] * scale[c] + rest[c, y, x])

    def reference(a, b, scale, rest):
        return (a @ b * scale).transpose(2, 0, 1) + rest

    check([a, b, scale, rest], output, reference, "Matmul")


@pytest.mark.each_value
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 1, 2), (7, 5, 3), (13, 17, 19), (16, 16, 16), (64, 64, 64), (31, 1, 40), (97, 101, 103), (3, 200, 49)]
)
def test_matmul_of_any_shape(check, shape, transposed):
    inputs, output = matmul(*shape, transposed)
    check(inputs, output, lambda a, b: a @ (b.T if transposed else b), "Matmul")


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_remainders_of_rows_and_columns_in_every_chunk(check, lanes):
    """Many chunks both ways, the last of each shorter, for each vector width."""
    params = CpuParams(lanes=lanes, cores=5, serial_below=1, panel_bytes=4 * 37 * 48)
    inputs, output = matmul(401, 37, 403)
    check(inputs, output, np.matmul, "Matmul", params=params)


@pytest.mark.parametrize("height", [1, 2, 4, 6, 14])
@pytest.mark.parametrize("rows", [1, 2, 5, 13, 97, 100])
def test_tiles_cover_each_row_once(rows, height):
    found = [
        list(range(first + n * high, first + (n + 1) * high))
        for first, count, high in row_tiles(rows, height)
        for n in range(count)
    ]
    assert [row for tile in found for row in tile] == list(range(rows))
    assert max(map(len, found)) <= height and len(found) == -(-rows // height)


def test_rows_that_fill_no_tile_make_several_a_little_lower():
    assert row_tiles(197, 4) == [(0, 47, 4), (188, 3, 3)]
    assert row_tiles(49, 8) == [(0, 6, 8), (48, 1, 1)]  # too few tiles for that


@pytest.mark.parametrize("tile", [(1, 1), (4, 3), (6, 2), (7, 1)])
def test_tile_sizes_are_data(check, tile):
    params = CpuParams(tile_rows=tile[:1], tile_vectors=tile[1:])
    inputs, output = matmul(53, 29, 67)
    func = check(inputs, output, np.matmul, "Matmul", params=params)
    assert f"acc = T.sblock_alloc_buffer(({tile[0] * tile[1] * params.lanes},))" in func.script()


def test_large_kernels_use_threads_vectors_and_tiles_small_ones_no_threads(check):
    large = check(*matmul(128, 64, 128), np.matmul, "Matmul").script()
    small = check(*matmul(8, 8, 8), np.matmul, "Matmul").script()
    assert "T.parallel" in large and "T.vectorized" in large and "T.unroll" in large
    assert "T.parallel" not in small and "T.vectorized" in small


@pytest.mark.parametrize("columns", [1, 8, 77, 160])
def test_a_vector_times_a_matrix_is_a_product_of_one_row(check, columns):
    x, w = te.placeholder((1, 40), name="x"), te.placeholder((40, columns), name="w")
    k = te.reduce_axis((0, 40), "k")
    output = te.compute((1, columns), lambda i, j: te.sum(x[i, k] * w[k, j], k))
    check([x, w], output, lambda x, w: x @ w, "Matmul" if columns > 1 else "Rows")


def test_a_matrix_that_would_be_copied_for_one_vector_is_not(check):
    x, w = te.placeholder((1, 40), name="x"), te.placeholder((77, 40), name="w")
    k = te.reduce_axis((0, 40), "k")
    output = te.compute((1, 77), lambda i, j: te.sum(x[i, k] * w[j, k], k))
    check([x, w], output, lambda x, w: x @ w.T, "Rows")


def test_batched_matmul_reads_both_operands_from_one_tensor(check):
    """Attention scores: q and k are slices of one projection; no operand is a plain matrix."""
    qkv = te.placeholder((5, 11, 3 * 2 * 6), name="qkv")
    k = te.reduce_axis((0, 6), "k")
    scores = te.compute(
        (5, 2, 11, 11),
        lambda b, h, i, j: te.sum(qkv[b, i, h * 6 + k] * f32(0.5) * qkv[b, j, 12 + h * 6 + k], k),
        name="scores",
    )
    bias = te.placeholder((2, 11, 11), name="bias")
    output = te.compute((5, 2, 11, 11), lambda b, h, i, j: scores[b, h, i, j] + bias[h, i, j])

    def reference(qkv, bias):
        q, k, _ = qkv.reshape(5, 11, 3, 2, 6).transpose(2, 0, 3, 1, 4)
        return q * 0.5 @ k.transpose(0, 1, 3, 2) + bias

    check([qkv, bias], output, reference, "Matmul")


def test_folded_window_partition_and_prologue(check):
    """Rows are three iterators, read through // and %; a scale and shift ride on the operand."""
    x, w = te.placeholder((14, 21, 10), name="x"), te.placeholder((10, 33), name="w")
    scale = te.placeholder((10,), name="scale")
    k = te.reduce_axis((0, 10), "k")
    output = te.compute(
        (6, 49, 33),
        lambda win, p, c: te.sum(
            (x[win // 3 * 7 + p // 7, (win % 3 * 7 + p % 7 + 4) % 21, k] * scale[k] + f32(1.0)) * w[k, c], k
        ),
    )

    def reference(x, w, scale):
        windows = np.roll(x, -4, 1).reshape(2, 7, 3, 7, 10).transpose(0, 2, 1, 3, 4).reshape(6, 49, 10)
        return (windows * scale + 1) @ w

    check([x, w, scale], output, reference, "Matmul")


def test_heads_merged_on_the_way_in_and_windows_reversed_on_the_way_out(check):
    """The attention projection: depth is (head, channel), rows are windows, the result is in image order."""
    x, w = te.placeholder((4, 3, 16, 8), name="x"), te.placeholder((24, 20), name="w")
    k = te.reduce_axis((0, 24), "k")
    output = te.compute(
        (8, 8, 20),
        lambda y, z, c: te.sum(x[y // 4 * 2 + z // 4, k // 8, y % 4 * 4 + z % 4, k % 8] * w[k, c], k),
    )

    def reference(x, w):
        rows = x.transpose(0, 2, 1, 3).reshape(2, 2, 4, 4, 24).transpose(0, 2, 1, 3, 4)
        return rows.reshape(8, 8, 24) @ w

    check([x, w], output, reference, "Matmul")


def test_reduction_through_a_split_axis(check):
    """The reduction iterator reaches the operand as ``k // 8, k % 8``."""
    x, w = te.placeholder((3, 20, 8), name="x"), te.placeholder((24, 17), name="w")
    k = te.reduce_axis((0, 24), "k")
    output = te.compute((20, 17), lambda i, j: te.sum(x[k // 8, i, k % 8] * w[k, j], k))
    check([x, w], output, lambda x, w: x.transpose(1, 0, 2).reshape(20, 24) @ w, "Matmul")


def test_padding_and_concatenation_inside_the_operand(check):
    x, y, w = (te.placeholder(s, name=n) for s, n in (((9, 12), "x"), ((4, 12), "y"), ((12, 18), "w")))
    k = te.reduce_axis((0, 12), "k")

    def joined(i, k):
        second = tirx.if_then_else(i < 13, y[i - 9, k], f32(0.0))
        return tirx.if_then_else(i < 9, x[i, k], second)

    output = te.compute((15, 18), lambda i, j: te.sum(joined(i, k) * w[k, j], k))
    check([x, y, w], output, lambda x, y, w: np.vstack([x, y, np.zeros((2, 12))]) @ w, "Matmul")


def test_epilogues_are_done_on_the_tile(check):
    """Bias, transcendental and a residual, read twice: nothing of the sum goes through memory."""
    (a, b), total = matmul(30, 9, 25)
    bias, rest = te.placeholder((25,), name="bias"), te.placeholder((30, 25), name="rest")
    biased = te.compute((30, 25), lambda i, j: total[i, j] + bias[j], name="biased")
    output = te.compute((30, 25), lambda i, j: biased[i, j] * te.tanh(biased[i, j]) + rest[i, j])

    def reference(a, b, bias, rest):
        return (a @ b + bias) * np.tanh(a @ b + bias) + rest

    func = check([a, b, bias, rest], output, reference, "Matmul")
    assert not any("30, 25" in line for line in func.script().splitlines() if "alloc_buffer" in line)


def conv_reference(x, w, stride, pad, groups):
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    batch, channels, high, wide = windows.shape[:4]
    windows = windows.reshape(batch, groups, channels // groups, high, wide, *w.shape[2:])
    kernels = w.reshape(groups, -1, *w.shape[1:])
    return np.einsum("ngihwpq,goipq->ngohw", windows, kernels).reshape(batch, -1, high, wide)


CONVOLUTIONS = {
    # channels in, size, channels out, kernel, stride, padding, groups -> rule
    "1x1": ((12, 9, 20, 1, 1, 0, 1), "Matmul"),
    "1x1 strided": ((12, 9, 20, 1, 2, 0, 1), "Matmul"),
    "patches": ((3, 16, 10, 4, 4, 0, 1), "Matmul"),
    "3x3 padded": ((6, 16, 13, 3, 1, 1, 1), "Slide"),
    "3x3 strided": ((5, 11, 7, 3, 2, 1, 1), "Slide"),
    "7x7 rows": ((8, 7, 9, 3, 1, 1, 1), "Slide"),
    "grouped": ((12, 8, 24, 3, 1, 1, 3), "Slide"),
    "grouped strided": ((8, 13, 8, 3, 2, 1, 2), "Slide"),
    "depthwise": ((6, 15, 6, 7, 1, 3, 6), "Depthwise"),
    "depthwise unpadded": ((5, 10, 5, 3, 2, 0, 5), "Depthwise"),
}


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_convolution(check, case):
    (channels, size, out, kernel, stride, pad, groups), rule = case
    x = te.placeholder((2, channels, size, size), name="x")
    w = te.placeholder((out, channels // groups, kernel, kernel), name="w")
    if groups == 1:
        output = topi.nn.conv2d_nchw(x, w, stride, pad, 1)
    else:
        output = topi.nn.group_conv2d_nchw(x, w, stride, pad, 1, groups)
    output = topi.nn.relu(output)
    check([x, w], output, lambda x, w: np.maximum(conv_reference(x, w, stride, pad, groups), 0), rule)


@pytest.mark.each_value
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("batch", "size", "out"), [(2, 15, 8), (5, 6, 8), (2, 7, 5), (2, 3, 8)])
def test_columns_of_several_images_whose_length_is_no_power_of_two(check, batch, size, out, lanes):
    """Runs of columns that lie next to each other end with an image, wherever a panel ends."""
    x, w = te.placeholder((batch, 4, size + 2), name="x"), te.placeholder((out, 4, 3), name="w")

    def reference(x, w):
        return np.einsum("nilk,oik->nol", np.lib.stride_tricks.sliding_window_view(x, 3, axis=2), w)

    check([x, w], topi.nn.conv1d_ncw(x, w, 1, 0, 1), reference, "Matmul", params=CpuParams(lanes=lanes))


def _joined_channels(first: int, second: int, columns: int, filters: int = 12):
    """A 1x1 convolution over the ReLU of two tensors joined by channels, as fusion leaves it."""
    x, y = te.placeholder((first, columns), name="x"), te.placeholder((second, columns), name="y")
    w, k = te.placeholder((filters, first + second), name="w"), te.reduce_axis((0, first + second), name="k")

    def joined(k, j):
        return tirx.max(tirx.if_then_else(first <= k, y[k - first, j], x[k, j]), f32(0.0))

    return [x, y, w], te.compute((filters, columns), lambda f, j: te.sum(w[f, k] * joined(k, j), axis=k), name="out")


@pytest.mark.parametrize("first, second, columns", [(32, 16, 640), (5, 7, 49), (17, 3, 131), (1, 40, 64)])
def test_what_is_joined_along_the_depth_is_packed_in_vectors(check, first, second, columns):
    def reference(x, y, w):
        return w @ np.maximum(np.vstack([x, y]), 0)

    check(*_joined_channels(first, second, columns), reference, "Matmul")


def _asks_which(scheduled) -> bool:
    return has_select(scheduled.body)


@pytest.mark.parametrize("swapped", [0, 1])
@pytest.mark.parametrize("sizes, columns", [((7, 5, 13), 49), ((1, 1, 1), 17), ((16, 8, 8), 3)])
def test_each_of_the_joined_tensors_is_copied_by_a_loop_of_its_own(check, swapped, sizes, columns):
    """Asking for each element which one it is took most of the time of products of twenty joined tensors."""
    x, y, z = (te.placeholder((size, columns), name=name) for size, name in zip(sizes, "xyz", strict=True))
    w, k = te.placeholder((12, sum(sizes)), name="w"), te.reduce_axis((0, sum(sizes)), name="k")
    first, second = sizes[0], sizes[0] + sizes[1]

    def joined(k, j):
        rest = tirx.if_then_else(first <= k, y[k - first, j], x[k, j])
        return tirx.max(tirx.if_then_else(second <= k, z[k - second, j], rest), f32(0.0))

    output = te.compute((12, columns), lambda f, j: te.sum(w[f, k] * joined(k, j), axis=k), name="out")

    def reference(x, y, z, w):
        return w @ np.maximum(np.vstack([x, y, z]), 0)

    assert not _asks_which(check([x, y, z, w], output, reference, "Matmul", given={"matmul.swapped": swapped}))


def test_a_copy_across_the_lines_of_an_operand_costs_more_than_one_along_them():
    """Of pictures, rows that are pixels are copied channel by channel; rows that are filters need not be."""

    def plan(pixels_first: bool) -> MatmulPlan:
        x = te.placeholder((196, 576) if pixels_first else (576, 196), name="x")
        w, k = te.placeholder((128, 576), name="w"), te.reduce_axis((0, 576), "k")
        at = (lambda p, c: x[p, c]) if pixels_first else (lambda p, c: x[c, p])
        shape = (196, 128) if pixels_first else (128, 196)
        out = te.compute(
            shape,
            lambda i, j: (
                te.sum(tirx.max(at(i, k), f32(0.0)) * w[j, k], k)
                if pixels_first
                else te.sum(w[i, k] * tirx.max(at(j, k), f32(0.0)), k)
            ),
        )
        kernel = Matmul().prepare(parse(te.create_prim_func([x, w, out])))
        return Matmul.plan(kernel, CpuParams(cores=1), [each for each in kernel.inputs if each.name == "w"])

    assert plan(True).right_constant and plan(True).left_packed
    assert not plan(False).right_constant and not plan(False).left_packed


def _pointwise(channels: int, pixels: int, filters: int, constant: bool) -> MatmulPlan:
    x, w = te.placeholder((channels, pixels), name="x"), te.placeholder((filters, channels), name="w")
    k = te.reduce_axis((0, channels), "k")
    kernel = Matmul().prepare(
        parse(te.create_prim_func([x, w, te.compute((filters, pixels), lambda i, j: te.sum(w[i, k] * x[k, j], k))]))
    )
    return Matmul.plan(kernel, CpuParams(), [each for each in kernel.inputs if each.name == "w"] if constant else [])


def test_weights_that_few_pixels_use_are_read_in_panels():
    """They come from memory, where only panels are prefetched; many pixels hide that."""
    assert _pointwise(128, 49, 512, constant=True).right_constant
    assert not _pointwise(64, 3136, 64, constant=True).right_constant
    assert _pointwise(64, 3136, 64, constant=True).contraction.left.source.name == "w"


@pytest.mark.parametrize("lanes", [8, 16])
def test_channels_that_lie_in_a_page_each_are_dear_to_walk_across(lanes):
    params = CpuParams(lanes=lanes)
    near, far = (with_rows(pixels, pointwise(64, 64, 1, pixels), params) for pixels in (900, 3600))
    assert not near.left_packed and not far.left_packed
    lines = [plan.price.terms["left operand across cache lines"] / plan.rows for plan in (near, far)]
    assert 0 < lines[0] < lines[1]


def _packs_in_vectors(scheduled) -> bool:
    loops = [loop for loop in collect(scheduled.body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
    return any(store.buffer.name == "right" for loop in loops for store in stores(loop.body))


def test_a_choice_between_columns_is_packed_one_by_one(check):
    shapes = {"x": (8, 48), "y": (8, 80), "w": (12, 8)}
    x, y, w = (te.placeholder(shape, name=name) for name, shape in shapes.items())
    k = te.reduce_axis((0, 8), name="k")

    def joined(k, j):
        return tirx.if_then_else(j >= 48, y[k, j - 48], x[k, j])

    across = te.compute((12, 128), lambda f, j: te.sum(w[f, k] * joined(k, j), axis=k), name="out")
    assert not _packs_in_vectors(check([x, y, w], across, lambda x, y, w: w @ np.hstack([x, y]), "Matmul"))
    along = check(*_joined_channels(4, 4, 128), lambda x, y, w: w @ np.maximum(np.vstack([x, y]), 0), "Matmul")
    assert _packs_in_vectors(along)


@pytest.mark.parametrize("tile", [(6, 4), (14, 2), (16, 1), (5, 5)])
def test_a_tile_of_more_than_a_kilobyte_keeps_its_sums_in_several_buffers(check, tile):
    """From 1024 bytes on TVM would allocate a buffer on the heap, in each tile."""
    params = CpuParams(lanes=16, registers=32, tile_rows=tile[:1], tile_vectors=tile[1:])
    inputs, output = matmul(53, 29, 131)
    lines = check(inputs, output, np.matmul, "Matmul", params=params).script().splitlines()
    sizes = [
        int(line.partition("((")[2].partition(",")[0]) for line in lines if "acc" in line and "alloc_buffer" in line
    ]
    assert sizes and all(size * 4 < 1024 for size in sizes)
    assert len([size for size in sizes if size > 16]) > 1


def test_a_very_deep_product_has_narrower_panels():
    params = CpuParams(lanes=16, registers=32)
    shallow, deep = (best_tile(1280, 64, params, depth) for depth in (1280, 11520))
    assert deep.width < shallow.width
    assert deep.width * 11520 * 4 <= params.far_bytes
    assert fits(deep.height, deep.width, params) and fits(shallow.height, shallow.width, params)


def test_weights_from_memory_cost_what_the_processor_says():
    amd, intel, plain = (
        CpuParams.of(tvm.target.Target({"kind": "llvm", "mcpu": name}))
        for name in ("znver4", "sapphirerapids", "x86-64")
    )
    assert amd.memory_bytes > intel.memory_bytes == plain.memory_bytes > 0


def pointwise(out, channels, high, wide):
    """A convolution of 1 x 1 with a bias, its weights along the depth: the columns are the pixels."""
    x, w = te.placeholder((1, channels, high, wide), name="x"), te.placeholder((out, channels), name="w")
    bias, k = te.placeholder((out,), name="bias"), te.reduce_axis((0, channels), "k")
    total = te.compute((1, out, high, wide), lambda n, f, i, j: te.sum(x[n, k, i, j] * w[f, k], k), name="total")
    output = te.compute((1, out, high, wide), lambda n, f, i, j: total[n, f, i, j] + bias[f])
    return [x, w, bias], output


def pointwise_reference(x, w, bias):
    return np.einsum("nkij,fk->nfij", x, w) + bias[:, None, None]


@pytest.mark.each_value
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(
    "shape", [(53, 64, 7, 7), (24, 48, 10, 10), (8, 256, 1, 19), (97, 40, 3, 3), (31, 60, 5, 11), (64, 32, 2, 2)]
)
def test_columns_after_the_last_panel_are_vectors_along_the_depth(check, shape, lanes):
    """One column, four, three; also in several chunks of rows and columns, and where there is no panel before them."""
    inputs, output = pointwise(*shape)
    params = CpuParams(lanes=lanes, cores=3, serial_below=1, panel_bytes=4 * 64 * 24)
    check(inputs, output, pointwise_reference, "Matmul", params=params)


@pytest.mark.parametrize(
    ("shape", "steps", "narrow"),
    [
        ((208, 1248, 7, 7), 8, True),
        ((208, 1250, 7, 7), 1, False),
        ((208, 1252, 7, 7), 4, True),
        ((208, 8, 5, 11), 8, False),
    ],
)
def test_when_a_column_is_a_vector_along_the_depth(shape, steps, narrow):
    """Where whole vectors make up the depth, and where they save more than adding up their lanes takes."""
    plan = with_rows(shape[0], pointwise(*shape))
    assert plan.steps == steps and plan.is_narrow(plan.tails[-1]) == narrow


def test_columns_after_panels_that_are_narrow_themselves(check):
    """As a tuner may ask for: two panels of four columns, and one column."""
    inputs, output = pointwise(53, 256, 3, 3)
    given = {"matmul.swapped": 0, "matmul.width": 4, "matmul.lanes": 8, "matmul.right_packed": 1}
    check(inputs, output, pointwise_reference, "Matmul", given=given)


@pytest.mark.parametrize(("heads", "rows", "depth", "columns"), [(3, 5, 64, 3), (2, 7, 64, 2), (5, 3, 128, 5)])
def test_rows_without_a_constant_stride_beside_narrow_columns(check, heads, rows, depth, columns):
    """Heads of queries that share keys: from head to head the left operand skips the rows of others."""
    x = te.placeholder((heads, rows + 2, depth), name="x")
    w, k = te.placeholder((columns, depth), name="w"), te.reduce_axis((0, depth), "k")
    output = te.compute((heads, rows, columns), lambda h, i, j: te.sum(x[h, i, k] * w[j, k], k))
    given = {"matmul.swapped": 0, "matmul.lanes": 8, "matmul.right_packed": 1}
    params = CpuParams(lanes=8, cores=2, serial_below=1)
    func = check([x, w], output, lambda x, w: x[:, :rows] @ w.T, "Matmul", params=params, given=given)
    names = {store.buffer.name for store in stores(func.body)}
    assert {"at", "lanes"} <= names


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_narrow_tiles_stay_in_registers_and_off_the_heap(lanes):
    params = CpuParams(lanes=lanes, registers=16 if lanes == 8 else 32)
    for width in range(1, lanes):
        rows = narrow_rows(width, params)
        assert rows == 1 or (rows * width < params.registers and rows * width * lanes * 4 < 1024)
    assert narrow_rows(4, CpuParams()) == 3 and narrow_rows(1, CpuParams()) == 14


def plans(inputs, output, params=None):
    """Both orientations of a product, as if its second input were weights."""
    kernel = parse(te.create_prim_func([*inputs, output]))
    contraction = contraction_of(reduction_of(kernel))
    ways = (contraction, contraction.swapped())
    return [MatmulPlan(way, params or CpuParams(), (kernel.inputs[1],)) for way in ways]


def with_rows(rows, product, params=None):
    """The orientation that has so many rows."""
    return next(plan for plan in plans(*product, params) if plan.rows == rows)


@pytest.mark.parametrize(
    ("shape", "weights_left"), [((512, 2048, 7, 7), True), ((256, 1024, 14, 14), True), ((1024, 256, 14, 14), False)]
)
def test_pixels_are_not_read_across_a_tensor_that_fills_the_cache(shape, weights_left):
    """They would be rows of which each step along the depth is in another line; of few channels these stay near."""
    best = min(plans(*pointwise(*shape), CpuParams(cores=1)), key=lambda plan: plan.price.cycles)
    assert (best.rows == shape[0]) == weights_left


def test_the_next_rows_of_large_weights_are_prefetched(check):
    inputs, output = pointwise(160, 640, 7, 7)
    func = check(inputs, output, pointwise_reference, "Matmul", params=CpuParams())
    assert with_rows(160, (inputs, output)).prefetch_rows and "llvm.prefetch" in func.script()
    assert not any(plan.prefetch_rows for plan in plans(*pointwise(16, 64, 7, 7)))


def window_over_tokens(c, h, w, out, size, stride=1, dilation=1, groups=1):
    """A convolution whose channels lie innermost, in the image and in the result, with its reference."""
    x = te.placeholder((2, h, w, c), name="x")
    k = te.placeholder((size, size, c // groups, out), name="k")
    p, q, i = (te.reduce_axis((0, n), name) for n, name in ((size, "p"), (size, "q"), (c // groups, "i")))
    reach = dilation * (size - 1) + 1
    shape = (2, (h - reach) // stride + 1, (w - reach) // stride + 1, out)

    def term(n, y, z, f):
        channel = f // (out // groups) * (c // groups) + i if groups > 1 else i
        return te.sum(x[n, y * stride + p * dilation, z * stride + q * dilation, channel] * k[p, q, i, f], [i, p, q])

    def reference(x, k):
        seen = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), axis=(1, 2))
        seen = seen[:, ::stride, ::stride, :, ::dilation, ::dilation].astype("float64")
        parts = zip(np.split(seen, groups, axis=3), np.split(k, groups, axis=3), strict=True)
        return np.concatenate([np.einsum("nyzcpq,pqcf->nyzf", *part, optimize=True) for part in parts], axis=3)

    return [x, k], te.compute(shape, term), reference


def copies_rows(scheduled) -> bool:
    return any(store.buffer.name == "left" for store in stores(scheduled.body))


@pytest.mark.parametrize(
    "window",
    [
        (8, 7, 9, 20, 3),
        (5, 6, 6, 17, 2),
        (16, 13, 11, 16, 3, 2),
        (24, 12, 12, 33, 3, 1, 2),
        (3, 19, 17, 40, 7, 2),
        (1, 9, 8, 16, 5),
        (48, 8, 8, 48, 3, 1, 1, 2),
        (600, 5, 4, 70, 2),
    ],
)
def test_windows_in_place(check, window):
    """Rows of windows over channels side by side are read where they lie, in deep products part by part."""
    inputs, output, reference = window_over_tokens(*window)
    assert not copies_rows(check(inputs, output, reference, "Matmul"))


def test_windows_over_many_planes_are_copied(check):
    """Each step along the depth is in a line of its own, and a row's lines do not stay near."""
    x, k = te.placeholder((300, 40), name="x"), te.placeholder((300, 3, 48), name="k")
    i, p = te.reduce_axis((0, 300), "i"), te.reduce_axis((0, 3), "p")
    output = te.compute((19, 48), lambda t, f: te.sum(x[i, 2 * t + p] * k[i, p, f], [i, p]))

    def reference(x, k):
        seen = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), 3, axis=1)[:, ::2]
        return np.einsum("itp,ipf->tf", seen[:, :19], k)

    check([x, k], output, reference, "Matmul")


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512"])
def test_windows_in_place_divide_nothing(mcpu):
    """Full vectors are multiplied, and no step along the depth looks for its place."""
    inputs, output, _ = window_over_tokens(32, 18, 18, 96, 3)
    lines, products, register = vector_products(Matmul(), te.create_prim_func([*inputs, output]), mcpu)
    assert len(products) >= 8 and all(register in lines[n] for n in products)
    assert not any("div" in line for line in lines[products[0] : products[-1]])

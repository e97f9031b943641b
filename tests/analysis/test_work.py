# SPDX-License-Identifier: Apache-2.0
"""What kernels have to do, counted by hand."""

import pytest
from tvm import relax, te, tirx

import smartmem_tvm
from helpers import legal, module, op
from smartmem_tvm.analysis.work import Work, work
from smartmem_tvm.ir.kernel import Opaque, parse


def parts(multiplications=0, additions=0, others=0, dtype="float32") -> dict:
    found = {"multiplications": multiplications, "additions": additions, "others": others}
    found = {name: count for name, count in found.items() if count}
    return {dtype: found} if found else {}


def kernels(mod) -> list[Work]:
    return [work(parse(func)) for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]


def of(build, *shapes, dtype="float32") -> Work:
    (found,) = kernels(legal(build, *shapes, dtype=dtype))
    return found


def fused(build, *shapes, dtype="float32") -> Work:
    """Of the one kernel that the graph passes make."""
    (found,) = kernels(smartmem_tvm.optimize(module(build, *shapes, dtype=dtype)))
    return found


def computed(*tensors) -> Work:
    return work(parse(te.create_prim_func(tensors)))


def test_matmul():
    found = of(op.matmul, (5, 6), (6, 7))
    assert found == Work(parts(210, 210), {}, 4 * (30 + 42), 4 * 35)
    assert found.bytes == 4 * 107 and found.instructions == {"float32": 210}


def test_depthwise_convolution_leaves_the_padding_out():
    """Each row of 5 has 3 taps, two of which lie outside, and each column of 7."""
    taps = 4 * (5 * 3 - 2) * (7 * 3 - 2)
    found = of(lambda x, w: op.nn.conv2d(x, w, padding=1, groups=4), (1, 4, 5, 7), (4, 1, 3, 3))
    assert found == Work(parts(taps, taps), {}, 4 * (140 + 36), 4 * 140)


def test_convolution_with_a_stride_reads_what_it_needs():
    found = of(lambda x, w: op.nn.conv2d(x, w, strides=2), (1, 3, 9, 9), (5, 3, 1, 1))
    assert found == Work(parts(375, 375), {}, 4 * (3 * 25 + 15), 4 * 125)


def test_transposed_convolution_multiplies_no_zeros():
    found = of(lambda x, w: op.nn.conv2d_transpose(x, w, strides=2), (1, 3, 5, 5), (3, 4, 2, 2))
    assert found == Work(parts(25 * 48, 25 * 48), {}, 4 * (75 + 48), 4 * 400)


def test_layer_norm_subtracts_the_mean_once():
    """Both the variance and the result have it, in loops of their own."""
    found = of(lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]), (5, 12), (12,), (12,))
    # Sums, differences, sums of squares, bias and epsilon; squares, times deviation, times scale; two divisions a row.
    arithmetic = parts(3 * 60, 4 * 60 + 5, 2 * 5)
    assert found == Work(arithmetic, {"rsqrt": 5}, 4 * (60 + 24), 4 * 60)


def test_softmax():
    found = of(lambda x: op.nn.softmax(x), (5, 12))
    assert found == Work(parts(0, 2 * 60, 2 * 60), {"exp": 60}, 240, 240)


def test_gather_reads_the_rows_that_it_takes():
    found = of(lambda x, i: op.take(x, i, axis=0, mode="clip"), (50, 6), ((7,), "int64"))
    assert (found.bytes_read, found.bytes_written) == (7 * 8 + 7 * 6 * 4, 7 * 6 * 4)


def test_gather_reads_no_more_than_there_is():
    found = of(lambda x, i: op.take(x, i, axis=0, mode="clip"), (3, 6), ((7,), "int64"))
    assert found.bytes_read == 7 * 8 + 3 * 6 * 4


def test_concat_is_one_of_its_parts_at_each_place():
    x, y = te.placeholder((5, 6), name="x"), te.placeholder((5, 7), name="y")

    def value(i, j):
        chosen = tirx.if_then_else(j < 6, te.exp(x[i, j]), y[i, j - 6])
        return te.max(chosen, 0.0) * 2.0

    found = computed(x, y, te.compute((5, 13), value))
    assert found == Work(parts(65, 0, 65), {"exp": 30}, 4 * 65, 4 * 65)


def test_a_transposed_read_moves_each_byte_once():
    found = fused(lambda x: op.nn.relu(op.permute_dims(x)), (5, 6))
    assert found == Work(parts(0, 0, 30), {}, 120, 120)


def test_a_broadcast_is_read_once():
    assert of(op.add, (5, 6), (6,)) == Work(parts(0, 30), {}, 4 * 36, 4 * 30)


def test_a_slice_reads_its_part():
    found = fused(lambda x: op.nn.relu(op.strided_slice(x, [1], [2], [5])), (5, 6))
    assert (found.bytes_read, found.bytes_written) == (60, 60)


def test_two_slices_of_a_tensor_are_the_tensor():
    found = fused(lambda x: op.multiply(*(op.split(x, 2, 1)[n] for n in (0, 1))), (5, 6))
    assert found == Work(parts(15), {}, 120, 60)


def test_what_fusion_put_into_a_loop_counts_once():
    """A convolution over exponentials: each is read up to three times."""
    x, w = te.placeholder((9, 8), name="x"), te.placeholder((3,), name="w")
    k = te.reduce_axis((0, 3), name="k")
    found = computed(x, w, te.compute((7, 8), lambda i, j: te.sum(te.exp(x[i + k, j]) * w[k], axis=k)))
    assert found == Work(parts(7 * 8 * 3, 7 * 8 * 3), {"exp": 72}, 4 * 75, 4 * 56)


def test_a_value_per_row_counts_once_per_row():
    x = te.placeholder((6,), name="x")
    found = computed(x, te.compute((6, 11), lambda i, j: te.exp(x[i])))
    assert found.calls == {"exp": 6}


def test_the_same_value_in_two_stages_counts_once():
    x = te.placeholder((6, 5), name="x")
    k = te.reduce_axis((0, 5), name="k")
    most = te.compute((6,), lambda i: te.max(te.exp(x[i, k]), axis=k), name="most")
    found = computed(x, te.compute((6, 5), lambda n, m: te.exp(x[n, m]) - most[n], name="result"))
    assert found == Work(parts(0, 30, 30), {"exp": 30}, 120, 120)


def test_two_tensors_are_two_values():
    x, y = te.placeholder((6,), name="x"), te.placeholder((6,), name="y")
    assert computed(x, y, te.compute((6,), lambda i: te.exp(x[i]) + te.exp(y[i]))).calls == {"exp": 12}


def test_attention_counts_each_of_its_stages():
    def build(q, k, v):
        scores = op.multiply(op.matmul(q, op.permute_dims(k, [0, 2, 1])), relax.const(0.5))
        return op.matmul(op.nn.softmax(scores), v)

    found = fused(build, (2, 9, 4), (2, 9, 4), (2, 9, 4))
    scores, product = 2 * 81, 2 * 81 * 4
    assert found.calls == {"exp": scores} and found.bytes == 4 * 4 * 72
    assert found.arithmetic["float32"]["additions"] == 2 * product + 2 * scores
    assert 2 * product <= found.arithmetic["float32"]["multiplications"] <= 2 * product + scores


def test_narrow_factors_are_the_type_of_a_product():
    found = fused(lambda x, y: op.matmul(*(op.astype(each, "int32") for each in (x, y))), (5, 6), (6, 7), dtype="int8")
    assert found == Work(parts(210, 210, dtype="int8"), {}, 72, 140)
    half = of(lambda x, y: op.matmul(x, y, out_dtype="float32"), (5, 6), (6, 7), dtype="float16")
    assert half == Work(parts(210, 210, dtype="float16"), {}, 144, 140)
    double = of(op.matmul, (5, 6), (6, 7), dtype="float64")
    assert double == Work(parts(210, 210, dtype="float64"), {}, 8 * 72, 8 * 35)


def test_factors_that_are_rounded_later():
    """Of a kernel whose products another pass rounds: what is no product of a sum stays what it is."""
    mod = smartmem_tvm.optimize(module(lambda x, y: op.multiply(op.matmul(x, y), y), (6, 6), (6, 6)))
    (kernel,) = (parse(func) for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
    product, scale = {"multiplications": 216, "additions": 216}, {"multiplications": 36}
    assert work(kernel, "bfloat16").arithmetic == {"bfloat16": product, "float32": scale}
    assert work(kernel).arithmetic == {"float32": {"multiplications": 252, "additions": 216}}


def test_a_choice_by_data_reads_both():
    found = of(op.where, ((5, 6), "bool"), (5, 6), (5, 6))
    assert found == Work({}, {}, 30 + 240, 120)


def test_indices_are_no_arithmetic():
    assert of(lambda x: op.reshape(x, (15, 2)), (5, 6)).arithmetic == {}


def test_too_many_choices_are_refused():
    inputs = [te.placeholder((2,), name=f"x{n}") for n in range(20)]

    def pair(a, b):
        return lambda i: tirx.if_then_else(i < 1, a[i], b[i])

    pairs = [pair(*inputs[n : n + 2]) for n in range(0, 20, 2)]

    def total(i):
        value = pairs[0](i)
        for each in pairs[1:]:
            value = value + each(i)
        return value

    with pytest.raises(Opaque, match="more than 256 combinations"):
        computed(*inputs, te.compute((2,), total))


def test_plain_data():
    found = of(op.matmul, (5, 6), (6, 7))
    assert found.as_dict()["arithmetic"] == parts(210, 210) and found.as_dict()["bytes_read"] == 288
    assert isinstance(found.arithmetic["float32"], dict)

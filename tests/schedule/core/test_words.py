# SPDX-License-Identifier: Apache-2.0
"""Quads of neighbouring bytes are loaded as one number, and other quads are not."""

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import tirx

from against_onnxruntime import integers, model_of
from smartmem_tvm import compile, from_onnx, optimize
from smartmem_tvm.ir.packings import dot_of_quads, numbers_of_quad, packed_factors, quad
from smartmem_tvm.ir.pairs import pair
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.schedule import PackWeights, PairProducts, ScheduleKernels
from smartmem_tvm.schedule.core.nest import Scope, index, store
from smartmem_tvm.schedule.core.words import dots_in_vectors, joined, word_of
from smartmem_tvm.schedule.cpu.packed_vectors import dot_pieces

K = tirx.Var("k", "int64")


def quad_at(buffer, places) -> object:
    return quad([buffer[index(0), place].astype("int32") for place in places])


def neighbours(first, step: int = 1) -> list:
    return [first + index(n * step) for n in range(4)]


@pytest.mark.parametrize(
    ("size", "dtype", "places", "found"),
    [
        (32, "uint8", neighbours(K * index(4)), True),
        (32, "int8", neighbours(K * index(4) + index(8)), True),
        (32, "uint8", neighbours(K * index(4) + index(1)), False),  # no word of its own
        (33, "uint8", neighbours(K * index(4)), False),  # rows begin between words
        (32, "uint8", neighbours(K * index(8), 2), False),
        (32, "uint8", neighbours(K * index(4))[::-1], False),
        (32, "int16", neighbours(K * index(4)), False),
    ],
)
def test_which_quads_are_words(size, dtype, places, found):
    buffer = tirx.decl_buffer([index(3), index(size)], dtype, "x", layout=None)
    value = quad_at(buffer, places)
    assert len(numbers_of_quad(value)) == 4 and numbers_of_quad(value + 1) is None
    word = word_of(value, {K: 4})
    assert (word is not None) is found
    if found:
        assert word[1].same_as(buffer) and [int(each) for each in word[0].source.shape] == [3, size // 4]


@pytest.mark.parametrize("kind", [tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED])
def test_loads_of_words_are_of_bytes_and_loops_over_them_are_not_vectors(kind):
    x = tirx.decl_buffer([index(1), index(32)], "uint8", "x", layout=None)
    y = tirx.decl_buffer([index(8)], "int32", "y", layout=None)
    body = Scope().loop(8, lambda k: store(y, quad_at(x, neighbours(k * index(4))), k), "k", kind)
    after = joined(body)
    assert not collect(after, tirx.BitwiseOr) and "T.reinterpret" in after.script()
    assert [each.kind for each in collect(after, tirx.For)] == [tirx.ForKind.SERIAL]


def test_rows_of_bytes_are_read_in_place():
    """The left operand of a product of bytes is neither copied nor shifted."""
    random = np.random.default_rng(0)
    x, w = integers(random, "uint8", (64, 32)), integers(random, "int8", (32, 48))
    model = model_of([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], {"x": x}, {"y": "int32"}, {"w": w})
    with tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake", "num-cores": 1}):
        kernels = optimize(from_onnx(model), tvm.target.Target.current())
        mod = ScheduleKernels()(PackWeights()(PairProducts()(kernels)))
    (kernel,) = (func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
    script = kernel.script()
    assert "vpdpbusd" in script and "left =" not in script and "<< 8" not in script
    np.testing.assert_array_equal(compile(from_onnx(model), "cpu").run(x)[0], x.astype("int32") @ w)


@pytest.mark.parametrize(
    ("width", "lanes", "pieces"),
    [
        (48, 16, [(0, 16), (16, 16), (32, 16)]),
        (24, 16, [(0, 16), (16, 8)]),
        (12, 16, [(0, 8), (8, 4)]),
        (4, 8, [(0, 4)]),
        (3, 16, None),
        (17, 16, None),
    ],
)
def test_vectors_that_cover_columns(width, lanes, pieces):
    assert dot_pieces(width, lanes) == pieces


@pytest.mark.parametrize(("rows", "columns"), [(49, 24), (7, 12), (33, 3), (5, 17), (64, 1)])
@pytest.mark.parametrize("depth", [64, 24])
def test_few_columns(rows, columns, depth):
    """Vectors shorter than the widest one, and along the depth."""
    random = np.random.default_rng(rows)
    x, w = integers(random, "uint8", (rows, depth)), integers(random, "int8", (depth, columns))
    model = model_of([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], {"x": x}, {"y": "int32"}, {"w": w})
    np.testing.assert_array_equal(compile(from_onnx(model), "cpu").run(x)[0], x.astype("int32") @ w)


@pytest.mark.parametrize("kind", [tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED])
def test_dots_of_scalars_are_of_vectors(kind):
    """LLVM makes wrong numbers of several (docs/tvm-issues.md)."""
    x, w, y = (tirx.decl_buffer([index(8)], "int32", name, layout=None) for name in "xwy")
    after = dots_in_vectors(Scope().loop(8, lambda k: store(y, dot_of_quads(x[k], w[k]), k), "k", kind))
    scalar = [each for each in collect(after, tirx.Add) if packed_factors(each) is not None]
    assert bool(scalar) is (kind == tirx.ForKind.VECTORIZED)
    assert after.script().count("llvm.vector.reduce.add") == (not scalar)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(2, 4, 2), (3, 4, 3), (5, 4, 3), (1, 64, 33), (20, 16, 18)])
@pytest.mark.parametrize("constant", [True, False])
def test_columns_of_bytes_are_read_in_place(rows, depth, columns, constant):
    """The right operand is contiguous along the depth, as the left one is where rows and columns are exchanged."""
    random = np.random.default_rng(rows)
    x, w = integers(random, "uint8", (rows, depth)) | 1, integers(random, "int8", (columns, depth))
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMulInteger", ["x", "t"], ["y"]),
    ]
    x[:, -1] = 255  # a sign bit in each word
    inputs, constants = ({"x": x}, {"w": w}) if constant else ({"x": x, "w": w}, {})
    compiled = compile(from_onnx(model_of(nodes, inputs, {"y": "int32"}, constants)), "cpu")
    np.testing.assert_array_equal(compiled.run(*inputs.values())[0], x.astype("int32") @ w.T)


@pytest.mark.parametrize("kind", [tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED])
@pytest.mark.parametrize(("dtype", "word"), [("uint8", "uint16"), ("int8", "int16")])
def test_pairs_of_neighbouring_bytes_are_loaded_at_once(kind, dtype, word):
    x = tirx.decl_buffer([index(1), index(33)], dtype, "x", layout=None)
    y = tirx.decl_buffer([index(16)], "int32", "y", layout=None)

    def after(step):
        def both(k):
            first = k * index(2) + index(1)
            return pair(*(x[index(0), place].astype("int32") for place in (first, first + index(step))))

        return joined(Scope().loop(15, lambda k: store(y, both(k), k), "k", kind))

    assert f'T.reinterpret("{word}"' in after(1).script()
    assert [each.kind for each in collect(after(1), tirx.For)] == [tirx.ForKind.SERIAL]
    assert "reinterpret" not in after(-1).script() and [each.kind for each in collect(after(-1), tirx.For)] == [kind]


@pytest.mark.parametrize("seed", range(6))
def test_products_in_pairs_of_drawn_sizes(seed):
    """Rows of bytes are copied into pairs word by word; weights are the right operand."""
    random = np.random.default_rng(seed)
    rows, depth, columns = (int(each) for each in random.integers(1, 90, 3))
    dtype = ("uint8", "int8")[seed % 2]
    x, w = integers(random, dtype, (rows, 2 * depth)), integers(random, "int8", (2 * depth, columns))
    model = model_of([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], {"x": x}, {"y": "int32"}, {"w": w})
    compiled = compile(from_onnx(model), tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 1}))
    np.testing.assert_array_equal(compiled.run(x)[0], x.astype("int32") @ w)

# SPDX-License-Identifier: Apache-2.0
"""A dimension that stays open: right for drawn numbers of items beside ONNX Runtime, or refused with the operator."""

import numpy as np
import pytest

import smartmem_tvm
from open_models import APART, ORDERED, ROWS, N, dims, drawn, expected, layers, model, weights
from smartmem_tvm import UserError
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.frontend.open_dimension import Range, has_ranges
from smartmem_tvm.graph_report import graph_cost
from smartmem_tvm.ir.several_sizes import tile_groups

SIZES = (1, 2, 3, 7, 13, 16)


@pytest.fixture(scope="module", params=[*APART, *ORDERED])
def opened(request):
    proto = {**APART, **ORDERED}[request.param]
    return proto, smartmem_tvm.compile(from_onnx(proto, dims(proto, "1..16")))


def test_drawn_numbers_of_items(opened):
    proto, compiled = opened
    for seed, items in enumerate(SIZES):
        x = drawn(proto, items, seed)
        (found,) = compiled.run(x)
        wanted = expected(proto, x)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_kernels_are_those_of_a_static_compile(opened):
    proto, compiled = opened
    for each in compiled.open[0]["tiles"]:
        alone = graph_cost(smartmem_tvm.optimize(from_onnx(proto, dims(proto, each["items"]))))
        found = graph_cost(compiled.graph, each["function"])
        assert (found.kernels, found.layout_kernels) == (alone.kernels, alone.layout_kernels)


_BATCH = [("Shape", ["x"], "s", {"start": 0, "end": 1})]
MIXED = {
    "turned around": (
        [("Slice", ["x", "last", "end", "zero", "back"], "y", {})],
        {"last": np.array([-1]), "end": np.array([-100]), "zero": np.array([0]), "back": np.array([-1])},
        "operator 'strided_slice'",
    ),
    "second half": (
        [*_BATCH, ("Div", ["s", "two"], "h", {}), ("Slice", ["x", "h", "end", "zero"], "y", {})],
        {"two": np.array([2]), "end": np.array([100]), "zero": np.array([0])},
        "operator 'strided_slice'",
    ),
    "the first seven": (
        [("Slice", ["x", "zero", "end", "zero"], "y", {})],
        {"zero": np.array([0]), "end": np.array([7])},
        "operator 'strided_slice'",
    ),
    "a logarithm of the number of items": (
        [*_BATCH, ("Cast", ["s"], "f", {"to": 1}), ("Log", ["f"], "l", {}), ("Div", ["x", "l"], "y", {})],
        {},
        "operator 'divide' .* reads a constant that differs with the length",
    ),
}


@pytest.mark.parametrize("case", MIXED)
def test_an_operator_that_mixes_items_is_named(case):
    nodes, constants, words = MIXED[case]
    proto = model(nodes, [N, 4], constants)
    with pytest.raises(UserError, match=rf"given as 1\.\.8 stays open .*{words}.*: give a list of sizes instead"):
        from_onnx(proto, dims(proto, "1..8"))


def test_a_slice_of_more_items_than_any_tile_has_is_seen_beside_an_open_length():
    _, constants, _ = MIXED["the first seven"]
    averaged = [("Slice", ["x", "zero", "end", "zero"], "f", {}), ("ReduceMean", ["f"], "y", {"axes": [1]})]
    proto = model(averaged, [N, "length", 4], constants)
    for batch in ("1..8", "2..9"):
        with pytest.raises(UserError, match="operator 'strided_slice'"):
            from_onnx(proto, {"x": (batch, "1..16", 4)})


def test_another_dimension_may_have_a_list():
    proto = model([("MatMul", ["x", "w"], "m", {}), ("Relu", ["m"], "y", {})], [N, "length", 4], ROWS)
    compiled = smartmem_tvm.compile(from_onnx(proto, {"x": ("1..5", (3, 7), 4)}))
    assert len(compiled.open) == 2
    for shape in ((1, 3, 4), (5, 3, 4), (2, 7, 4), (3, 7, 4)):
        x = weights(*shape)
        np.testing.assert_allclose(compiled.run(x)[0], expected(proto, x), rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match=r"takes 'x' \(1\.\.5\)x3x4; or 'x' \(1\.\.5\)x7x4, and 'x' 2x4x4 came"):
        compiled.run(weights(2, 4, 4))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (("0..4", 16), "give at least 1"),
        (("4..4", 16), "more than that at most"),
        (("many", 16), "given as 'many': give a number, or a range like '1..64'"),
        (("1..4", "1..16"), "contradicts"),
        (("1..4", 15), "contradicts"),
    ],
)
def test_what_is_no_range(shape, words):
    with pytest.raises(UserError, match=words):
        from_onnx(layers(), {"x": shape})


def test_ranges_are_read():
    assert Range.read("1..64") == Range(1, 64) and str(Range(1, 64)) == "1..64"
    assert Range.read("1..") is None and not has_ranges({"x": (1, 2)}) and not has_ranges([{"x": (1, 2)}])
    assert tile_groups(from_onnx(layers(), {"x": (2, 16)})) == []

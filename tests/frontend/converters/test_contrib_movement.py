# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check, check_contrib, model_of

F = "float32"


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


X = _floats(2, 3, 4)


@pytest.mark.parametrize("axis", [0, 1, 3, -1, -4])
def test_one_axis_more(axis):
    check_contrib("ExpandDims", {"x": X}, {"y": F}, {"a": np.array(axis, "int32")})


@pytest.mark.parametrize(
    "indices",
    [np.array([[0, 1], [1, 2]], "int32"), np.array([[0], [1]]), np.array([[[1, 2, 3]]])],
    ids=lambda a: str(a.shape),
)
def test_slices_by_indices(indices):
    check_contrib("GatherND", {"x": X, "i": indices}, {"y": F})


@pytest.mark.pairwise
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_samples_of_a_picture(mode, padding, corners):
    if (mode, padding) == ("bicubic", "reflection"):
        padding = "border"  # refused, as ONNX's operator is
    grid = (np.random.default_rng(0).random((2, 4, 3, 2)) * 2.4 - 1.2).astype(F)
    options = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    check_contrib("GridSample", {"x": _floats(2, 3, 5, 6), "g": grid}, {"y": F}, tolerance=5e-6, **options)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pads(mode):
    value = {"v": np.array([3.0], F)} if mode == "constant" else {}
    check_contrib("Pad", {"x": X}, {"y": F}, {"p": np.array([[0, 1, 2, 0, 1, 1]]), **value}, mode=mode)
    check_contrib("Pad", {"x": X}, {"y": F}, {"p": np.array([0, 1, -1, 0, 1, 1])}, mode=mode)


@pytest.mark.parametrize("opset", [9, 21])
def test_operators_mean_the_same_in_any_version_of_onnx(opset):
    check_contrib("Pad", {"x": X}, {"y": F}, {"p": np.array([0, 1, 0, 0, 1, 1])}, opset=opset)
    check_contrib("Trilu", {"x": X}, {"y": F}, opset=opset)


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [((1, 9, 2), "int64"), ((9, 1, -3), "int32"), ((0.5, 3.2, 0.7), F), ((2, 5), "int64"), ((5, 2, 1), "int64")],
)
def test_ranges(numbers, dtype):
    start, limit, *step = numbers
    given = {
        "a": np.array(start, dtype),
        "b": np.array([limit], dtype),
    }
    given |= {"c": np.array(step[0], dtype)} if step else {}
    node = helper.make_node("Range", [*given], ["r"], domain=RUNTIME)
    add = helper.make_node("Add", ["x", "r"], ["y"])
    x = np.zeros((), dtype)
    check([node, add], {"x": x}, {"y": dtype}, given, tolerance=1e-6)


@pytest.mark.each_value
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -1])
def test_triangles(k, upper):
    check_contrib("Trilu", {"x": _floats(2, 4, 5)}, {"y": F}, {} if k is None else {"k": np.array(k)}, upper=upper)


@pytest.mark.parametrize(("axis", "size", "step"), [(1, 2, 1), (-1, 3, 2), (0, 1, 1), (2, 8, 3)])
def test_windows_of_an_axis(axis, size, step):
    check_contrib("UnfoldTensor", {"x": _floats(3, 5, 8)}, {"y": F}, dim=axis, size=size, step=step)


def test_rows_of_a_table():
    """By its definition: ONNX Runtime has no kernel for it on a CPU."""
    table, indices = _floats(9, 4), np.array([[1, 0], [8, 2]])
    check_contrib("TorchEmbedding", {"i": indices}, {"y": F}, {"w": table}, "w i", wanted=[table[indices]])


@pytest.mark.parametrize(
    "attributes", [{"strides": [2, 1]}, {"output_padding": [1, 0], "strides": [2, 2]}, {"dilations": [1, 2]}]
)
def test_transposed_convolutions_whose_pads_are_an_input(attributes):
    given = {"w": _floats(3, 2, 3, 3), "p": np.array([1, 0, 0, 1]), "b": _floats(2)}
    check_contrib(
        "ConvTransposeWithDynamicPads", {"x": _floats(1, 3, 5, 6)}, {"y": F}, given, tolerance=5e-6, **attributes
    )


@pytest.mark.parametrize(
    ("op", "names", "attributes", "reason"),
    [
        ("Pad", ["x", "p"], {}, "pads is known at run time only"),
        ("UnfoldTensor", ["x"], {"size": 9, "dim": 1}, "do not fit an axis of 3"),
    ],
)
def test_what_is_refused(op, names, attributes, reason):
    node = helper.make_node(op, names, ["y"], "moved", domain=RUNTIME, **attributes)
    arrays = {name: {"x": X, "p": np.zeros(6, "int64")}[name] for name in names}
    with pytest.raises(sm.UserError, match=rf"{op}.*moved.*{reason}"):
        sm.from_onnx(model_of([node], arrays, {"y": (F, X.shape)}))

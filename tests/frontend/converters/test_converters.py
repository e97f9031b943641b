# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx

FLOATS = "float32"


def _gather(build, indices, axis=0, shape=(4, 5, 6)):
    indices = np.asarray(indices, "int64")
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="gather", axis=axis)
    output = (shape[:axis] + indices.shape + shape[axis + 1 :], FLOATS)
    return build([node], {"x": (shape, FLOATS)}, {"y": output}, {"i": indices})


@pytest.mark.parametrize(
    ("indices", "axis", "expected"),
    [
        pytest.param(1, 1, ["strided_slice", "reshape"], id="scalar"),
        pytest.param(-1, 2, ["strided_slice", "reshape"], id="negative scalar"),
        pytest.param([0, 2], 0, ["strided_slice"], id="step 2"),
        pytest.param([2, 3, 4], 1, ["strided_slice"], id="range"),
        pytest.param([-3, -2, -1], 1, ["strided_slice"], id="negative range"),
        pytest.param([[0, 1], [2, 3]], 2, ["strided_slice", "reshape"], id="matrix that counts"),
        pytest.param([3, 2, 1], 0, ["take"], id="backwards"),
        pytest.param([0, 0, 1], 0, ["take"], id="repeated"),
        pytest.param([[1, -1], [0, 3]], 1, ["take"], id="matrix"),
        pytest.param([2], 0, ["strided_slice"], id="one"),
    ],
)
def test_gather_with_constant_indices(build, operators, assert_same, indices, axis, expected):
    model = _gather(build, indices, axis)
    mod = from_onnx(model)
    assert operators(mod) == expected
    assert_same(model, mod, tolerance=0)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gather_with_run_time_indices_counts_negative_ones_from_the_end(build, operators, assert_same, dtype):
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=1)
    model = build([node], {"x": ((3, 5), FLOATS), "i": ((4,), dtype)}, {"y": ((3, 4), FLOATS)})
    mod = from_onnx(model)
    assert operators(mod) == ["take"]
    data = np.arange(15, dtype=FLOATS).reshape(3, 5)
    assert_same(model, mod, {"x": data, "i": np.array([-1, -5, 0, 4], dtype)}, tolerance=0)


def test_gather_outside_of_the_axis_is_refused(build):
    with pytest.raises(UserError, match=r"gather.*elements 1\.\.7 .* size 4"):
        from_onnx(_gather(build, [1, 7]))


SPECIAL = np.array([np.nan, -np.inf, np.inf, -1, 0, 3, 7, -0.0], FLOATS)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 6.0, ["maximum", "minimum"]),
        (None, 6.0, ["maximum", "minimum"]),
        (-0.5, None, ["maximum", "minimum"]),
        (np.nan, 6.0, ["minimum"]),
        (7.0, 6.0, ["maximum", "minimum"]),
    ],
)
def test_clip_is_plain_and_treats_nan_as_onnx_runtime_does(build, operators, run_tvm, low, high, expected):
    bounds = {"low": low, "high": high}
    constants = {name: np.float32(value) for name, value in bounds.items() if value is not None}
    names = [name if name in constants else "" for name in bounds]
    tensor = ((8,), FLOATS)
    model = build([helper.make_node("Clip", ["x", *names], ["y"])], {"x": tensor}, {"y": tensor}, constants)
    mod = from_onnx(model)
    assert operators(mod) == expected
    wanted, largest = SPECIAL, np.finfo("float32").max
    if low is None or not np.isnan(low):
        wanted = np.maximum(wanted, np.float32(-largest if low is None else low))
    wanted = np.minimum(wanted, np.float32(largest if high is None else high))
    np.testing.assert_array_equal(run_tvm(mod, {"x": SPECIAL})[0], wanted)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("names", [[], ["low"], ["", "high"]])
@pytest.mark.parametrize("constant", [True, False])
def test_clip_without_a_bound_ends_at_the_largest_number(build, assert_same, dtype, names, constant):
    x, tensor = np.array([np.inf, -np.inf, np.nan if constant else 0, 1], dtype), ((4,), dtype)
    bounds = {name: np.array(value, dtype) for name, value in {"low": -3, "high": 3}.items() if name in names}
    known = bounds if constant else {}
    inputs = {"x": tensor} | ({} if constant else dict.fromkeys(bounds, ((), dtype)))
    model = build([helper.make_node("Clip", ["x", *names], ["y"])], inputs, {"y": tensor}, known)
    assert_same(model, from_onnx(model), {"x": x} if constant else {"x": x, **bounds}, tolerance=0)


def test_clip_of_large_integers_is_exact(build, assert_same):
    tensor = ((3,), "int64")
    constants = {"low": np.int64(-(2**60) - 1), "high": np.int64(2**60 + 1)}
    node = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    model = build([node], {"x": tensor}, {"y": tensor}, constants)
    assert_same(model, from_onnx(model), {"x": np.array([-(2**62), 5, 2**62])}, tolerance=0)


@pytest.mark.parametrize("attributes", [{"min": 0.0, "max": 6.0}, {"min": 0.5}, {"max": 0.5}, {}])
def test_clip_with_attributes_of_old_opsets(build, assert_same, attributes):
    tensor = ((4, 4), FLOATS)
    node = helper.make_node("Clip", ["x"], ["y"], **attributes)
    model = build([node], {"x": tensor}, {"y": tensor}, opset=9)
    assert_same(model, from_onnx(model))


def test_clip_with_a_run_time_bound_is_left_to_tvm(build, assert_same):
    tensor = ((4, 4), FLOATS)
    node = helper.make_node("Clip", ["x", "low"], ["y"])
    model = build([node], {"x": tensor, "low": ((), FLOATS)}, {"y": tensor})
    assert_same(model, from_onnx(model))


def _pad(build, pads, mode="constant", opset=17):
    shape = (4, 5)
    output = tuple(size + before + after for size, before, after in zip(shape, pads[:2], pads[2:]))
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)
    tensors = {"x": (shape, FLOATS)}, {"y": (output, FLOATS)}
    return build([node], *tensors, {"pads": np.array(pads, "int64")}, opset=opset)


def test_pad_by_nothing_disappears(build, operators, assert_same):
    model = _pad(build, [0, 0, 0, 0])
    mod = from_onnx(model)
    assert operators(mod) == []
    assert_same(model, mod, tolerance=0)


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [[1, 2, 0, 3], [0, 1, 2, 0]])
def test_pad_computes_what_onnx_says(build, assert_same, mode, pads):
    model = _pad(build, pads, mode, opset=19)
    assert_same(model, from_onnx(model), tolerance=0)


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_negative_pads_crop(build, assert_same, mode):
    model = _pad(build, [-1, 2, 0, -2], mode)
    assert_same(model, from_onnx(model), tolerance=0)


@pytest.mark.parametrize(
    ("attributes", "dtype", "shape"),
    [
        ({"value_float": 1.5}, FLOATS, ()),
        ({"value_floats": [1.0, 2.0]}, FLOATS, (2,)),
        ({"value_int": 3}, "int64", ()),
        ({"value_ints": [1, 2]}, "int64", (2,)),
    ],
)
def test_constants_given_as_plain_numbers(build, assert_same, attributes, dtype, shape):
    nodes = [
        helper.make_node("Constant", [], ["c"], **attributes),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    model = build(nodes, {"x": ((3, 2), dtype)}, {"y": ((3, 2), dtype)})
    assert_same(model, from_onnx(model))


def _layer_norm(build, outputs, dtype, axis=-1):
    shape = (2, 4, 8)
    scale = np.linspace(0.5, 2, 8).astype(dtype) * np.ones(shape[axis:], dtype)
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], outputs, axis=axis)
    statistics = (shape[:axis] + (1,) * -axis, FLOATS)
    results = {"y": (shape, dtype), **dict.fromkeys(outputs[1:], statistics)}
    return build([node], {"x": (shape, dtype)}, results, {"s": scale, "b": scale - 1})


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("outputs", [["y", "mean"], ["y", "mean", "inverse"]])
def test_layer_normalization_gives_its_statistics(build, assert_same, outputs, axis):
    model = _layer_norm(build, outputs, FLOATS, axis)
    assert_same(model, from_onnx(model))


def test_layer_normalization_in_double_precision(build, assert_same):
    model = _layer_norm(build, ["y"], "float64")
    assert_same(model, from_onnx(model), tolerance=1e-12)


def test_plain_layer_normalization_stays_one_operator(build, operators):
    assert operators(from_onnx(_layer_norm(build, ["y"], FLOATS))) == ["nn.layer_norm"]


@pytest.mark.each_value
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [FLOATS, "int64"])
def test_one_hot_has_the_type_of_its_values(build, assert_same, dtype, axis):
    shape = [3, 2]
    shape.insert(axis if axis >= 0 else 2, 4)
    node = helper.make_node("OneHot", ["i", "depth", "values"], ["y"], axis=axis)
    constants = {"depth": np.array([4]), "values": np.array([2, 5], dtype)}
    model = build([node], {"i": ((3, 2), "int64")}, {"y": (shape, dtype)}, constants)
    # Negative ones count from the end; what is outside of [-4, 4) is nowhere hot.
    assert_same(model, from_onnx(model), {"i": np.array([[0, 3], [-1, -4], [4, 7]])}, tolerance=0)


@pytest.mark.parametrize(("start", "end", "size"), [(-3, -(2**31), 1), (-3, 0, 0), (-1, -(2**63), 2), (9, -9, 2)])
def test_a_backward_slice_from_before_the_beginning_takes_the_first(build, assert_same, start, end, size):
    """Where numpy takes none."""
    constants = {name: np.array([each]) for name, each in {"a": start, "b": end, "c": 0, "d": -1}.items()}
    node = helper.make_node("Slice", ["x", *"abcd"], ["y"])
    model = build([node], {"x": ((2, 3), FLOATS)}, {"y": ((size, 3), FLOATS)}, constants)
    assert_same(model, from_onnx(model), tolerance=0)

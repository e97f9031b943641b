# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx


def _dft(build, shape, result, length=None, axis=-2, dtype="float32", **attributes):
    constants = {"axis": np.array(axis)} | ({} if length is None else {"length": np.array(length)})
    node = helper.make_node("DFT", ["x", "" if length is None else "length", "axis"], ["y"], **attributes)
    return build([node], {"x": (shape, dtype)}, {"y": (result, dtype)}, constants, opset=20)


def _complex(pairs):
    return pairs[..., 0] + 1j * pairs[..., 1]


@pytest.mark.each_value
@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 3, 9])
def test_a_transform_of_complex_numbers_and_back(build, run_tvm, random_inputs, axis, length):
    shape, result = (2, 5, 7, 2), [2, 5, 7, 2]
    result[axis if axis >= 0 else 2] = length or shape[axis]
    for inverse, reference in enumerate((np.fft.fft, np.fft.ifft)):
        mod = from_onnx(_dft(build, shape, result, length, axis, inverse=inverse))
        arrays = random_inputs(mod)
        (got,) = run_tvm(mod, arrays)
        want = reference(_complex(arrays["x"]), n=length, axis=axis if axis >= 0 else -1)
        np.testing.assert_allclose(_complex(got), want, atol=1e-5)


@pytest.mark.parametrize("size", [6, 7])
def test_one_sided_transforms_of_even_and_odd_length(build, run_tvm, random_inputs, size):
    half = size // 2 + 1
    mod = from_onnx(_dft(build, (3, size, 1), (3, half, 2), onesided=1, dtype="float64"))
    arrays = random_inputs(mod)
    (spectrum,) = run_tvm(mod, arrays)
    np.testing.assert_allclose(_complex(spectrum), np.fft.rfft(arrays["x"][..., 0]), atol=1e-12)
    back = from_onnx(_dft(build, (3, half, 2), (3, size, 1), size, onesided=1, inverse=1, dtype="float64"))
    np.testing.assert_allclose(run_tvm(back, {"x": spectrum})[0], arrays["x"], atol=1e-12)


@pytest.mark.parametrize("signal", [(2, 20, 1), (2, 20)])
def test_a_short_time_transform_is_onnxruntimes(build, assert_same, signal):
    constants = {"step": np.array(3), "window": np.hanning(8).astype("float32")}
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"])
    model = build([node], {"x": (signal, "float32")}, {"y": ((2, 5, 5, 2), "float32")}, constants)
    assert_same(model, from_onnx(model), tolerance=1e-5)


def test_a_window_known_at_run_time_only(build, assert_same):
    nodes = [helper.make_node("Abs", ["w"], ["window"]), helper.make_node("STFT", ["x", "step", "window"], ["y"])]
    inputs = {"x": ((2, 20, 1), "float32"), "w": ((8,), "float32")}
    model = build(nodes, inputs, {"y": ((2, 5, 5, 2), "float32")}, {"step": np.array(3)})
    assert_same(model, from_onnx(model), tolerance=1e-5)


def test_a_transform_whose_matrix_would_not_fit_is_refused(build):
    with pytest.raises(UserError, match=r"DFT.*100000 numbers is too long"):
        from_onnx(_dft(build, (1, 100000, 1), (1, 100000, 2)))

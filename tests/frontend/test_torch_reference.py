# SPDX-License-Identifier: Apache-2.0
"""torch as the reference of its own programs."""

import numpy as np
import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import read_model, reference_name, run_reference
from torch_stand_in import SAVED, Program, Tensor, install

X = np.array([[-1, 2, 3], [4, -5, 6]], "float32")


def model_computing(monkeypatch, relu_model, tmp_path, compute):
    install(monkeypatch, relu_model).program = Program(compute=compute)
    (tmp_path / "m.pt2").write_bytes(SAVED)
    return read_model(tmp_path / "m.pt2")


def test_tensors_take_the_place_of_the_example(monkeypatch, relu_model, tmp_path):
    model = model_computing(monkeypatch, relu_model, tmp_path, lambda x, none: Tensor(x.array * 2))
    (result,) = run_reference(model, {"x": X})
    np.testing.assert_array_equal(result, X * 2)
    assert reference_name(model) == "torch"


def test_of_other_models_it_is_onnxruntime(relu_model):
    model = read_model(relu_model)
    (result,) = run_reference(model, {"x": X})
    np.testing.assert_array_equal(result, np.maximum(X, 0))
    assert reference_name(model) == "ONNX Runtime"


def test_what_torch_refuses_is_said_in_one_line(monkeypatch, relu_model, tmp_path):
    def refuse(*given):
        raise RuntimeError("Guard failed: x.size()[0] <= 8.\nMore")

    model = model_computing(monkeypatch, relu_model, tmp_path, refuse)
    with pytest.raises(UserError, match=r"torch cannot run .*m\.pt2 \(Guard failed: x\.size\(\)\[0\] <= 8\), so there"):
        run_reference(model, {"x": X})

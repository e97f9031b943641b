# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check_contrib, model_of

F = "float32"


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("shape", "scale", "attributes"),
    [
        ((2, 3, 8), (8,), {"num_branches": 2}),
        ((2, 3, 8), None, {"num_branches": 4, "epsilon": 0.1}),
        ((2, 3, 4), (3, 4), {}),
        ((2, 3, 4), (4,), {"epsilon": 0.1}),
        ((2, 3, 4), (12,), {}),
        ((2, 3, 4), None, {}),
    ],
)
@pytest.mark.parametrize(("dtype", "close"), [("float32", 3e-6), ("float16", 2e-3)])
def test_each_branch_by_itself(shape, scale, attributes, dtype, close):
    given = {} if scale is None else {"s": _floats(*scale, seed=1).astype(dtype)}
    check_contrib(
        "BranchwiseRMSNorm", {"x": _floats(*shape).astype(dtype)}, {"y": dtype}, given, tolerance=close, **attributes
    )


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("size", [4, 8])
def test_a_gate_behind_it(name, size):
    arrays = {"x": _floats(2, 3, 8), "g": _floats(2, 3, 8, seed=1)}
    check_contrib(
        "GatedRMSNorm", arrays, {"y": F}, {"s": _floats(size, seed=2)}, "x s g", activation=name, epsilon=1e-3
    )


def test_another_activation_is_refused():
    node = helper.make_node("GatedRMSNorm", ["x", "s", "x"], ["y"], "gate", domain=RUNTIME, activation="relu")
    model = model_of([node], {"x": _floats(2, 8)}, {"y": (F, (2, 8))}, {"s": _floats(8)})
    with pytest.raises(sm.UserError, match=r"GatedRMSNorm.*gate.*activation is 'relu'"):
        sm.from_onnx(model)

# SPDX-License-Identifier: Apache-2.0
"""Convert a model of bfloat16 to float32: ONNX Runtime has hardly any bfloat16 kernels for a CPU."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import tvm
from onnx import TensorProto

from smartmem_tvm.frontend.load_weights import Weight, Weights
from smartmem_tvm.frontend.onnx_file import Model
from smartmem_tvm.frontend.widen import has_type, widen


def has_bfloat16(model: onnx.ModelProto) -> bool:
    """Whether a model takes, returns or holds bfloat16, or casts to it."""
    return has_type(model, TensorProto.BFLOAT16)


def without_bfloat16(model: Model) -> Model:
    """Return the model with values and operators in float32; casts to bfloat16 no longer round."""
    proto = widen(model.proto, {TensorProto.BFLOAT16}, TensorProto.FLOAT)
    return Model(model.name, proto, _wide_weights(model.weights))


def _wide_weights(weights: Weights) -> Weights:
    def widened(name: str) -> Callable[[], tvm.runtime.Tensor]:
        return lambda: tvm.runtime.tensor(weights.array(name).astype("float32"))

    float32 = np.dtype("float32")
    return Weights(
        {
            name: Weight(each.shape, float32, widened(name)) if each.dtype == ml_dtypes.bfloat16 else each
            for name, each in weights.all.items()
        }
    )

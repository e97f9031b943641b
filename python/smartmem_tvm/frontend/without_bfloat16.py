# SPDX-License-Identifier: Apache-2.0
"""A model of bfloat16 in float32: ONNX Runtime has hardly a kernel for bfloat16 on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import tvm
from onnx import TensorProto

from smartmem_tvm.frontend.onnx_file import Model
from smartmem_tvm.frontend.weights import Weight, Weights
from smartmem_tvm.frontend.widen import has_type, widen


def has_bfloat16(model: onnx.ModelProto) -> bool:
    """Whether a model takes, gives or holds such numbers, or casts to them."""
    return has_type(model, TensorProto.BFLOAT16)


def without_bfloat16(model: Model) -> Model:
    """The same numbers in float32, and operators that compute in it; casts to bfloat16 round nothing any more."""
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

# SPDX-License-Identifier: Apache-2.0
"""A model with its input arrays, and the evaluation of any tensor inside."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...frontend.exact_onnxruntime import session_options


@dataclass(frozen=True)
class Case:
    """A model and its input.

    Attributes
    ----------
    model : onnx.ModelProto
        The model with all weights inside.
    arrays : mapping
        Input name -> array.
    """

    model: onnx.ModelProto
    arrays: Mapping[str, np.ndarray]

    @property
    def digest(self) -> bytes:
        """Return a hash that equal cases share."""
        found = hashlib.sha256(self.model.SerializeToString(deterministic=True))
        for name, array in self.arrays.items():
            found.update(f"{name}{array.shape}{array.dtype}".encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return found.digest()


Evaluate = Callable[[Case, Sequence[str]], Mapping[str, np.ndarray]]
"""Returns values of tensors of a case by name, without those that cannot be computed."""


def evaluate(case: Case, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return ONNX Runtime's values without optimizations, or random ones of the right type if it refuses the model."""
    known = {**{each.name: each for each in case.model.graph.initializer}, **case.arrays}
    inner = [name for name in dict.fromkeys(names) if name not in known]
    try:
        found = _run(case, inner) if inner else {}
    except Exception:  # its exceptions share no base class of their own
        found = _drawn(case.model, inner)
    given = {name: known[name] for name in names if name in known}
    arrays = {name: numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for name, v in given.items()}
    return {**arrays, **{name: value for name, value in found.items() if isinstance(value, np.ndarray)}}


def _run(case: Case, names: Sequence[str]) -> dict[str, np.ndarray]:
    import onnxruntime

    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = session_options(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    taken = {each.name for each in session.get_inputs()}
    feeds = {name: array for name, array in case.arrays.items() if name in taken}
    return dict(zip(names, session.run(list(names), feeds), strict=True))


def _drawn(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Draw arrays of the types that ONNX infers: standard normal floats, and 0 or 1 for other types."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError):
        return {}
    types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
    random, found = np.random.default_rng(0), {}
    for name in names:
        kind = types.get(name, onnx.TypeProto.Tensor())
        if not kind.elem_type or not kind.HasField("shape") or not all(d.HasField("dim_value") for d in kind.shape.dim):
            continue
        shape, dtype = [d.dim_value for d in kind.shape.dim], helper.tensor_dtype_to_np_dtype(kind.elem_type)
        floats = np.issubdtype(dtype, np.floating)
        found[name] = (random.standard_normal(shape) if floats else random.integers(0, 2, shape)).astype(dtype)
    return found

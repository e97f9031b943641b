# SPDX-License-Identifier: Apache-2.0
"""Run a graph in ONNX Runtime and in ONNX's reference implementation; called in the process of `in_child_process`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_stft import STFT

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.exact_onnxruntime import session_options
from smartmem_tvm.frontend.widen import SHORT, widen

Weights = Mapping[str, np.ndarray | tuple]
"""Name -> the values, or their place: the file, their type, the byte at which they begin, their shape."""


def run_graph(model: bytes, weights: Weights, arrays: Mapping[str, np.ndarray], threads: int = 0) -> list[np.ndarray]:
    """Return ONNX Runtime's results for a graph whose large weights are given separately and are not copied.

    The optimizations that pack weights a second time for its own kernels are off.

    Parameters
    ----------
    threads : int
        Threads of an operator; 0 for one on each core.

    Raises
    ------
    UserError
        If it refuses the graph or the input; the text is ONNX Runtime's.
    """
    options = _options(threads)
    options.add_session_config_entry("session.disable_prepacking", "1")
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(_values(each)) for each in weights.values()]
    options.add_external_initializers(list(weights), values)
    return _run(model, options, arrays)


def run_file(path: str, arrays: Mapping[str, np.ndarray], threads: int = 0) -> list[np.ndarray]:
    """Return ONNX Runtime's results for an unchanged file; `threads` as in `run_graph`.

    Raises
    ------
    UserError
        If it refuses the file or the input; the text is ONNX Runtime's.
    """
    return _run(path, _options(threads), arrays)


def _options(threads: int) -> onnxruntime.SessionOptions:
    options = session_options(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _run(model: bytes | str, options: onnxruntime.SessionOptions, arrays: Mapping[str, np.ndarray]) -> list:
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return session.run(None, dict(arrays))
    except Exception as error:  # its exceptions share no base class of their own
        raise UserError(str(error)) from error


class _Stft(STFT):
    """STFT that also takes a real signal without a last axis of size 1, as ONNX Runtime does."""

    op_domain = ""

    def _run(self, signal, *others, **attributes):
        return super()._run(signal[..., None] if signal.ndim == 2 else signal, *others, **attributes)


_Stft.__name__ = STFT.__name__  # by which the evaluator finds it


def run_plainly(model: bytes, weights: Weights, arrays: Mapping[str, np.ndarray], in_doubles: bool) -> list[np.ndarray]:
    """Return the results of ONNX's reference implementation, which computes operator by operator in numpy.

    Parameters
    ----------
    in_doubles : bool
        Tensors and arithmetic of shorter floating types are in float64.
    """
    proto = onnx.ModelProto.FromString(model)
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(_values(weights[tensor.name]), tensor.name))
    if in_doubles:
        proto = widen(proto, SHORT, onnx.TensorProto.DOUBLE)
        arrays = {name: _double(array) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        return [np.asarray(each) for each in ReferenceEvaluator(proto, new_ops=[_Stft]).run(None, dict(arrays))]


def _double(array: np.ndarray) -> np.ndarray:
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return array.astype(np.float64) if kind in SHORT else array


def _values(weight: np.ndarray | tuple) -> np.ndarray:
    if isinstance(weight, np.ndarray):
        return weight
    path, dtype, offset, shape = weight
    return np.memmap(path, dtype, "c", offset, shape) if prod(shape) else np.empty(shape, dtype)

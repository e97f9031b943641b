# SPDX-License-Identifier: Apache-2.0
"""The reference for results: ONNX Runtime on the same model and the same memory, or torch for a torch program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import onnx

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import reference_run
from smartmem_tvm.frontend import walk_graph as walk
from smartmem_tvm.frontend.child_process import Stopped, in_child_process
from smartmem_tvm.frontend.onnx_file import Model, one_line
from smartmem_tvm.frontend.torch_reference import run_torch
from smartmem_tvm.frontend.without_bfloat16 import has_bfloat16, without_bfloat16

if TYPE_CHECKING:
    import onnxruntime

_log = logging.getLogger(__name__)

_SECONDS = 3600  # limit of one inference
_QUIET = 4  # ONNX Runtime's level "fatal"
# Their results depend on the number of threads: each thread computes a scale for its share of the batch.
_BY_THREADS = frozenset(("DynamicQuantizeLSTM",))


def onnxruntime_session(model: Model, threads: int | None = None, lean: bool = False) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime's session for a model, on the CPU; no file is written.

    Parameters
    ----------
    model : Model
        The result of `read_model`.
    threads : int or None
        Threads of one operator; None for one per core.
    lean : bool
        Switch off the optimizations that pack weights a second time for ONNX Runtime's own kernels. ONNX Runtime then
        takes the memory of the weights once, otherwise up to three times.

    Raises
    ------
    UserError
        If ONNX Runtime refuses the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    options.intra_op_num_threads = threads or 0
    # Its threads would spin while they wait for work, on cores that other programs or the next measurement need.
    # Spinning makes an inference faster on an idle machine and slower on a shared one (docs/cpu.md).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if lean:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.add_session_config_entry("session.disable_prepacking", "1")
    proto, names = _with_external_weights(model)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(model.weights.array(name)) for name in names]
    options.add_external_initializers(names, values)
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as err:  # onnxruntime's exceptions share no base class of their own
        raise _refusal(model, err) from err
    session.weights = values  # the memory must outlive the session
    return session


def run_onnxruntime(model: Model, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return ONNX Runtime's results, computed in a separate process and in little memory (`reference_run`).

    It computes bfloat16 in float32, and bfloat16 outputs are rounded at the end. If it refuses the model with fixed
    sizes, it runs the unchanged file.

    Raises
    ------
    UserError
        If ONNX Runtime refuses the model or the input, or crashes.
    """
    wide = has_bfloat16(model.proto)
    given = {name: array.astype(np.float32) if _is_bfloat16(array) else array for name, array in arrays.items()}
    graph = _graph_of(without_bfloat16(model) if wide else model)
    threads = 1 if any(node.op_type in _BY_THREADS for node in walk.nodes(model.proto.graph)) else 0
    try:
        outputs = _apart(reference_run.run_graph, *graph, given, threads)
    except (Stopped, UserError, RuntimeError) as err:
        outputs = None if wide else _by_file(model, given, threads)
        if outputs is None:
            raise _refusal(model, err) from err
    stated = [value.type.tensor_type.elem_type for value in model.proto.graph.output]
    bfloat16 = onnx.TensorProto.BFLOAT16
    return [
        array.astype(ml_dtypes.bfloat16) if kind == bfloat16 else array
        for array, kind in zip(outputs, stated, strict=True)
    ]


def run_exactly(model: Model, arrays: Mapping[str, np.ndarray]) -> tuple[list, list] | None:
    """Return the results of ONNX's reference implementation, in doubles and in the model's types; None if it fails.

    It is slow, and has no operators of other domains. If it cannot compute in doubles, it computes in the model's
    types.
    """
    found = []
    for in_doubles in (False, True):
        try:
            found.insert(0, _apart(reference_run.run_plainly, *_graph_of(model), dict(arrays), in_doubles))
        except (Stopped, UserError, RuntimeError) as err:
            _log.info("ONNX's implementation does not compute %s: %s", model.name, one_line(err))
            if not found:
                return None
    return found[0], found[-1]


def _apart(function: Callable, *arguments) -> list[np.ndarray]:
    return in_child_process(function, *arguments, seconds=_SECONDS, memory=None)


def _by_file(model: Model, arrays: Mapping[str, np.ndarray], threads: int) -> list[np.ndarray] | None:
    if model.path is None:
        return None
    try:
        return _apart(reference_run.run_file, str(model.path), {**arrays, **model.values}, threads)
    except (Stopped, UserError, RuntimeError) as err:
        _log.info("ONNX Runtime refuses the file as it is, too: %s", one_line(err))
        return None


def _graph_of(model: Model) -> tuple[bytes, dict]:
    """Return a model for another process: its graph, and its weights or their places in files."""
    proto, names = _with_external_weights(model)
    weights = {}
    for name in names:
        weight = model.weights.all[name]
        there = weight.place and (str(weight.place[0]), str(weight.dtype), weight.place[1], weight.shape)
        weights[name] = there or model.weights.array(name)
    return proto.SerializeToString(), weights


def _is_bfloat16(array: np.ndarray) -> bool:
    return array.dtype == ml_dtypes.bfloat16


def run_reference(model: Model, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the reference results of a model: torch's for its programs, otherwise ONNX Runtime's (`reference_name`).

    Raises
    ------
    UserError
        If the reference refuses the model or the input.
    """
    if model.original is not None:
        return model.original.results(run_reference, arrays)
    if model.program is None:
        return run_onnxruntime(model, arrays)
    return run_torch(model.program, [arrays[name] for name in model.inputs], model.name)


def reference_name(model: Model) -> str:
    """Return the name of a model's reference in messages."""
    return "ONNX Runtime" if model.program is None else "torch"


def _refusal(model: Model, err: Exception) -> UserError:
    return UserError(f"ONNX Runtime cannot run {model.name} ({one_line(err)}), so there is nothing to compare with.")


def _with_external_weights(model: Model) -> tuple[onnx.ModelProto, list[str]]:
    """Return a copy whose large weights are marked external: ONNX Runtime lets a program provide only those."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    external = [tensor for tensor in proto.graph.initializer if model.weights.hold(tensor)]
    for tensor in external:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entries = {"location": "memory", "offset": "0", "length": str(model.weights.nbytes(tensor.name))}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    return proto, [tensor.name for tensor in external]

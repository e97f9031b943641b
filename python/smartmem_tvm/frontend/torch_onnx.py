# SPDX-License-Identifier: Apache-2.0
"""Convert a torch program to ONNX with torch's own exporter, without a copy of its weights."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import tvm

from smartmem_tvm.frontend.load_weights import Weight, Weights, as_tensor
from smartmem_tvm.frontend.onnx_file import LARGE, Model
from smartmem_tvm.frontend.torch_exporter import export
from smartmem_tvm.frontend.torch_inference import check_inference, check_writes
from smartmem_tvm.frontend.torch_operators import with_simple_operators
from smartmem_tvm.frontend.torch_reductions import with_narrow_results

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_log = logging.getLogger(__name__)


def model_of(program: ExportedProgram, name: str, keep: bool = False) -> Model:
    """Translate a program with torch's exporter.

    Parameters
    ----------
    name : str
        The model's name in messages.
    keep : bool
        Whether the program's weights stay unchanged from now on, so that the model may share their memory.

    Returns
    -------
    Model
        The model, as if read from a file; open sizes of the program are named dimensions of its inputs.

    Raises
    ------
    UserError
        If the program is not inference; see `torch_inference`.
    Exception
        Errors of torch's exporter, of many types, for an unknown operator.
    """
    check_inference(program, name)
    simple = with_simple_operators(program)
    attempts = (_with_plain_attention,) if _has_unknown_attention(simple) else (_as_it_is, _with_plain_attention)
    for number, prepare in enumerate(attempts, 1):
        try:
            exported = export(with_narrow_results(prepare(simple)))
            model = _read(exported, name, keep)
            _require_stated_types(program, model.proto)
        except Exception as error:
            if number == len(attempts):
                raise
            _log.info("Attention is taken apart for torch's exporter: %s.", cause_of(error))
        else:
            check_writes(exported.exported_program.graph_signature, name)
            return replace(model, program=program)
    raise AssertionError("no attempt")


def cause_of(error: BaseException) -> str:
    """Return why torch's exporter failed, in a line without a full stop: its own message is a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _read(exported: torch.onnx.ONNXProgram, name: str, keep: bool) -> Model:
    with tempfile.TemporaryDirectory(prefix="smartmem-torch-") as folder:
        path = Path(folder) / "model.onnx"
        exported.save(path, include_initializers=False)
        proto = onnx.load_model(path)
    weights = {}
    for key, value in exported.model.graph.initializers.items():
        array = value.const_value.numpy()
        if array.nbytes > LARGE and array.dtype.kind in "biuf":
            proto.graph.initializer.add(name=key, data_type=_number(array.dtype), dims=array.shape)
            weights[key] = Weight(array.shape, array.dtype, _loader(array, keep))
        else:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    return Model(name, proto, Weights(weights))


def _require_stated_types(program: ExportedProgram, proto: onnx.ModelProto) -> None:
    """Raise if a result of torch's exporter has another type than the program's: it promotes some operators."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    stated = output.args[0][-len(proto.graph.output) :]  # after the values of mutated buffers
    for node, found in zip(stated, proto.graph.output, strict=True):
        dtype = str(getattr(node.meta["val"], "dtype", "")).removeprefix("torch.") if hasattr(node, "meta") else ""
        made = onnx.TensorProto.DataType.Name(found.type.tensor_type.elem_type).lower()
        if dtype in ("float16", "bfloat16") and made != dtype:
            raise TypeError(f"torch's exporter makes '{found.name}' {made}, where the program has {dtype}")


def _number(dtype: np.dtype) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(dtype)


def _loader(array: np.ndarray, keep: bool) -> Callable[[], tvm.runtime.Tensor]:
    def load() -> tvm.runtime.Tensor:
        values = np.ascontiguousarray(array)
        return as_tensor(values) if keep or values is not array else tvm.runtime.tensor(values)

    return load


def _as_it_is(program: ExportedProgram) -> ExportedProgram:
    return program


def _has_unknown_attention(program: ExportedProgram) -> bool:
    """Whether a program has attention of other than four dimensions; torch's exporter knows only four."""
    return any(
        str(node.target) == "aten.scaled_dot_product_attention.default" and node.args[0].meta["val"].ndim != 4
        for node in program.graph.nodes
    )


def _with_plain_attention(program: ExportedProgram) -> ExportedProgram:
    """Write attention as products and a softmax; its result has another memory layout than torch's kernel's."""
    import torch

    aten, table = torch.ops.aten, torch.export.default_decompositions()

    def attention(query, key, value, mask=None, dropout=0.0, causal=False, *, scale=None, enable_gqa=False):
        chooses = mask is not None and mask.dtype == torch.bool
        if causal or enable_gqa or chooses:
            if chooses:  # the operator below adds the mask
                mask = torch.where(mask, 0.0, -math.inf).to(query.dtype)
            options = {"scale": scale, "enable_gqa": enable_gqa}
            return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, **options)[0]
        # torch's decomposition also looks for rows without a finite number, which cannot be fused, and which torch's
        # exporter omits for attention of four dimensions.
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
        return (scores if mask is None else scores + mask).softmax(-1) @ value

    def view(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
        return NotImplemented if tensor.is_contiguous() else aten.view(tensor.contiguous(), shape)

    table[aten.scaled_dot_product_attention.default], table[aten.view.default] = attention, view
    return program.run_decompositions(table)

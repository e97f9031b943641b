# SPDX-License-Identifier: Apache-2.0
"""A torch program as the ONNX model that torch's own exporter makes of it, without a copy of its weights."""

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

from smartmem_tvm.frontend.onnx_file import LARGE, Model
from smartmem_tvm.frontend.torch_exporter import export
from smartmem_tvm.frontend.torch_inference import check_inference, check_writes
from smartmem_tvm.frontend.torch_operators import with_simple_operators
from smartmem_tvm.frontend.torch_reductions import with_narrow_results
from smartmem_tvm.frontend.weights import Weight, Weights, as_tensor

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_log = logging.getLogger(__name__)


def model_of(program: ExportedProgram, name: str, keep: bool = False) -> Model:
    """Translate a program with torch's exporter.

    Parameters
    ----------
    name : str
        What messages call it.
    keep : bool
        Whether nobody changes the program's weights from now on, so that the model may share their memory.

    Returns
    -------
    Model
        As read from a file; sizes that the program leaves open are named dimensions of its inputs.

    Raises
    ------
    UserError
        If the program is no inference; see `torch_inference`.
    Exception
        What torch's exporter raises, of many kinds, if it does not know an operator.
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
    """What made torch's exporter fail, in a line without a full stop: its own words are a page of advice."""
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
    """Raise if torch's exporter made a result of another type than the program's: it promotes some operators."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    stated = output.args[0][-len(proto.graph.output) :]  # before them is what the program writes into its buffers
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
    """Whether it has attention of other than four dimensions, the only one that torch's exporter knows."""
    return any(
        str(node.target) == "aten.scaled_dot_product_attention.default" and node.args[0].meta["val"].ndim != 4
        for node in program.graph.nodes
    )


def _with_plain_attention(program: ExportedProgram) -> ExportedProgram:
    """Attention as products and a softmax, whose result has another order in memory than that of torch's kernel."""
    import torch

    aten, table = torch.ops.aten, torch.export.default_decompositions()

    def attention(query, key, value, mask=None, dropout=0.0, causal=False, *, scale=None, enable_gqa=False):
        chooses = mask is not None and mask.dtype == torch.bool
        if causal or enable_gqa or chooses:
            if chooses:  # the operator below takes numbers to add
                mask = torch.where(mask, 0.0, -math.inf).to(query.dtype)
            options = {"scale": scale, "enable_gqa": enable_gqa}
            return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, **options)[0]
        # That one also looks for rows without a finite number, which cannot be fused, and which torch's exporter leaves
        # out where it knows the attention.
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
        return (scores if mask is None else scores + mask).softmax(-1) @ value

    def view(tensor: torch.Tensor, shape: list[int]) -> torch.Tensor:
        return NotImplemented if tensor.is_contiguous() else aten.view(tensor.contiguous(), shape)

    table[aten.scaled_dot_product_attention.default], table[aten.view.default] = attention, view
    return program.run_decompositions(table)

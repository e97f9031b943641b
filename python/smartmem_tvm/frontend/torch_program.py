# SPDX-License-Identifier: Apache-2.0
"""torch.export -> Relax."""

from __future__ import annotations

import importlib.util
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from smartmem_tvm.errors import UserError, reason_of
from smartmem_tvm.frontend.spec import with_names

if TYPE_CHECKING:
    import tvm
    from torch.export import ExportedProgram

_log = logging.getLogger(__name__)


def from_torch(exported_program: ExportedProgram) -> tvm.IRModule:
    """Convert a torch ExportedProgram to a Relax module.

    Through torch's own exporter and `smartmem_tvm.frontend.from_onnx`: a network becomes the same kernels through both
    doors. What that exporter does not know, or everything if onnxscript is not installed, goes through TVM's importer.

    Parameters
    ----------
    exported_program : torch.export.ExportedProgram
        What ``torch.export.export(model.eval(), args)`` returns, exported without dynamic shapes.

    Returns
    -------
    tvm.IRModule
        As `smartmem_tvm.frontend.from_onnx` gives it: function ``main``, weights as constants.

    Raises
    ------
    UserError
        If torch is not installed, the argument is no ExportedProgram, a dimension is symbolic or nobody can translate
        an operator.
    """
    try:
        from torch.export import ExportedProgram
    except ImportError as err:
        raise UserError("from_torch needs torch: run `pip install torch onnxscript`.") from err
    if not isinstance(exported_program, ExportedProgram):
        raise UserError(f"from_torch takes what torch.export.export returns, not {type(exported_program).__name__}.")
    _refuse_symbolic(exported_program)
    if importlib.util.find_spec("onnxscript") is None:
        _log.warning("torch's exporter needs onnxscript (`pip install onnxscript`): TVM's leaves more kernels.")
        return _by_tvm(exported_program)
    for prepared in (lambda program: program, _with_plain_attention):
        try:
            return _by_onnx(prepared(exported_program))
        except Exception as error:  # torch's exporter raises many kinds, and what it writes may be refused here
            _log.info("torch's exporter is of no use here: %s.", reason_of(error).rstrip("."))
    return _by_tvm(exported_program)


def _by_onnx(program: ExportedProgram) -> tvm.IRModule:
    """In a folder, with the weights in a file beside: they may be more than a model can hold."""
    import torch.onnx

    from smartmem_tvm.frontend import from_onnx

    with tempfile.TemporaryDirectory(prefix="smartmem-torch-") as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(program, dynamo=True, verbose=False).save(path, external_data=True)
        return from_onnx(path)


def _with_plain_attention(program: ExportedProgram) -> ExportedProgram:
    """Attention as products and a softmax: torch's exporter knows the operator with four dimensions only."""
    import torch

    aten, table = torch.ops.aten, torch.export.default_decompositions()
    table[aten.scaled_dot_product_attention.default] = lambda *args, **options: aten._scaled_dot_product_attention_math(
        *args, **options
    )[0]
    return program.run_decompositions(table)


def _by_tvm(program: ExportedProgram) -> tvm.IRModule:
    from tvm.relax.frontend.torch import from_exported_program

    try:
        mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    except Exception as err:
        reason = " ".join(str(err).split()).rstrip(".")
        raise UserError(f"TVM's importer refuses the torch program: {reason}; export it otherwise.") from err
    signature = program.graph_signature
    return with_names(mod, signature.user_inputs, signature.user_outputs)


def _refuse_symbolic(program: ExportedProgram) -> None:
    """Refuse dynamic shapes: kernels are compiled for fixed sizes."""
    if program.range_constraints:
        symbols = ", ".join(sorted(map(str, program.range_constraints)))
        raise UserError(
            f"The torch program has dynamic sizes ({symbols}), and kernels are compiled for fixed ones; "
            f"export it without dynamic_shapes."
        )

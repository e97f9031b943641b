# SPDX-License-Identifier: Apache-2.0
"""Convert a program of torch.export to Relax."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from smartmem_tvm._tvm import end_blocks
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import open_dimension, several_sizes, torch_file
from smartmem_tvm.frontend.spec import with_names
from smartmem_tvm.frontend.torch_inference import check_inference, check_writes
from smartmem_tvm.frontend.torch_onnx import cause_of, model_of
from smartmem_tvm.frontend.torch_operators import with_simple_operators
from smartmem_tvm.frontend.torch_sizes import open_shapes, with_fixed_sizes
from smartmem_tvm.tvm_lock import one_at_a_time

if TYPE_CHECKING:
    import tvm
    from torch.export import ExportedProgram

_log = logging.getLogger(__name__)
_NAME = "The torch program"


@one_at_a_time
def from_torch(
    exported_program: ExportedProgram,
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None = None,
) -> tvm.IRModule:
    """Convert a torch ExportedProgram to a Relax module.

    The program goes through torch's own exporter and `smartmem_tvm.frontend.from_onnx`, so that a network becomes the
    same kernels as from its ONNX file. A program that the exporter cannot translate, or any program if onnxscript is
    not installed, goes through TVM's importer.

    Parameters
    ----------
    exported_program : torch.export.ExportedProgram
        The result of ``torch.export.export(model.eval(), args)``.
    shapes : mapping from str to sequence of int, or sequence of such, optional
        Input name -> shape, for inputs whose sizes the program leaves open (``dynamic_shapes``). A size given for one
        input holds for every equal size of the program. With a list, one mapping for each size, the module has a
        function for each (docs/shapes.md). With a range like ``"1..64"`` in the place of a size, that dimension stays
        open. Without `shapes`, those sizes stay open whose bounds the program states, at most two of them.

    Returns
    -------
    tvm.IRModule
        Like the result of `smartmem_tvm.frontend.from_onnx`: function ``main``, weights as constants, static shapes.
        With an open dimension, a function for each tile or capacity.

    Raises
    ------
    UserError
        If torch is not installed, the argument is not an ExportedProgram, the program is in training mode, draws random
        numbers or writes into its buffers or inputs, a size has no number or one that the program was not exported for,
        or an operator cannot be translated.
    """
    torch_file.require_torch()
    from torch.export import ExportedProgram

    from smartmem_tvm.frontend import bound, from_onnx
    from smartmem_tvm.frontend.verbs import imported

    if not isinstance(exported_program, ExportedProgram):
        raise UserError(f"from_torch takes what torch.export.export returns, not {type(exported_program).__name__}.")
    if importlib.util.find_spec("onnxscript") is None:
        _log.warning("torch's exporter needs onnxscript (`pip install onnxscript`): TVM's leaves more kernels.")
        return _each_by_tvm(exported_program, shapes)
    try:
        model = model_of(exported_program, _NAME)
    except UserError:
        raise
    except Exception as error:  # torch raises many types
        _log.info("torch's exporter is of no use here: %s.", cause_of(error))
        return _each_by_tvm(exported_program, shapes)
    wanted = open_shapes(exported_program) if shapes is None else shapes
    if open_dimension.has_ranges(wanted):
        return open_dimension.opened(model, wanted, bound, imported).module
    model = bound(model, shapes) if _of_one_size(shapes) else several_sizes.bound_to_each(model, shapes, bound)
    try:
        return from_onnx(model)
    except UserError as error:
        _log.info("What torch's exporter writes is refused: %s", error)
        return _each_by_tvm(exported_program, shapes)


def _of_one_size(shapes: object) -> bool:
    return shapes is None or isinstance(shapes, Mapping)


def _each_by_tvm(program: ExportedProgram, shapes) -> tvm.IRModule:
    """Return what TVM's importer makes of a program, at one size or at several.

    Raises
    ------
    UserError
        If a dimension is to stay open.
    """
    if open_dimension.has_ranges(shapes):
        raise UserError(
            f"{_NAME} leaves a size open, which needs torch's exporter to ONNX, and it does not translate the program: "
            f"give numbers, or a list of sizes."
        )
    if _of_one_size(shapes):
        return _by_tvm(program, shapes)
    return several_sizes.joined([_by_tvm(program, each) for each in several_sizes.checked(shapes)])


def _by_tvm(program: ExportedProgram, shapes: Mapping[str, Sequence[int]] | None) -> tvm.IRModule:
    check_inference(program, _NAME)
    if program.range_constraints:
        program = with_fixed_sizes(program, shapes or {}, _NAME)  # TVM's importer needs fixed sizes
    try:
        decomposed = with_simple_operators(program).run_decompositions()
        check_writes(decomposed.graph_signature, _NAME)
        mod = _translated(decomposed)
    except UserError:
        raise
    except Exception as err:
        reason = " ".join(str(err).split()).rstrip(".")
        raise UserError(f"TVM's importer refuses the torch program: {reason}; export it otherwise.") from err
    signature = program.graph_signature
    return with_names(mod, signature.user_inputs, signature.user_outputs)


def _translated(program: ExportedProgram) -> tvm.IRModule:
    """Import a decomposed program like TVM's ``from_exported_program``."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    importer = ExportedProgramImporter()
    options = {"keep_params_as_input": False, "no_bind_return_tuple": False, "custom_convert_map": None}
    try:
        mod = importer.from_exported_program(program, unwrap_unit_return_tuple=True, **options)
    except Exception:
        end_blocks(importer.block_builder)
        raise
    _refuse_other_types(importer.env)
    return mod


def _refuse_other_types(values: Mapping) -> None:
    """Refuse a program if TVM's importer gives any of its values another type or shape than torch."""
    for node, value in values.items():
        stated, ty = node.meta.get("val"), getattr(value, "ty", None)
        if not hasattr(stated, "dtype") or getattr(ty, "dtype", None) is None:
            continue  # several results, each of which is checked by itself; or a number
        wanted = str(stated.dtype).removeprefix("torch."), [int(size) for size in stated.shape]
        found = str(ty.dtype.dtype), [int(size) for size in getattr(ty.shape, "values", wanted[1])]
        if found != wanted:
            raise UserError(
                f"TVM's importer refuses the torch program: '{node.name}' ({node.target}) becomes {_text(*found)}, and "
                f"is {_text(*wanted)} in torch; write it in another way."
            )


def _text(dtype: str, shape: Sequence[int]) -> str:
    return f"{'x'.join(map(str, shape)) or 'a single number'} of {dtype}"

# SPDX-License-Identifier: Apache-2.0
"""torch.export -> Relax."""

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend.spec import with_names


def from_torch(exported_program):
    """Convert a torch ExportedProgram to a Relax module.

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
        If torch is not installed, the argument is no ExportedProgram, a dimension is symbolic or TVM cannot
        translate an operator.
    """
    try:
        from torch.export import ExportedProgram
        from tvm.relax.frontend.torch import from_exported_program
    except ImportError as err:
        raise UserError("from_torch needs torch: run `pip install torch`.") from err
    if not isinstance(exported_program, ExportedProgram):
        raise UserError(f"from_torch takes what torch.export.export returns, not {type(exported_program).__name__}.")
    _refuse_symbolic(exported_program)
    try:
        mod = from_exported_program(exported_program, unwrap_unit_return_tuple=True)
    except Exception as err:
        reason = " ".join(str(err).split()).rstrip(".")
        raise UserError(f"TVM's importer refuses the torch program: {reason}; export it otherwise.") from err
    signature = exported_program.graph_signature
    return with_names(mod, signature.user_inputs, signature.user_outputs)


def _refuse_symbolic(program) -> None:
    """Refuse dynamic shapes: kernels are compiled for fixed sizes."""
    if program.range_constraints:
        symbols = ", ".join(sorted(map(str, program.range_constraints)))
        raise UserError(
            f"The torch program has dynamic sizes ({symbols}), and kernels are compiled for fixed ones; "
            f"export it without dynamic_shapes."
        )

# SPDX-License-Identifier: Apache-2.0
"""Read the files that ``torch.export.save`` writes; refuse other files of torch.

torch reads a ``.pt2`` file with pickle and evaluates expressions in it: unlike an ONNX file it is a program to trust,
not data. The ending of the name is checked before the file is read.
"""

from __future__ import annotations

import importlib.util
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from smartmem_tvm.errors import UserError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from smartmem_tvm.frontend.onnx_file import Model

PROGRAM = ".pt2"
_OTHERS = (".pt", ".pth", ".ckpt", ".safetensors")
_REMEDY = "torch.export.save(torch.export.export(model.eval(), args), 'model.pt2')"


def is_of_torch(source: object) -> bool:
    """Whether a model is a file of torch, judged by its ending."""
    return isinstance(source, str | PathLike) and Path(source).suffix.lower() in (PROGRAM, *_OTHERS)


def require_torch(what: str = "from_torch", *more: str) -> None:
    """Raise a UserError if torch or one of the packages `more`, which `what` needs, is not installed."""
    missing = [name for name in ("torch", *more) if not _is_installed(name)]
    if missing:
        raise UserError(f'{what} needs {" and ".join(missing)}: run `pip install "smartmem-tvm[torch]"`.')


def read(path: Path) -> Model:
    """Read a program and translate it with torch's exporter.

    Parameters
    ----------
    path : Path
        A path for which `is_of_torch` holds.

    Raises
    ------
    UserError
        If the file is missing, damaged or not an exported program, if torch or onnxscript is not installed, if torch's
        exporter does not know an operator, or if the program is not inference; see `torch_inference`.
    """
    from smartmem_tvm.frontend.torch_onnx import cause_of, model_of

    if path.is_dir() or not path.exists():
        kind = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {kind}; give a file that torch.export.save wrote.")
    if path.suffix.lower() != PROGRAM:
        raise UserError(f"{path} holds weights or a module, and not an exported program; write one with {_REMEDY}.")
    require_torch(f"{path}: a program of torch", "onnxscript")
    program = _load(path)
    try:
        return model_of(program, str(path), keep=True)
    except UserError:
        raise
    except Exception as error:  # torch raises many types
        raise UserError(
            f"{path}: torch's exporter to ONNX does not translate the program ({cause_of(error)}); export it "
            f"otherwise, or try smartmem_tvm.from_torch, which asks TVM's importer next."
        ) from error


def _load(path: Path) -> ExportedProgram:
    import torch.export

    from smartmem_tvm.frontend.torch_exporter import silence

    try:
        with silence():
            return torch.export.load(path)
    except PermissionError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    except Exception as error:  # torch raises many types
        raise UserError(
            f"{path} is damaged, holds no program or one of another version of torch than {torch.__version__}; write "
            f"it again with {_REMEDY}."
        ) from error


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a module without a specification, set by hand
        return True

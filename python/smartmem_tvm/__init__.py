# SPDX-License-Identifier: Apache-2.0
"""SmartMem for TVM: layout operators eliminated, what is left fused and scheduled.

Importing the package registers the pipeline ``"smartmem"``, so that
``tvm.compile(mod, target, relax_pipeline="smartmem")`` works. The public verbs are below; single passes are in
`smartmem_tvm.transform`.

The import itself loads nothing of TVM, which takes seconds, so that ``smartmem --help`` answers at once; verbs and
modules are imported when they are first asked for (PEP 562). What TVM has to know of this package it is told at the end
of ``import tvm``: by TVM itself where the package is installed (``tvm.backends`` in setup.py), otherwise by what is
registered here, whichever of the two is imported first.
"""

from typing import TYPE_CHECKING

import _smartmem_opencl
import _smartmem_pipeline

from ._import_hook import after_import
from ._lazy import lazy
from ._version import __version__, version_problem

if TYPE_CHECKING:  # for what reads the package without running it
    from .deploy.build import compile, compile_baseline, optimize
    from .deploy.compiled import Compiled
    from .errors import UserError
    from .frontend import from_onnx, from_torch
    from .pipeline import Options
    from .report import graph_cost

__all__ = [
    "Compiled",
    "Options",
    "UserError",
    "__version__",
    "compile",
    "compile_baseline",
    "from_onnx",
    "from_torch",
    "graph_cost",
    "optimize",
]


def _check() -> None:
    """A wrong pair of TVM packages may crash: nothing of TVM is imported then, and `smartmem doctor` works."""
    if problem := version_problem():
        raise ImportError(problem)


__getattr__, __dir__, _ = lazy(
    __name__,
    {
        "Compiled": "deploy.compiled",
        "Options": "pipeline",
        "UserError": "errors",
        "compile": "deploy.build",
        "compile_baseline": "deploy.build",
        "from_onnx": "frontend",
        "from_torch": "frontend",
        "graph_cost": "report",
        "optimize": "deploy.build",
    },
    _check,
)


def _tell_tvm() -> None:
    for module in (_smartmem_opencl, _smartmem_pipeline):
        module.autoload()


after_import("tvm", _tell_tvm)

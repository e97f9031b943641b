# SPDX-License-Identifier: Apache-2.0
"""SmartMem for TVM: eliminate layout operators, and fuse and schedule the rest.

Importing the package registers the pipeline ``"smartmem"``, so that
``tvm.compile(mod, target, relax_pipeline="smartmem")`` works. The public functions are below; single passes are in
`smartmem_tvm.transform`.

The import itself does not load TVM, which takes seconds, so that ``smartmem --help`` answers at once. Functions and
modules are imported on first use (PEP 562). The package registers itself with TVM at the end of ``import tvm``: through
TVM if the package is installed (``tvm.backends`` in setup.py), otherwise through the hook below, in either order of the
imports.
"""

from typing import TYPE_CHECKING

import _smartmem_opencl
import _smartmem_pipeline

from ._import_hook import after_import
from ._lazy import lazy
from ._version import __version__, version_problem

if TYPE_CHECKING:  # for tools that read the package without running it
    from .deploy.build import compile, compile_baseline, optimize
    from .deploy.compiled import Compiled
    from .deploy.decoder import Decoder
    from .errors import UserError
    from .frontend import from_gguf, from_onnx, from_torch
    from .graph_report import graph_cost
    from .pipeline import Options

__all__ = [
    "Compiled",
    "Decoder",
    "Options",
    "UserError",
    "__version__",
    "compile",
    "compile_baseline",
    "from_gguf",
    "from_onnx",
    "from_torch",
    "graph_cost",
    "optimize",
]


def _check() -> None:
    """Refuse a wrong pair of TVM packages, which may crash, before TVM is imported; `smartmem doctor` still works."""
    if problem := version_problem():
        raise ImportError(problem)


__getattr__, __dir__, _ = lazy(
    __name__,
    {
        "Compiled": "deploy.compiled",
        "Decoder": "deploy.decoder",
        "Options": "pipeline",
        "UserError": "errors",
        "compile": "deploy.build",
        "compile_baseline": "deploy.build",
        "from_gguf": "frontend",
        "from_onnx": "frontend",
        "from_torch": "frontend",
        "graph_cost": "graph_report",
        "optimize": "deploy.build",
    },
    _check,
)


def _tell_tvm() -> None:
    for module in (_smartmem_opencl, _smartmem_pipeline):
        module.autoload()


after_import("tvm", _tell_tvm)

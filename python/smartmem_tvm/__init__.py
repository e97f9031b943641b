# SPDX-License-Identifier: Apache-2.0
"""SmartMem for TVM: layout operators eliminated, what is left fused and scheduled.

Importing the package registers the pipeline ``"smartmem"``, so that
``tvm.compile(mod, target, relax_pipeline="smartmem")`` works. The public verbs are below; single passes are in
`smartmem_tvm.transform`.
"""

import sys
from pathlib import Path

from ._version import __version__, version_problem

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

# The `smartmem` command imports what it needs itself: TVM takes seconds, and `--help` should not. (While
# ``python -m smartmem_tvm`` imports this package, the name of the program is still "-m".)
_is_command = bool(sys.argv) and Path(sys.argv[0]).stem in ("smartmem", "-m")

_problem = version_problem()
if _problem is None and not _is_command:
    from .deploy.build import Compiled, compile, compile_baseline, optimize
    from .errors import UserError
    from .frontend import from_onnx, from_torch
    from .pipeline import Options
    from .report import graph_cost
elif _problem is not None:
    # With a wrong pair of TVM packages nothing of TVM is imported, because it may crash, but `smartmem doctor` works.
    def __getattr__(name: str):
        raise ImportError(_problem)

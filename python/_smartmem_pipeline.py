# SPDX-License-Identifier: Apache-2.0
"""Makes ``relax_pipeline="smartmem"`` known to TVM, by name only.

TVM calls `autoload` at the end of ``import tvm``. That is why this is no module of `smartmem_tvm`: a process that only
imports TVM does not load the rest of the package, which is imported when the pipeline is asked for.
"""

from __future__ import annotations

NAME = "smartmem"


def autoload() -> None:
    """Register the pipeline, unless there is one of its name; a wrong TVM is named when the pipeline is asked for.

    A TVM that is only its runtime, as on a board or in a tracker, compiles nothing and has no pipelines.
    """
    import tvm

    if tvm.base._RUNTIME_ONLY:
        return
    from tvm.relax.pipeline import PIPELINE_MAP

    PIPELINE_MAP.setdefault(NAME, _pipeline)


def _pipeline(**options):
    """What ``relax.get_pipeline("smartmem")`` calls."""
    import smartmem_tvm

    return smartmem_tvm.pipeline.smartmem_pipeline(**options)

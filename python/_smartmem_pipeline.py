# SPDX-License-Identifier: Apache-2.0
"""Makes ``relax_pipeline="smartmem"`` known to TVM, by name only, and TVM's own names for Adreno work.

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
    _mend_adreno()
    _mend_types()


def _mend_adreno() -> None:
    """Work-around: TVM's pipelines for Adreno run nothing as they come; `smartmem_tvm.deploy.tvm_adreno` says why.

    Pipelines that others have put there stay.
    """
    from tvm.relax.backend import adreno
    from tvm.s_tir.backend.adreno import pipeline
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP

    if PIPELINE_MAP.get("adreno") is pipeline.default_tir_pipeline:
        PIPELINE_MAP["adreno"] = _adreno_kernels
    if adreno.get_default_pipeline is adreno.pipeline.get_default_pipeline:
        adreno.get_default_pipeline = _adreno


def _mend_types() -> None:
    """Work-around: numpy since 2.4 does not take the element type of a TVM tensor (``param.ty.dtype``) for one."""
    import numpy as np
    from tvm.ir import PrimType

    if not hasattr(PrimType, "__numpy_dtype__"):
        PrimType.__numpy_dtype__ = property(lambda each: np.dtype(str(each.dtype)))


def _pipeline(**options):
    """What ``relax.get_pipeline("smartmem")`` calls."""
    from smartmem_tvm.frontend.relax_pipeline import relax_pipeline

    return relax_pipeline(**options)


def _adreno(target):
    """What ``relax.get_default_pipeline`` calls for an Adreno target."""
    from smartmem_tvm.deploy.tvm_adreno import relax_pipeline

    return relax_pipeline(target)


def _adreno_kernels():
    """What ``tirx.get_tir_pipeline("adreno")`` calls."""
    from smartmem_tvm.deploy.tvm_adreno import tir_pipeline

    return tir_pipeline()

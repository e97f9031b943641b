# SPDX-License-Identifier: Apache-2.0
"""TVM's Adreno pipelines, mended, under TVM's own names: ``relax.get_default_pipeline`` and the TIR pipeline "adreno".

`_smartmem_pipeline` registers them where TVM looks them up.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax, tirx
from tvm.relax.backend import adreno

from ..ir.walk import contains
from .textures import lower_textures
from .tvm_pipelines import network_passes

NAME = "adreno"


class AdrenoName(str):
    """The name of the TIR pipeline; unpacking it gives the pipeline's three parts.

    ``tirx.build`` takes only names, ``tirx.get_default_tir_pipeline(target)`` returns the pipeline itself, and TVM's
    own tests pass the result of the second to the first.
    """

    __slots__ = ()

    def __iter__(self) -> Iterator:
        """Yield the lowering pass, a factory of the host's last passes, and one of the device's."""
        return iter(lower_textures(refuse=False))


def tir_pipeline() -> AdrenoName:
    """Return the TIR pipeline for ``tirx.get_tir_pipeline("adreno")``."""
    return AdrenoName(NAME)


def relax_pipeline(target: tvm.target.Target) -> tvm.transform.Pass:
    """Return the Relax pipeline for ``relax.get_default_pipeline(target)`` with an Adreno target.

    A lowered module is only lowered further: in TVM's own flow, ``tvm.compile`` gets the result of this pipeline, and
    applies the pipeline again.
    """

    @tvm.transform.module_pass(opt_level=0, name="smartmem.Adreno")
    def pipeline(mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        with target:
            passes = [] if _is_lowered(mod) else network_passes(target)
            passes += adreno.dataflow_lower_passes(target) + adreno.finalize_passes(target)
            return tvm.transform.Sequential(passes)(mod)

    return pipeline


def _is_lowered(mod: tvm.IRModule) -> bool:
    """Whether a Relax function calls kernels directly, which it does once ``CallTIRRewrite`` has run."""
    kernels = {gvar for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    return any(contains(func, tvm.ir.Call, lambda call: call.op in kernels) for func in functions)

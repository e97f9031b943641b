# SPDX-License-Identifier: Apache-2.0
"""TVM's pipelines that lower kernels for GPUs, with work-arounds for their faults.

``tests/test_tvm_workarounds.py`` fails when a newer TVM makes a work-around unnecessary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import tirx
from tvm.s_tir.backend import adreno
from tvm.s_tir.backend.adreno import pipeline as adreno_pipeline
from tvm.tirx import compilation_pipeline

from .printed_expressions import FixByteBroadcasts, FixConstants, FixFallingTexels, FixHalfRemainders, FixNarrowIntegers
from .textures import FixIntegerTextures, FixTexelLanes, FixTextureStore, FixVectorBooleans, FixVectorizedNests


def texture_tir_pipeline(
    before: Sequence[tvm.transform.Pass] = (), on_device: Sequence[tvm.transform.Pass] = ()
) -> tuple[tvm.transform.Pass, Callable, Callable]:
    """Return the parts of a TIR pipeline with textures, for ``tirx.compilation_pipeline.register_tir_pipeline``.

    Work-around: the factory that TVM registers as "adreno" returns one pass, where ``tirx.build`` unpacks three values.
    The plain pipeline, which ``tvm.compile`` takes, declares images and indexes them like buffers.

    Parameters
    ----------
    before : sequence of tvm.transform.Pass
        Passes over scheduled PrimFuncs, before lowering.
    on_device : sequence of tvm.transform.Pass
        Passes over kernels, after the split from the host's code.

    Returns
    -------
    tuple
        The lowering pass, a factory of the host's last passes, and a factory of the device's last passes.
    """
    # TVM's pipeline begins with TextureFlatten too; after this one it changes nothing.
    flatten = [adreno.transform.TextureFlatten(), FixTextureStore()]
    lower = [FixVectorizedNests(), *before, *flatten, adreno_pipeline.default_tir_pipeline()]
    finish = compilation_pipeline.finalize_device_passes()
    device = [*on_device, finish, FixIntegerTextures(), FixTexelLanes(), FixFallingTexels(), *_last()]
    return (
        tvm.transform.Sequential(lower),
        compilation_pipeline.finalize_host_passes,
        lambda: tvm.transform.Sequential(device),
    )


def opencl_tir_pipeline(
    on_device: Sequence[tvm.transform.Pass] = (),
) -> tuple[tvm.transform.Pass, Callable, Callable]:
    """Return TVM's own pipeline with work-arounds for OpenCL; parameter and result as of `texture_tir_pipeline`."""
    lower, finish_host, finish_device = tirx.get_tir_pipeline("default")
    return lower, finish_host, lambda: tvm.transform.Sequential([*on_device, finish_device(), *_last()])


def cuda_tir_pipeline(
    on_device: Sequence[tvm.transform.Pass] = (), before: Sequence[tvm.transform.Pass] = ()
) -> tuple[tvm.transform.Pass, Callable, Callable]:
    """Return TVM's own pipeline with work-arounds for CUDA, after the passes `before`.

    The other parameter and the result are as of `texture_tir_pipeline`.
    """
    lower, finish_host, finish_device = tirx.get_tir_pipeline("default")
    device = [
        *on_device,
        finish_device(),
        FixHalfRemainders(),
        FixByteBroadcasts(),
        FixNarrowIntegers(),
        FixConstants(),
    ]
    first = tvm.transform.Sequential([*before, lower])
    return first, finish_host, lambda: tvm.transform.Sequential(device)


def _last() -> list[tvm.transform.Pass]:
    return [FixVectorBooleans(), FixNarrowIntegers(), FixConstants()]

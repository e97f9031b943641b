# SPDX-License-Identifier: Apache-2.0
"""What code generation for a CPU needs so that LLVM's vector code is right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tvm

from .target import is_cpu

_NARROW = "tirx.NarrowDataType"


@contextmanager
def wide_indices(target: tvm.target.Target) -> Iterator[None]:
    """While this is open, TVM compiles kernels for a CPU with the indices of 64 bits that they have.

    Its pipeline makes them 32 bits wide. LLVM 22 then takes a remainder by a power of two in an index for a number
    that only grows, and its vector code reads past the wrap-around, on haswell and newer: ``np.tile`` of a matrix of
    33 rows and 16 columns is wrong (docs/tvm-issues.md). Other targets are left alone.
    """
    now = tvm.transform.PassContext.current()
    disabled = [*now.disabled_pass, *([_NARROW] if is_cpu(target) else [])]
    with tvm.transform.PassContext(
        opt_level=now.opt_level,
        required_pass=list(now.required_pass),
        disabled_pass=disabled,
        instruments=list(now.instruments or ()),
        config=dict(now.config),
    ):
        yield

# SPDX-License-Identifier: Apache-2.0
"""What code generation for a CPU needs so that LLVM's vector code is right, and as wide as the registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tvm
from tvm.target import codegen

from .target import is_cpu

_NARROW = "tirx.NarrowDataType"
_NO_HALVES = "-prefer-256-bit"  # LLVM's name, and that of what is not wanted


@contextmanager
def code_generation(target: tvm.target.Target) -> Iterator[tvm.target.Target]:
    """While this is open, TVM compiles kernels for a CPU as they are meant; yields the target to compile them for.

    Indices have the 64 bits that kernels say. TVM's pipeline makes them 32 bits wide: LLVM 22 then takes a remainder by
    a power of two in an index for a number that only grows, and its vector code reads past the wrap-around, on haswell
    and newer: ``np.tile`` of a matrix of 33 rows and 16 columns is wrong (docs/tvm-issues.md).

    Where there is AVX-512, loops become vectors of 512 bits. LLVM makes them of 256 of itself on Intel's processors,
    the first of which lowered their clock for wide vectors. Products here use them anyway, and softmax takes 1.6 times
    as long in narrow ones, GELU 1.4 times.

    Other targets are left alone.
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
        yield with_whole_vectors(target)


def with_whole_vectors(target: tvm.target.Target) -> tvm.target.Target:
    """The target whose loops LLVM makes vectors of that are as wide as registers.

    Others are as they are, and one that says itself what it prefers.
    """
    features = [*map(str, target.attrs.get("mattr") or ())]
    said = any(each[1:] == _NO_HALVES[1:] for each in features)
    if said or not is_cpu(target) or not codegen.target_has_features("avx512f", target):
        return target
    return tvm.target.Target({**target.export(), "mattr": [*features, _NO_HALVES]})

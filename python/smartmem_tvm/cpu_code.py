# SPDX-License-Identifier: Apache-2.0
"""Settings of code generation for a CPU that make LLVM's vector code correct, and as wide as the registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tvm
from tvm.target import codegen

from .target import is_cpu

_NARROW = "tirx.NarrowDataType"
_NO_HALVES = "-prefer-256-bit"  # LLVM's feature prefer-256-bit, switched off


@contextmanager
def code_generation(target: tvm.target.Target) -> Iterator[tvm.target.Target]:
    """Change TVM's settings for a CPU while the context is open; yield the target to compile for.

    Indices keep the 64 bits of the kernels. TVM's pipeline narrows them to 32 bits. LLVM 22 then treats a remainder by
    a power of two in an index as a number that only grows, and its vector code reads past the wrap-around, on haswell
    and newer: ``np.tile`` of a matrix of 33 rows and 16 columns is wrong (docs/tvm-issues.md).

    With AVX-512, loops become vectors of 512 bits. By default LLVM uses 256 bits on Intel's processors, as the first of
    these lowered their clock for wide vectors. The GEMMs of this package use wide vectors anyway, and with narrow ones
    softmax takes 1.6 times as long, and GELU 1.4 times.

    Other targets are not changed.
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
    """Return a target for which LLVM vectorizes loops as wide as the registers.

    Targets without AVX-512, and targets that state their own preference, are returned unchanged.
    """
    features = [*map(str, target.attrs.get("mattr") or ())]
    said = any(each[1:] == _NO_HALVES[1:] for each in features)
    if said or not is_cpu(target) or not codegen.target_has_features("avx512f", target):
        return target
    return tvm.target.Target({**target.export(), "mattr": [*features, _NO_HALVES]})

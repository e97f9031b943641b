# SPDX-License-Identifier: Apache-2.0
"""Targets of phones whose kernels run on this machine's OpenCL driver."""

import tvm

from smartmem_tvm.target import parse_target


def phone(name: str) -> tvm.target.Target:
    """The target of a phone's GPU, by the name of its row, beside a CPU that is this machine's."""
    facts = {key: value for key, value in parse_target(name).export().items() if key != "host"}
    return tvm.target.Target(facts, host="llvm")

# SPDX-License-Identifier: Apache-2.0
"""Compilation targets by name."""

from __future__ import annotations

import os

import tvm
from tvm.target import codegen

from ..errors import UserError


def host_target() -> tvm.target.Target:
    """The CPU of this machine: its instruction set and all its cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return tvm.target.Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu(), "num-cores": int(cores or 1)})


def parse_target(text: str | None) -> tvm.target.Target:
    """The target a user names on the command line.

    Parameters
    ----------
    text : str or None
        None or ``"cpu"`` for this machine's CPU, otherwise anything TVM takes: a tag, a kind, or a JSON object.

    Raises
    ------
    UserError
        If TVM does not know the target, or it is not a CPU (other kinds have no schedules yet).
    """
    if text in (None, "cpu", "llvm"):
        return host_target()
    try:
        target = tvm.target.Target(text)
    except Exception as error:  # TVM raises several kinds here
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"target '{text}' is not known to TVM ({reason}): use 'cpu' or a TVM target string.") from error
    if target.kind.name != "llvm":
        raise UserError(
            f"target '{text}' is a {target.kind.name} target, for which there are no schedules yet: use 'cpu'."
        )
    return target

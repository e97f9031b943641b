# SPDX-License-Identifier: Apache-2.0
"""A lock that lets one thread at a time import and compile models.

TVM's Python keeps state of its builders in variables of classes and modules: the tag of a tensor expression
(``tvm.te.tag_scope``, whose error is "nested op_tag"), the open `BlockBuilder`, tables of importers. This package's
settings for a compilation are global too: the memory limit of `frontend.child_process`, the switches of passes
(`ir.strength_reduction`, `ir.check_maps`). So each function that imports, compiles, tunes, saves or loads a model holds
one reentrant lock. Running a model does not take it: a server answers while another thread compiles.

A thread that reads, imports and compiles a model, with three calls, needs no further lock: none of TVM's global state
outlives a call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_lock = threading.RLock()

P = ParamSpec("P")
Made = TypeVar("Made")


def one_at_a_time(verb: Callable[P, Made]) -> Callable[P, Made]:
    """Let a function wait until no other thread runs one of these functions."""

    @wraps(verb)
    def locked(*args: P.args, **kwargs: P.kwargs) -> Made:
        with _lock:
            return verb(*args, **kwargs)

    return locked


def _forget() -> None:
    """Replace the lock after a fork: the child has only one thread, so the thread that holds the lock may be gone."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

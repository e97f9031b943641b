# SPDX-License-Identifier: Apache-2.0
"""One thread at a time imports and compiles models.

TVM's Python keeps what it is building in variables of its classes and modules: the tag of a tensor expression
(``tvm.te.tag_scope``, whose error is "nested op_tag"), the open `BlockBuilder`, tables of importers. What this package
sets for the time of a compilation is global too: the limit of memory of `frontend.apart`, the switches of passes
(`ir.strength_reduction`, `ir.check_maps`). So each verb that imports, compiles, tunes, saves or loads a model holds one
lock, whoever calls it; a verb may call another one. Running a model does not take it: a server answers while another
thread compiles.

To read a model, hand it over and compile it, which are three verbs, a thread needs no lock of its own: none of TVM's
global state outlives a verb.
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
    """Make a verb wait until no other thread is in one of these."""

    @wraps(verb)
    def locked(*args: P.args, **kwargs: P.kwargs) -> Made:
        with _lock:
            return verb(*args, **kwargs)

    return locked


def _forget() -> None:
    """A fork has the lock as it was and, but for one, none of the threads: who holds it may not be there."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

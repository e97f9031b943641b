# SPDX-License-Identifier: Apache-2.0
"""Remember the refusals of this process, so that the same graph is not exported and refused again."""

from __future__ import annotations

from threading import Lock

from .refusals import Refusal

MOST = 4096  # refusals kept, of some hundred bytes each

_refused: dict[str, Refusal] = {}
_lock = Lock()


def recall(signature: str) -> Refusal | None:
    """Return the earlier refusal of a graph (`graph_key.signature_of`), None if there is none."""
    return _refused.get(signature)


def remember(signature: str, refusal: Refusal) -> None:
    """Keep a refusal; drop the oldest if there are too many."""
    with _lock:
        if len(_refused) >= MOST:
            del _refused[next(iter(_refused))]
        _refused[signature] = refusal.with_traceback(None)


def forget() -> None:
    """Forget all refusals, so that each graph is tried again."""
    with _lock:
        _refused.clear()

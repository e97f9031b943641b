# SPDX-License-Identifier: Apache-2.0
"""Count the graphs of ``torch.compile`` in this process: compiled here, or left to torch with the reason."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from dataclasses import dataclass, field
from threading import Lock

_logger = logging.getLogger(__package__)


@dataclass(frozen=True)
class Counts:
    """Numbers of events since the start of the process or `reset_counts`.

    Attributes
    ----------
    compiled : int
        Compilations: one for each graph, shape and, if weights are compiled in, change of weights.
    loaded : int
        Graphs and shapes that were loaded from disk instead.
    recompiled : int
        Compilations, or loads, caused by changed weights.
    eager : int
        Graphs, or some shapes of one, that were left to torch.
    calls, eager_calls : int
        Calls of kernels of this package, and calls of graphs left to torch.
    reasons : dict
        Reason why graphs were left to torch -> their number, the most frequent first.
    graph_breaks : dict
        Reason why torch split a function into several graphs, with Python in between -> number: torch's own count, for
        all backends, until ``torch._dynamo.utils.counters.clear()``.
    """

    compiled: int = 0
    loaded: int = 0
    recompiled: int = 0
    eager: int = 0
    calls: int = 0
    eager_calls: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    graph_breaks: dict[str, int] = field(default_factory=dict)


_lock = Lock()
_events: Counter[str] = Counter()
_reasons: Counter[str] = Counter()


def count(event: str) -> None:
    """Add one to an attribute of `Counts`."""
    with _lock:
        _events[event] += 1


def left_to_torch(reason: str) -> None:
    """Count a graph that is left to torch; warn about the first one of the process or since `reset_counts`."""
    reason = " ".join(reason.split()).rstrip(".")
    with _lock:
        first = not _events["eager"]
        _events["eager"] += 1
        _reasons[reason] += 1
    log = _logger.warning if first else _logger.info
    log(
        "A graph of torch.compile runs as torch runs it, not as kernels of smartmem: %s. "
        "smartmem_tvm.torch_backend.counts() counts them all.",
        reason,
    )


def counts() -> Counts:
    """Return the numbers so far, see `Counts`."""
    with _lock:
        return Counts(**_events, reasons=dict(_reasons.most_common()), graph_breaks=_graph_breaks())


def reset_counts() -> None:
    """Reset all numbers to zero, except torch's count of graph breaks."""
    with _lock:
        _events.clear()
        _reasons.clear()


def _graph_breaks() -> dict[str, int]:
    utils = sys.modules.get("torch._dynamo.utils")  # not imported: nothing was compiled
    breaks = utils.counters["graph_break"] if utils is not None else {}
    return {_first_line(reason): times for reason, times in breaks.items()}


def _first_line(reason: str) -> str:
    return (reason.strip().splitlines() or [reason])[0]

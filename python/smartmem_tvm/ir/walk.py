# SPDX-License-Identifier: Apache-2.0
"""What a tree of TVM's consists of: the walks that this package makes over expressions, statements and functions.

Raise nothing inside a callback of ``structural_walk`` or ``structural_map``: an error that leaves one corrupts memory,
and the process aborts later, somewhere else. That is why nothing of a caller's runs during these walks. They collect,
and the caller looks at what they found, and may raise, afterwards.

A kind is a class of nodes or a tuple of classes. Nodes are found as often as they occur, also where parents share one.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import ir, tirx

from .._tvm import walk

Kind = type | tuple[type, ...]


def collect(root, kind: Kind) -> list:
    """The nodes of a kind, the root included, what is in a node before the node."""
    found: list = []
    walk(root, (kind, found.append))
    return found


def collect_outside(root, kind: Kind, skip: Kind) -> list:
    """The nodes of a kind that are in no node of the kinds `skip`, each before what is in it.

    A node of both kinds is found itself, without what is in it: the outermost ones, if they are the same.
    """
    found: list = []

    def leave(node) -> tvm_ffi.WalkResult:
        if isinstance(node, kind):
            found.append(node)
        return tvm_ffi.WalkResult.SKIP

    walk(root, (skip, leave), (kind, found.append), order="pre")
    return found


def outermost(root, kind: Kind, where: Callable[[object], bool]) -> list:
    """The nodes of a kind for which `where` holds, without those that are in one of them.

    `where` runs during the walk and raises nothing.
    """
    found: list = []

    def note(node) -> tvm_ffi.WalkResult:
        if not where(node):
            return tvm_ffi.WalkResult.ADVANCE
        found.append(node)
        return tvm_ffi.WalkResult.SKIP

    walk(root, (kind, note), order="pre")
    return found


def contains(root, kind: Kind, where: Callable[[object], bool] | None = None) -> bool:
    """Whether there is a node of a kind, and `where` holds for it."""
    found = collect(root, kind)
    return bool(found) if where is None else any(map(where, found))


def loads(root) -> list:
    """Every load."""
    return collect(root, ir.TensorLoad)


def stores(root) -> list:
    """Every store."""
    return collect(root, tirx.BufferStore)

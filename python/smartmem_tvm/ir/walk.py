# SPDX-License-Identifier: Apache-2.0
"""Walks over TVM's expressions, statements and functions.

Raise nothing inside a callback of ``structural_walk`` or ``structural_map``: an error that leaves one corrupts memory,
and the process aborts later, somewhere else. Therefore these walks run none of the caller's code. They collect nodes;
the caller inspects them afterwards, and may raise then.

A kind is a class of nodes or a tuple of classes. A node that several parents share is found once for each parent.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import ir, tirx

from .._tvm import walk

Kind = type | tuple[type, ...]


def collect(root, kind: Kind) -> list:
    """Return the nodes of a kind, the root included, in post-order."""
    found: list = []
    walk(root, (kind, found.append))
    return found


def collect_outside(root, kind: Kind, skip: Kind) -> list:
    """Return the nodes of a kind that are inside no node of the kinds `skip`, in pre-order.

    A node of both kinds is found, but nothing inside it: with `skip` equal to `kind`, these are the outermost nodes.
    """
    found: list = []

    def leave(node) -> tvm_ffi.WalkResult:
        if isinstance(node, kind):
            found.append(node)
        return tvm_ffi.WalkResult.SKIP

    walk(root, (skip, leave), (kind, found.append), order="pre")
    return found


def outermost(root, kind: Kind, where: Callable[[object], bool]) -> list:
    """Return the outermost nodes of a kind for which `where` holds.

    `where` runs during the walk and must not raise.
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
    """Whether there is a node of a kind for which `where` holds."""
    found = collect(root, kind)
    return bool(found) if where is None else any(map(where, found))


def loads(root) -> list:
    """Return every load."""
    return collect(root, ir.TensorLoad)


def stores(root) -> list:
    """Return every store."""
    return collect(root, tirx.BufferStore)

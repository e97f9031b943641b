# SPDX-License-Identifier: Apache-2.0
"""A bounded cache of results about TVM nodes, by the identity of the node."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock


class Recent:
    """The latest results, by the identity of the node.

    Passes and rules need results for the same functions one after the other. A result cannot be an attribute of the
    Python node, as TVM makes a new Python object at each access; a node cannot be a key either, as ``==`` of two
    expressions builds an expression.

    Parameters
    ----------
    most : int
        Number of results that are kept.
    """

    def __init__(self, most: int):
        self.most, self.known, self.lock = most, {}, Lock()

    def get(self, node, make: Callable, state: Hashable = None):
        """Return the cached result for a node, else that of ``make()``; it depends on the node and on `state`."""
        found = self.known.get((hash(node), state))
        return self.put(node, make(), state) if found is None else found[1]

    def take(self, node, make: Callable, state: Hashable = None):
        """Do as `get`, and drop the result from the cache."""
        with self.lock:
            found = self.known.pop((hash(node), state), None)
        return make() if found is None else found[1]

    def put(self, node, answer, state: Hashable = None):
        """Cache a result, and return it."""
        with self.lock:
            # The hash is the address, which no other node gets while the cache holds this one.
            self.known[hash(node), state] = node, answer
            while len(self.known) > self.most:
                del self.known[next(iter(self.known))]
        return answer

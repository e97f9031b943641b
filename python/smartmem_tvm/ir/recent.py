# SPDX-License-Identifier: Apache-2.0
"""What was found out about nodes of TVM, for as long as it is likely to be asked for again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock


class Recent:
    """What was worked out last, by the very object that it is about.

    Passes and rules ask for the same functions one after the other. These cannot have what was found out with them, as
    TVM makes a new object each time that it is asked for one, nor be keys: ``==`` of two expressions is a third one.

    Parameters
    ----------
    most : int
        Answers that are kept.
    """

    def __init__(self, most: int):
        self.most, self.known, self.lock = most, {}, Lock()

    def get(self, node, make: Callable, state: Hashable = None):
        """What ``make()`` returned for a node, or returns now; `state` is what else that depends on."""
        found = self.known.get((hash(node), state))
        return self.put(node, make(), state) if found is None else found[1]

    def take(self, node, make: Callable, state: Hashable = None):
        """The same for the last time: the answer is not kept any longer."""
        with self.lock:
            found = self.known.pop((hash(node), state), None)
        return make() if found is None else found[1]

    def put(self, node, answer, state: Hashable = None):
        """Keep an answer; returns it."""
        with self.lock:
            # The hash is the address, which nobody else gets as long as the node is kept.
            self.known[hash(node), state] = node, answer
            while len(self.known) > self.most:
                del self.known[next(iter(self.known))]
        return answer

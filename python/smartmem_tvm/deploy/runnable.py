# SPDX-License-Identifier: Apache-2.0
"""What a compiled model can do, made here or loaded from a folder: run, and run several inferences at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from .session import Session
    from .streams import Streams

# Not `tvm_lock`, for which a model that is loaded would wait while another one is compiled.
_MAKING = threading.RLock()  # machines are made one at a time: the first one links the code and moves the weights


class Runnable:
    """A model with a first session, ``_first``, which is made when it is wanted."""

    _first: Session

    def run(self, /, *inputs, function: str | None = None, **named) -> list[np.ndarray]:
        """Run a function of the model; returns its outputs in their order, as a flat list.

        May be called from several threads, which then wait for each other; see `session`.

        Parameters
        ----------
        *inputs
            Numpy arrays, or tensors of TVM, in the order of the function's inputs; or one mapping of their names. A
            tuple or list where an input is a tuple, sizes where it is a shape, numbers where it is one.
        function : str, optional
            By default ``main``, or the only one.
        **named
            Inputs by their names. One called ``function`` can be in a mapping only.

        Raises
        ------
        UserError
            If there is no such function, or an input is missing, of no use, or of another dtype or shape.
        """
        return self._session().run(*inputs, function=function, **named)

    def session(self) -> Session:
        """A virtual machine of its own for another thread, with the weights that this model has in memory already.

        Raises
        ------
        UserError
            If the model has a memory budget: there is one arena for its weights.
        """
        with _MAKING:
            return self._first.another()

    def streams(self, count: int, threads: int | None = None) -> Streams:
        """So many sessions, each on a thread of its own; they share the cores.

        Parameters
        ----------
        count : int
            Inferences at once.
        threads : int, optional
            Of each inference on a CPU, by default the usable cores divided by `count`.

        Raises
        ------
        UserError
            As `session`, or if a number is not positive or the threads are too many for this machine.
        """
        from .streams import Streams

        return Streams(self, count, threads)

    def _session(self) -> Session:
        first = vars(self).get("_first")  # where it is kept once it is made
        if first is None:
            with _MAKING:
                first = self._first
        return first

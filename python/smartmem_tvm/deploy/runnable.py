# SPDX-License-Identifier: Apache-2.0
"""The interface of a compiled model, built here or loaded from a folder: run it, also several inferences at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from .inference_session import Session
    from .streams import Streams

# Not `tvm_lock`: a loaded model would wait for it while another model is compiled.
_MAKING = threading.RLock()  # creates machines one at a time, as the first one links the code and moves the weights


class Runnable:
    """A model with a first session, ``_first``, which is created on first use."""

    _first: Session

    def run(self, /, *inputs, function: str | None = None, **named) -> list[np.ndarray]:
        """Run a function of the model, and return its outputs in order, as a flat list.

        Several threads may call this method; they then wait for each other, see `session`.

        Parameters
        ----------
        *inputs
            Numpy arrays, or tensors of TVM, in the order of the function's inputs; or one mapping of names. An input
            that is a tuple takes a tuple or list, a shape takes sizes, and a number takes a number.
        function : str, optional
            By default ``main``, or the only function; of several sizes, that which takes inputs of these shapes.
        **named
            Inputs by name. An input called ``function`` must be in a mapping.

        Raises
        ------
        UserError
            If the function does not exist, or an input is missing, unknown, or of another dtype or shape.
        """
        return self._session().run(*inputs, function=function, **named)

    def run_whole(self, inputs: Sequence | Mapping) -> list[np.ndarray]:
        """Run the model as its file has it: with the caches among its inputs and its outputs.

        The arrays of the caches are put there before, and the caches keep the new state. The default function runs, of
        several sizes that of the inputs. For a model without caches it is `run`.

        Parameters
        ----------
        inputs : sequence or mapping
            One value for each input of the file, in their order or by name.

        Raises
        ------
        UserError
            As `run`, and if a cache has no array, or one of another shape or type.
        """
        session = self._session()
        if not session.caches:
            return self.run(*([inputs] if isinstance(inputs, Mapping) else inputs))
        return session.run_whole(inputs)

    def without_caches(self, inputs: Sequence | Mapping) -> list:
        """Return those of the inputs of the model's file that `run` takes, in their order: all but the caches."""
        return self._session().without_caches(inputs)

    @property
    def caches_now(self) -> dict[str, np.ndarray]:
        """Return copies of what is in the caches: input name -> array."""
        return {name: tensor.numpy() for name, tensor in self._session().caches.items()}

    def function_of(self, inputs: Sequence | Mapping) -> str:
        """Return the function that `run` runs for these inputs: of several sizes, by their shapes.

        Parameters
        ----------
        inputs : sequence or mapping
            One value for each input, in their order or by name.

        Raises
        ------
        UserError
            If no size takes them, or the model has several functions and none is the default.
        """
        return self._session().function_of([inputs] if isinstance(inputs, Mapping) else inputs)

    def session(self) -> Session:
        """Return a session with its own virtual machine, for another thread; it shares the weights in memory.

        Raises
        ------
        UserError
            If the model has a memory budget, as it has only one arena for its weights.
        """
        with _MAKING:
            return self._first.another()

    def streams(self, count: int, threads: int | None = None) -> Streams:
        """Return `count` sessions, each on its own thread; they share the cores.

        Parameters
        ----------
        count : int
            Number of inferences at once.
        threads : int, optional
            Threads of each inference on a CPU, by default the usable cores divided by `count`.

        Raises
        ------
        UserError
            As `session`, or if a number is not positive or the threads are too many for this machine.
        """
        from .streams import Streams

        return Streams(self, count, threads)

    def _session(self) -> Session:
        first = vars(self).get("_first")  # the cached property keeps its value there
        if first is None:
            with _MAKING:
                first = self._first
        return first

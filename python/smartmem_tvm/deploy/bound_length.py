# SPDX-License-Identifier: Apache-2.0
"""Buffers that are bound at one length, of a model with an open length: its functions take buffers of a capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..ir.mask_positions import LENGTH
from .bound import Bound, to_write, write
from .tiles import AtLength, array_in, before_length, beginning, longer


class BoundLength:
    """A function of a capacity with buffers of a length, made by `Session.bind`.

    Each run copies the inputs with positions to the beginning of buffers of the capacity, unless the length is the
    capacity; the others are read where they are, as `Bound` does. Results are cut. A state stays in the buffers of the
    capacity.

    Parameters
    ----------
    at : AtLength
    bind : callable
        ``bind(inputs, states) -> Bound``: bind the buffers of the function.
    names : sequence of str
        Of the outputs.
    inputs, outputs, states : mapping
        As for `Session.bind`.
    """

    def __init__(
        self,
        at: AtLength,
        bind: Callable[[Mapping, Mapping], Bound],
        names: Sequence[str],
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        states: Mapping[str, str],
    ):
        self._at, self._names, self._going_back = at, names, set(states.values())
        whole, self._copied = {**inputs, LENGTH: np.array([at.length], "int64")}, []
        for name, places in at.inputs.items():
            if places and at.capacity > at.length:
                whole[name] = longer(inputs[name], places, at.capacity, at.length)
                self._copied.append((name, beginning(whole[name], places, at.length), inputs[name]))
        self._bound = bind(whole, states)
        self._written = [
            (self._output(name), buffer, to_write(name, at.function, buffer)) for name, buffer in outputs.items()
        ]

    def run(self) -> list:
        """Run one inference on the present contents of the buffers; see `Bound.run`, but results are arrays."""
        self._copy(lambda name: name not in self._going_back)
        at, found = self._at, []
        for result, places in zip(self._bound.run(), at.outputs, strict=True):
            array = result if isinstance(result, np.ndarray) else result.numpy()
            found.append(before_length(array, places, at.length))
        for number, buffer, array in self._written:
            write(array, found[number], self._names[number], at.function)
            found[number] = buffer
        return found

    def reset(self) -> None:
        """Reset the states to the present contents of the buffers of their inputs."""
        self._copy(lambda name: name in self._going_back)
        self._bound.reset()

    def _copy(self, chosen: Callable[[str], bool]) -> None:
        for name, there, buffer in self._copied:
            if chosen(name):
                there[...] = array_in(buffer)

    def _output(self, name: str) -> int:
        if name not in self._names:
            known = ", ".join(f"'{each}'" for each in self._names)
            raise UserError(f"This model gives {known}, and '{name}' is none of them: use one of these names.")
        return self._names.index(name)

# SPDX-License-Identifier: Apache-2.0
"""A graph of ``torch.compile`` whose lengths run at a capacity: one compilation for many sizes.

`frontend.open_length` proves that a longer graph begins in the same way, and makes the model at a capacity, which takes
the length as another input. Which lengths a capacity serves is decided by `analysis.length_cost`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..analysis.item_cost import MORE
from ..analysis.length_cost import LengthCost, length_cost
from ..errors import reason_of
from ..frontend import from_onnx
from ..frontend.early_slices import with_early_slices
from ..frontend.open_dimension import Range, of_length
from ..frontend.open_length import Lengths, Proved
from ..ir.public_functions import MAIN
from .at_capacity import AtCapacity, capacities_of
from .open_program import NotOpen, OpenProgram, SizedProgram
from .program import TensorType

if TYPE_CHECKING:
    import sympy
    import tvm

_logger = logging.getLogger(__package__)
_LEAST = 2  # positions, by definition: torch makes a graph of its own for a size of 1


@dataclass(frozen=True)
class CapacityProgram(SizedProgram):
    """A graph at a capacity: as `SizedProgram`, with the length as the last input of its module."""

    made: tvm.IRModule
    at: AtCapacity

    def module(self) -> tvm.IRModule:
        """Return the program as a Relax module."""
        return self.made


@dataclass(frozen=True, eq=False)
class _Length:
    """One symbol of a graph that is a length: its sizes, their proof, and the predicted times."""

    lengths: Lengths
    proved: Proved
    cost: LengthCost


class OpenLengths:
    """The lengths of an open program.

    Parameters
    ----------
    program : OpenProgram
    target : tvm.target.Target
        A CPU.
    """

    def __init__(self, program: OpenProgram, target: tvm.target.Target):
        self._program, self._target = program, target
        self._known: dict[tuple, _Length | None] = {}

    def programs(self, number: int, inputs: Sequence[Any]) -> Iterator[CapacityProgram]:
        """Yield the program at each capacity that serves inputs, the largest first.

        Parameters
        ----------
        number : int
            The position of the length among the graph's inputs.
        inputs : sequence
            Of a call.
        """
        symbol = self._program.numbers.get(number)
        if symbol is None or any(map(self._program.varies, self._program.results)):
            return
        sizes = self._program.solved(inputs)
        for capacity in capacities_of(sizes[symbol]):
            program = self._at(number, sizes, capacity)
            if program is not None:
                yield program

    def _at(self, number: int, sizes: Mapping, capacity: int) -> CapacityProgram | None:
        symbol = self._program.numbers[number]
        known = self._length(symbol, sizes, capacity)
        if known is None:
            return None
        serves = self._served(symbol, sizes, capacity, known.cost)
        if sizes[symbol] not in serves:
            return None
        model, made = known.lengths.at_capacity(known.proved, capacity)
        whole = self._program.bound({**sizes, symbol: capacity})
        outputs = [[each.facts() for each in shares] for shares in known.proved.work.outputs]
        at = AtCapacity(number, capacity, serves, [[*each.shape] for each in whole.takes], outputs)
        takes = [*whole.takes, TensorType((1,), "int64")]
        return CapacityProgram(model, whole.inputs, whole.results, takes, whole.returns, made, at)

    def _served(self, symbol: sympy.Symbol, sizes: Mapping, capacity: int, cost: LengthCost) -> list[int]:
        """Return the lengths that a capacity computes in nearly the time of kernels of their own."""
        whole = cost.at(capacity, capacity) <= MORE * cost.alone(capacity)
        near = [each for each in range(_LEAST, capacity + 1) if cost.at(each, capacity) <= MORE * cost.alone(each)]
        return [each for each in near if self._program.holds({**sizes, symbol: each})] if whole else []

    def _length(self, symbol: sympy.Symbol, sizes: Mapping, capacity: int) -> _Length | None:
        """Return what is known along a symbol, with the present sizes along the others."""
        others = {each: size for each, size in sizes.items() if each != symbol}
        key = symbol, tuple(others.items()), capacity
        if key not in self._known:
            try:
                self._known[key] = self._proved(symbol, others, capacity)
            except Exception as error:  # of the importer and TVM, of many types, for a size that no call has
                _logger.info("a graph has kernels for each length: %s", reason_of(error))
                self._known[key] = None
        return self._known[key]

    def _proved(self, symbol: sympy.Symbol, others: Mapping, capacity: int) -> _Length | None:
        program = self._program.of_any_size()
        lengths = Lengths(
            *(0, Range(_LEAST, capacity)),
            lambda length: of_length(program.bound({**others, symbol: length}).model, from_onnx),
            lambda reason: NotOpen(str(reason)),
        )
        proved = lengths.proved()
        if not any(each.needs for each in proved.work.operators):
            return None  # items, whose rows need not end where a loop does
        whole = with_early_slices(proved.loaded[proved.probes[1]][1], proved.plan)
        cost = length_cost(whole[MAIN], proved.work, proved.probes, self._target)
        # torch copies inputs and results up to the length, without a kernel for each.
        return _Length(lengths, proved, replace(cost, copies=0, inputs=0, outputs=cost.inputs + cost.outputs))

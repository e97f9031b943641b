# SPDX-License-Identifier: Apache-2.0
"""The layout problem: choose the order in which each tensor of a graph is stored, for the least time of all kernels."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

REDUCTION_DIMENSION, FLUID, EXACT = PLANNERS = ("reduction-dimension", "fluid", "exact")
"""The planners; if one cannot run, the one before it takes its place."""
Order = tuple[int, ...]
"""Dimensions of a tensor from the outermost to the innermost one in memory."""
Tensor = Hashable
Choice = Mapping[Tensor, Order]


@dataclass(frozen=True, eq=False)
class KernelCost:
    """The time of a kernel for each combination of orders of its tensors.

    Attributes
    ----------
    name : str
    output : hashable
        The tensor that it computes.
    inputs : tuple of hashable
        The distinct tensors that it reads.
    seconds : mapping
        Orders of the output and of the inputs -> seconds of a launch. A missing combination was not measured, and is
        not chosen. Empty for a kernel whose tensors all have a fixed order, as its time is the same in any plan.
    """

    name: str
    output: Tensor
    inputs: tuple[Tensor, ...]
    seconds: Mapping[tuple[Order, ...], float]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in the order of the keys of `seconds`."""
        return (self.output, *self.inputs)

    def at(self, choice: Choice) -> float:
        """Return the seconds of a launch; infinite if unknown."""
        if not self.seconds:
            return 0.0
        return self.seconds.get(tuple(choice[tensor] for tensor in self.tensors), math.inf)

    def best(self, fixed: Choice) -> tuple[float, tuple[Order, ...]]:
        """Return the least seconds if some orders are fixed, and all orders in that case; infinite if none is known."""
        if not self.seconds:
            return 0.0, ()
        wanted = [(place, fixed[tensor]) for place, tensor in enumerate(self.tensors) if tensor in fixed]
        found = [each for each in self.seconds.items() if all(each[0][place] == order for place, order in wanted)]
        orders, seconds = min(found, key=lambda each: each[1], default=((), math.inf))
        return seconds, orders


@dataclass(frozen=True, eq=False)
class LayoutProblem:
    """A graph of kernels with their possible costs.

    Attributes
    ----------
    orders : mapping
        Tensor -> the orders in which it may be stored, at least one; the first is the present one.
    kernels : sequence of KernelCost
        The kernels in the order of execution.
    """

    orders: Mapping[Tensor, tuple[Order, ...]]
    kernels: Sequence[KernelCost]

    @cached_property
    def now(self) -> dict[Tensor, Order]:
        """The present order of each tensor."""
        return {tensor: orders[0] for tensor, orders in self.orders.items()}

    @cached_property
    def touching(self) -> dict[Tensor, list[KernelCost]]:
        """Tensor -> the kernels that write or read it."""
        found: dict[Tensor, list[KernelCost]] = {tensor: [] for tensor in self.orders}
        for kernel in self.kernels:
            for tensor in kernel.tensors:
                found[tensor].append(kernel)
        return found

    def seconds(self, choice: Choice) -> float:
        """Return the seconds of all kernels; infinite if one of them was not measured with these orders."""
        return sum(kernel.at(choice) for kernel in self.kernels)

    def alternatives(self, tensor: Tensor, choice: Choice) -> dict[Order, float]:
        """Return the seconds of all kernels for each order of one tensor, with the given choice for the others."""
        rest = sum(kernel.at(choice) for kernel in self.kernels if tensor not in kernel.tensors)
        found = {}
        for order in self.orders[tensor]:
            found[order] = rest + sum(kernel.at({**choice, tensor: order}) for kernel in self.touching[tensor])
        return found

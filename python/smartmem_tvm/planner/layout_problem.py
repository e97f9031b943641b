# SPDX-License-Identifier: Apache-2.0
"""The problem of layouts: which order each tensor of a graph is stored in, so that all kernels take least together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

REDUCTION_DIMENSION, FLUID, EXACT = PLANNERS = ("reduction-dimension", "fluid", "exact")
"""Where one cannot do, the one before takes its place."""
Order = tuple[int, ...]
"""Dimensions of a tensor from the outermost to the innermost one in memory."""
Tensor = Hashable
Choice = Mapping[Tensor, Order]


@dataclass(frozen=True, eq=False)
class KernelCost:
    """What a kernel takes for each way to store its tensors.

    Attributes
    ----------
    name : str
    output : hashable
        The tensor that it computes.
    inputs : tuple of hashable
        Those that it reads, each once.
    seconds : mapping
        Orders of the output and of the inputs -> seconds of a launch. What is missing was not measured: it is not
        chosen. Empty for what is the same whatever is chosen, because no order of its tensors can be.
    """

    name: str
    output: Tensor
    inputs: tuple[Tensor, ...]
    seconds: Mapping[tuple[Order, ...], float]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, as in the keys of `seconds`."""
        return (self.output, *self.inputs)

    def at(self, choice: Choice) -> float:
        """Seconds of a launch; infinite if they are not known."""
        if not self.seconds:
            return 0.0
        return self.seconds.get(tuple(choice[tensor] for tensor in self.tensors), math.inf)

    def best(self, fixed: Choice) -> tuple[float, tuple[Order, ...]]:
        """The least seconds where some of the orders are fixed, and all orders then; infinite if none are known."""
        if not self.seconds:
            return 0.0, ()
        wanted = [(place, fixed[tensor]) for place, tensor in enumerate(self.tensors) if tensor in fixed]
        found = [each for each in self.seconds.items() if all(each[0][place] == order for place, order in wanted)]
        orders, seconds = min(found, key=lambda each: each[1], default=((), math.inf))
        return seconds, orders


@dataclass(frozen=True, eq=False)
class LayoutProblem:
    """A graph of kernels and what they may cost.

    Attributes
    ----------
    orders : mapping
        Tensor -> the orders that it may be stored in, at least one; the first is the one that it is stored in now.
    kernels : sequence of KernelCost
        In the order of execution.
    """

    orders: Mapping[Tensor, tuple[Order, ...]]
    kernels: Sequence[KernelCost]

    @cached_property
    def now(self) -> dict[Tensor, Order]:
        """All tensors as they are stored now."""
        return {tensor: orders[0] for tensor, orders in self.orders.items()}

    @cached_property
    def touching(self) -> dict[Tensor, list[KernelCost]]:
        """Kernels that write or read each tensor."""
        found: dict[Tensor, list[KernelCost]] = {tensor: [] for tensor in self.orders}
        for kernel in self.kernels:
            for tensor in kernel.tensors:
                found[tensor].append(kernel)
        return found

    def seconds(self, choice: Choice) -> float:
        """Of all kernels; infinite if one of them was not measured so."""
        return sum(kernel.at(choice) for kernel in self.kernels)

    def alternatives(self, tensor: Tensor, choice: Choice) -> dict[Order, float]:
        """Seconds of all kernels for each order of one tensor, where the others are chosen."""
        rest = sum(kernel.at(choice) for kernel in self.kernels if tensor not in kernel.tensors)
        found = {}
        for order in self.orders[tensor]:
            found[order] = rest + sum(kernel.at({**choice, tensor: order}) for kernel in self.touching[tensor])
        return found

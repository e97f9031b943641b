# SPDX-License-Identifier: Apache-2.0
"""A lowered model: the module for TVM's code generator that `deploy.build.lower` makes, and the facts about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import tvm
from tvm import relax

from ..ir.public_functions import public_functions
from ..ir.several_sizes import size_functions
from ..ir.walk import collect
from ..schedule.schedule_kernels import kernel_plans, kernel_rules
from ..tune.apply_records import tuning_of
from .memory_plan import memory_plan, stream_of
from .signatures import signatures
from .weights import Weight


@dataclass(frozen=True)
class Lowered:
    """Code of the virtual machine with scheduled kernels, before code generation.

    Attributes
    ----------
    module : tvm.IRModule
        The module; its functions take the inputs and then the weights.
    weights : list of Weight
        The constants that became inputs: large ones; with this package's OpenCL runtime all; with a memory budget those
        that are streamed, large ones in slices.
    kernels_per_graph : list of int
        Number of kernels in each CUDA graph of one inference, in the order of the graphs' launches.
    planned : tvm.IRModule or None
        The module as it was when memory had just been planned, which `memory` reads; None if no phase plans memory.
    """

    module: tvm.IRModule
    weights: list[Weight]
    kernels_per_graph: list[int] = field(default_factory=list)
    planned: tvm.IRModule | None = None

    @cached_property
    def rules(self) -> dict[str, dict]:
        """Kernel -> the rule that made its schedule, see `schedule.schedule_kernels.kernel_rules`."""
        return kernel_rules(self.module)

    @cached_property
    def memory(self) -> dict:
        """Memory of an inference, see `deploy.memory_plan.memory_plan`, which may raise `BudgetTooSmall`.

        Of several sizes, that of the size that takes the most: they run in the same memory, one after the other.
        """
        if self.planned is None:
            return {}
        plans = self.size_memory.values()
        return max(plans, key=_bytes_of_tensors) if plans else memory_plan(self.planned)

    @cached_property
    def size_memory(self) -> dict[str, dict]:
        """Of several sizes: function -> its memory."""
        names = size_functions(self.planned) if self.planned is not None else ()
        return {name: memory_plan(self.planned, name) for name in names}

    @cached_property
    def size_weights(self) -> dict[str, int]:
        """Of several sizes: function -> bytes of the weights that its kernels read."""
        return {name: self._weights_of(name) for name in size_functions(self.module)}

    @cached_property
    def weight_streams(self) -> dict[str, dict]:
        """With a memory budget: function -> what its stream needs (`ir.sizes.STREAM`)."""
        found = {name: stream_of(self.module, name) for name in public_functions(self.module)}
        return {name: each for name, each in found.items() if each}

    def _weights_of(self, name: str) -> int:
        if stream := self.weight_streams.get(name):
            return sum({use["weight"]: use["bytes"] for use in stream["uses"]}.values())
        func = self.module[name]
        params = list(func.params)[len(func.params) - len(self.weights) :]
        read = set(collect(func.body, relax.Var))
        return sum(weight.nbytes for param, weight in zip(params, self.weights, strict=True) if param in read)

    @property
    def facts(self) -> dict[str, object]:
        """The attributes of `Compiled` that are read off the module, by their names."""
        return {
            "weights": self.weights,
            "rules": self.rules,
            "plans": kernel_plans(self.module),
            "tuning": tuning_of(self.module),
            "kernels_per_graph": self.kernels_per_graph,
            "memory": self.memory,
            "size_memory": self.size_memory,
            "signatures": signatures(self.module),
            "weight_streams": self.weight_streams,
            "size_weights": self.size_weights,
        }


def _bytes_of_tensors(plan: dict) -> tuple[int, int]:
    """Return what orders sizes by memory; their arenas are equally large (`ir.several_sizes.with_common_arenas`)."""
    return sum(each["bytes"] for each in plan["storages"]), sum(each["bytes"] for each in plan["tensors"])

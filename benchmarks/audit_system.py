# SPDX-License-Identifier: Apache-2.0
"""What audit.py asks of a system beside what `smartmem bench` does; a child process imports this module by name."""

from __future__ import annotations

from collections.abc import Sequence

from smartmem_tvm.bench import systems
from smartmem_tvm.bench.child import Child, System
from smartmem_tvm.planner.arena import Block, lower_bound


class NoTimes:
    """An effort of `smartmem_tvm.bench.measure` that takes no times: what is right is known after the first run."""

    def measure(self, children: Sequence[Child]) -> list[dict]:
        """Nothing of each."""
        return [{} for _ in children]


def prepare(request: dict) -> System:
    """The system of `smartmem bench`; of ours also its different kernels, and its planned memory beside the least."""
    system = systems.prepare(request)
    if isinstance(system, systems.TvmSystem) and system.of_ours:
        compiled = system.compiled
        system.facts |= {"functions": len(compiled.rules), "memory": planned(compiled.memory)}
    return system


def planned(memory: dict) -> dict[str, int]:
    """Bytes that a plan of `deploy.memory_plan` takes, and the most that are live at one of its steps.

    Results of the network are the caller's and in neither.
    """
    held = [each for each in memory["tensors"] if each["kind"] != "result"]
    alone = [each["bytes"] for each in held if each["storage"] is None]
    return {
        "planned": sum(each["bytes"] for each in memory["storages"]) + sum(alone),
        "least": lower_bound([Block(each["bytes"], each["first"], each["last"]) for each in held]),
    }

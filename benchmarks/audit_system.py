# SPDX-License-Identifier: Apache-2.0
"""What audit.py asks of a system beside what `smartmem bench` does; a child process imports this module by name."""

from __future__ import annotations

import time
from collections.abc import Sequence

from audit_rows import PLAIN

from smartmem_tvm.frontend import from_onnx, input_spec, onnxruntime_session
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.planner.arena import Block, lower_bound
from smartmem_tvm.tools.bench import systems
from smartmem_tvm.tools.bench.child import Child, System
from smartmem_tvm.tools.bench.turns import RunEffort, in_turns, summary


class NoTimes:
    """An effort of `tools.bench.measure_systems` without times: the first run shows whether results are right."""

    def measure(self, children: Sequence[Child]) -> list[dict]:
        """Nothing of each."""
        return [{} for _ in children]


class ProcessorTime(RunEffort):
    """Runs in turns, by the time that their processes have the processor: other work beside does little to it.

    For one thread: several that wait for each other would count as working.
    """

    def measure(self, children: Sequence[Child]) -> list[dict]:
        """Processor time of runs of each."""
        runs = [lambda each=each: (each.call("serve", 1) or (0.0,))[0] for each in children]
        return [{"latency_ms": summary(seconds)} for seconds in in_turns(runs, self)]


class OnProcessor(System):
    """A system that serves runs one after the other, and says their processor time."""

    def __init__(self, system: System):
        self.system, self.facts = system, system.facts
        self.feed, self.run, self.count = system.feed, system.run, system.count

    def serve(self, count: int) -> tuple[float, list[float]]:
        """Run so many times; processor seconds of all, and of each."""
        seconds = []
        for _ in range(count):
            start = time.process_time()
            self.run()
            seconds.append(time.process_time() - start)
        return sum(seconds), seconds


class PlainReference(systems.OnnxRuntime):
    """ONNX Runtime without the optimizations that change the order of its sums: how far it is from itself."""

    def __init__(self, request: dict):
        super().__init__(request)
        model = systems.model_of(request)
        self.session = onnxruntime_session(model, request["threads"], lean=True)
        self.facts["inputs"] = random_inputs(input_spec(from_onnx(model)), id_limits(model.proto), request["seed"])


def prepare(request: dict) -> System:
    """The system of `smartmem bench`; of ours also its different kernels, and its planned memory beside the least."""
    if request["system"] == PLAIN:
        return PlainReference(request)
    system = systems.prepare(request)
    if isinstance(system, systems.TvmSystem) and system.of_ours:
        compiled = system.compiled
        system.facts |= {"functions": len(compiled.rules), "memory": planned(compiled.memory)}
    return OnProcessor(system)


def planned(memory: dict) -> dict[str, int]:
    """Bytes that a plan of `deploy.memory_plan` takes, and the most that are live at one of its steps.

    Results of the network are the caller's and in neither.
    """
    held = [each for each in memory["tensors"] if each["kind"] != "result"]
    alone = [each["bytes"] for each in held if each["storage"] is None]
    storages = {each["storage"] for each in held} - {None}
    return {
        "planned": sum(memory["storages"][number]["bytes"] for number in storages) + sum(alone),
        "least": lower_bound([Block(each["bytes"], each["first"], each["last"]) for each in held]),
    }

# SPDX-License-Identifier: Apache-2.0
"""The kernels of a network for an Adreno: OpenCL programs, and what is known of each beside its machine code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm.target import Target

from ...deploy.build import optimize
from ...ir.graph import launches
from ...pipeline import Options, lower_phases, run_phases
from ...runtime.kernel_bounds import KernelBound, roofline
from ...schedule.schedule_kernels import kernel_rules
from .sources import function_of, kernel_programs


@dataclass(frozen=True)
class NetworkKernels:
    """Kernels of a network before they are compiled.

    Attributes
    ----------
    scheduled : tvm.IRModule
        ``call_tir`` of scheduled kernels.
    sources : mapping
        OpenCL kernel -> its program, in the order of the network.
    facts : mapping
        OpenCL kernel -> ``rule``, ``launches``, ``bound_seconds`` and ``bound_by``.
    """

    scheduled: tvm.IRModule
    sources: Mapping[str, str]
    facts: Mapping[str, dict]


def network_kernels(mod: tvm.IRModule, target: Target, options: Options) -> NetworkKernels:
    """Return the kernels of a Relax module of operators, scheduled for a target."""
    with target:
        graph = optimize(mod, target, options)
        phases = lower_phases(target)
        last = [phase.name for phase in phases].index("schedule")
        scheduled = run_phases(graph, phases[: last + 1], options)
    sources = kernel_programs(scheduled, target)
    times = {gvar.name_hint: count for gvar, count in launches(scheduled).items()}
    bounds, rules, facts = roofline(graph, target)[1], kernel_rules(scheduled), {}
    order = {name: number for number, name in enumerate(times)}
    names = sorted(sources, key=lambda name: order.get(function_of(name), len(order)))
    for name in names:
        function = function_of(name)
        bound = bounds.get(function, KernelBound()).bound
        facts[name] = {
            "rule": rules.get(function, {"name": "-"})["name"],
            "launches": times.get(function, 1),
            "bound_seconds": bound.seconds if bound else None,
            "bound_by": bound.by if bound else None,
        }
    return NetworkKernels(scheduled, {name: sources[name] for name in names}, facts)

# SPDX-License-Identifier: Apache-2.0
"""Compile a model: graph passes, schedules, TVM's code generator, the Relax virtual machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import tvm
from tvm import relax

from ..pipeline import BASELINE_PHASES, GRAPH_PHASES, LOWER_PHASES, Options, Phase, require_schedules, run_phases
from .target import host_target
from .weights import Machine, lift_weights


@dataclass
class Compiled:
    """A compiled model.

    Attributes
    ----------
    executable : tvm.relax.VMExecutable
        What TVM made; its ``main`` takes the inputs and then the weights. `deploy.export.save` saves both.
    graph : tvm.IRModule
        The module after the graph passes, one ``call_tir`` per kernel, with the decisions of the passes on it.
    weights : list of tvm.runtime.Tensor
        The large constants, see `deploy.weights`.
    seconds : dict
        Wall time of each step: ``passes`` (this package's graph passes and schedules) and ``codegen`` (TVM's).
    """

    executable: object
    graph: tvm.IRModule
    target: tvm.target.Target
    weights: list[tvm.runtime.Tensor] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @cached_property
    def vm(self) -> Machine:
        """A virtual machine on this machine's CPU, with the weights."""
        return Machine(self.executable, self.weights)

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Run on numpy arrays in the order of the model's inputs; returns the outputs in the model's order."""
        return to_numpy(self.vm["main"](*[tvm.runtime.tensor(np.asarray(x, order="C")) for x in inputs]))


def to_numpy(result) -> list[np.ndarray]:
    """The outputs of a VM call as a flat list of arrays."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    return [array for item in result for array in to_numpy(item)]


def optimize(
    mod: tvm.IRModule,
    options: Options | None = None,
    observe: Callable[[str, tvm.IRModule], None] | None = None,
) -> tvm.IRModule:
    """The graph passes only: operators in, one ``call_tir`` per kernel out, decisions attached.

    Parameters
    ----------
    observe : callable, optional
        Is shown the name of each phase that ran and the module after it.
    """
    return run_phases(mod, GRAPH_PHASES, options or Options(), observe)


def compile(mod: tvm.IRModule, target: tvm.target.Target | None = None, options: Options | None = None) -> Compiled:
    """Compile a Relax module (see `frontend`) for `target`, this machine's CPU by default."""
    return _compile(mod, target, options or Options(), GRAPH_PHASES)


def compile_baseline(mod: tvm.IRModule, target: tvm.target.Target | None = None, schedule: bool = True) -> Compiled:
    """The same for TVM's default graph (`BASELINE_PHASES`), with this package's schedules or TVM's code as it is."""
    return _compile(mod, target, Options(schedule=schedule), BASELINE_PHASES)


def _compile(mod, target, options: Options, phases: tuple[Phase, ...]) -> Compiled:
    target = target or host_target()
    if options.schedule:
        require_schedules(target)
    start = time.perf_counter()
    with target:
        graph = run_phases(mod, phases, options)
        dump = replace(options, dump_dir=f"{options.dump_dir}/lower") if options.dump_dir else options
        lowered, weights = lift_weights(run_phases(graph, LOWER_PHASES, dump))
    middle = time.perf_counter()
    executable = relax.build(lowered, target, relax_pipeline=None)
    seconds = {"passes": middle - start, "codegen": time.perf_counter() - middle}
    return Compiled(executable, graph, target, weights, seconds)

# SPDX-License-Identifier: Apache-2.0
"""What ``relax_pipeline="smartmem"`` runs: the pipeline, also for modules with symbolic dimensions."""

from __future__ import annotations

import logging
from dataclasses import fields

import tvm
from tvm import relax

from smartmem_tvm.frontend.relax_module import NotOpen, opened_module, with_dispatch
from smartmem_tvm.ir.symbolic_inputs import symbolic_functions
from smartmem_tvm.options import Options
from smartmem_tvm.pipeline import phases_of, run_phases
from smartmem_tvm.requirements import require_precision, require_schedules, require_weights
from smartmem_tvm.target import is_cpu

_logger = logging.getLogger(__name__)
_DISPATCHED = "lower"  # the phase before which `main` comes into the module: kernels have their schedules there


def relax_pipeline(**options) -> tvm.transform.Pass:
    """Return the pipeline of ``relax_pipeline="smartmem"``, from a Relax module of operators to one for the VM.

    On CPUs a module with one public function may have one or two symbolic dimensions: items, which do not depend on
    each other, and a length, whose bound the attribute ``tir_var_upper_bound`` of the function has (docs/shapes.md).
    Any other module with symbolic inputs goes through TVM's default pipeline, and a warning says why.

    Parameters
    ----------
    **options
        Fields of `Options`.

    Raises
    ------
    TypeError
        If an option does not exist.
    UserError
        When a module is compiled, if its target lacks schedules or the precision, or the weights are not known.
    """
    known = {field.name for field in fields(Options)}
    if set(options) - known:
        raise TypeError(f"unknown option {sorted(set(options) - known)}; the pipeline knows {sorted(known)}")
    chosen = Options(**options)

    @tvm.transform.module_pass(opt_level=0, name="smartmem.pipeline")
    def pipeline(mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=True)
        if chosen.schedule:
            require_schedules(target)
        require_precision(target, chosen.precision)
        require_weights(chosen.weights)
        if not symbolic_functions(mod):
            return run_phases(mod, phases_of(target), chosen)
        try:
            if target is not None and not is_cpu(target):
                raise NotOpen(f"dimensions stay open on CPUs, and the target is '{target.kind.name}'")
            opened = opened_module(mod)
        except NotOpen as reason:
            _logger.warning("TVM's default pipeline compiles this module: %s.", reason)
            return relax.get_default_pipeline(target or tvm.target.Target("llvm"))(mod)
        phases = phases_of(target)
        place = [phase.name for phase in phases].index(_DISPATCHED)
        kernels = run_phases(opened.module, phases[:place], chosen)
        return run_phases(with_dispatch(opened, kernels), phases[place:], chosen, first=place)

    return pipeline

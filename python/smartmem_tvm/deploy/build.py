# SPDX-License-Identifier: Apache-2.0
"""Compile a model: graph passes, schedules, TVM's code generator, the Relax virtual machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import tvm
from tvm import relax

from ..analysis.texel_reads import TexelReads, texel_reads
from ..cpu_code import code_generation
from ..errors import UserError
from ..ir.graph import continue_log
from ..ir.public_functions import MAIN, public_functions
from ..ir.several_sizes import size_functions, tile_groups, with_kernels_once
from ..ir.sizes import LARGE, STREAMED
from ..ir.symbolic_inputs import symbolic_functions
from ..output_check import OutputCheck
from ..pipeline import (
    BASELINE_PHASES,
    Options,
    Phase,
    graph_phases,
    lower_phases,
    output_check,
    run_phases,
)
from ..requirements import require_precision, require_schedules, require_weights
from ..schedule.schedule_kernels import without_plans
from ..target import has_textures, host_target, is_gpu, is_opencl, parse_target, runs_ours
from ..transform.memory.capture_graphs import kernels_per_graph
from ..tvm_lock import one_at_a_time
from ..tvm_mends.check_images import CheckImages, planned_memory
from .argument_checks import trust_own_tensors
from .caches import require_caches
from .check_bounds import with_bounds_checks
from .compiled import Compiled
from .cpu_build import build_for_cpu
from .gpu_build import build_for_gpu
from .inference_session import quoted
from .kernel_functions import with_kernel_functions
from .lowered import Lowered
from .memory_plan import PLANNED
from .streamed import BudgetTooSmall
from .texture_refusals import without_textures
from .textures import tir_pipeline
from .weights import Weight, lift_weights

_logger = logging.getLogger(__name__)
Made = TypeVar("Made")

# In about one of a few thousand graphs, LLVM 22 at optimisation levels 2 and 3 joins narrow vectors before they are
# loaded; LLVM's verifier, which TVM runs, finds it.
_INVALID_CODE = "LLVM module verification failed"


@one_at_a_time
def optimize(
    mod: tvm.IRModule,
    target: tvm.target.Target | str | None = None,
    options: Options | None = None,
    observe: Callable[[str, tvm.IRModule], None] | None = None,
) -> tvm.IRModule:
    """Run the graph passes only: operators in, one ``call_tir`` per kernel out, decisions attached.

    Parameters
    ----------
    target : tvm.target.Target or str, optional
        As for `compile`; by default the current one (``with target:``), and this machine's CPU if there is none.
    observe : callable, optional
        Called with the name of each phase that ran and the module after it.

    Raises
    ------
    UserError
        If `mod` is no module of public Relax functions, or there is no such target.
    """
    _require_functions(mod)
    target = _with_host(target or tvm.target.Target.current(allow_none=True))
    with target:  # some of TVM's passes read the current target
        return run_phases(mod, graph_phases(target), options or Options(), observe)


@one_at_a_time
def compile(
    mod: tvm.IRModule,
    target: tvm.target.Target | str | None = None,
    options: Options | None = None,
    observe: Callable[[str, tvm.IRModule], None] | None = None,
) -> Compiled:
    """Compile a Relax module (see `frontend`) for `target`, this machine's CPU by default.

    Parameters
    ----------
    target : tvm.target.Target or str, optional
        A target, or a name as `parse_target` and ``--target`` of the commands take it.
    observe : callable, optional
        Called with the name of each graph phase that ran and the module after it.

    Raises
    ------
    UserError
        If `mod` is no module of public Relax functions, there is no such target, or it lacks something that `options`
        need.
    """
    _require_functions(mod)
    target = _with_host(target)
    if symbolic := symbolic_functions(mod):
        name, (first, *_) = next(iter(symbolic.items()))
        _logger.warning(
            "TVM's default pipeline compiles this module, as dimension '%s' of function '%s' is symbolic: give sizes, "
            "or compile it with relax_pipeline='smartmem', which leaves dimensions open.",
            first.name,
            name,
        )
        return _compile_default(mod, target)
    return sliced_to_fit(
        options or Options(), lambda chosen: _compile(mod, target, chosen, graph_phases(target), observe)
    )


def sliced_to_fit(options: Options, make: Callable[[Options], Made]) -> Made:
    """Return the result of `make` within a memory budget, with the fewest slices of weights that have a plan.

    Raises
    ------
    UserError
        If even the narrowest slices have no plan; the message states the least budget.
    """
    if not options.memory_budget or options.slice_budget is not None:
        return make(options)
    for part in (1, 2, 8):
        try:
            return make(replace(options, slice_budget=max(options.memory_budget // part, 1)))
        except BudgetTooSmall:
            continue  # the workspaces of kernels are known only once they are scheduled
    return make(replace(options, slice_budget=1))


@one_at_a_time
def compile_baseline(
    mod: tvm.IRModule, target: tvm.target.Target | str | None = None, schedule: bool = True
) -> Compiled:
    """Compile TVM's default graph (`BASELINE_PHASES`); arguments and result as of `compile`.

    Parameters
    ----------
    schedule : bool
        For a CPU, for which TVM has no schedules: whether to use this package's, or TVM's loops as they are. For a GPU,
        TVM's default pipeline for the target is compiled, with its schedules.
    """
    _require_functions(mod)
    target = _with_host(target)
    if is_gpu(target):
        _require_threads(target, schedule)
        return _compile_default(mod, target)
    return _compile(mod, target, Options(schedule=schedule), BASELINE_PHASES)


def _with_host(target: tvm.target.Target | str | None) -> tvm.target.Target:
    target = parse_target(target) if isinstance(target, str) else target or host_target()
    if not isinstance(target, tvm.target.Target):
        kind = type(target).__name__
        raise UserError(
            f"A target is its name or a tvm.target.Target, and no {kind}; options are given as options=...."
        )
    return target.with_host("llvm") if is_gpu(target) and target.host is None else target


def _compile(mod, target, options: Options, phases: tuple[Phase, ...], observe=None) -> Compiled:
    """Make a graph of kernels, a lowered module, and code; again, with buffers, for textures that are refused."""
    _require(mod, target, options)
    start = time.perf_counter()
    placed = [phase.name for phase in phases].index("textures") if has_textures(target) else len(phases)
    with target:
        outputs = output_check(mod, target, options)
        whole = run_phases(mod, phases[:placed], options, observe, check=outputs)
    while True:
        with target:
            graph = with_kernels_once(run_phases(whole, phases[placed:], options, observe, placed, outputs))
        try:
            return _generated(graph, target, options, start, outputs)
        except (TypeError, AttributeError, NameError):
            raise  # a fault in a pass; a second compilation with buffers would only hide it
        except Exception as error:
            options = _with_refused_textures_in_buffers(graph, target, options, error)


def _with_refused_textures_in_buffers(graph: tvm.IRModule, target, options: Options, error: Exception) -> Options:
    """Return the options with buffers for the textures that made compilation fail; raise `error` if none did."""
    refused = without_textures(graph, target, str(error)) if has_textures(target) else {}
    new = sorted(refused.keys() - dict(options.in_buffers).keys())
    if not new:
        raise error
    _logger.info("kernels that read and write buffers only: %s", ", ".join(new))
    return replace(options, in_buffers=(*options.in_buffers, *((name, refused[name]) for name in new)))


def _generated(graph: tvm.IRModule, target, options: Options, start: float, outputs: OutputCheck | None) -> Compiled:
    """Generate code for a graph of kernels; `start` is the time at which the compilation began."""
    if options.caches:
        require_caches(graph)
    with target:
        dump = replace(options, dump_dir=f"{options.dump_dir}/lower") if options.dump_dir else options
        lowered = lower(graph, target, dump, check=outputs)
    facts = lowered.facts  # before code is generated: raises BudgetTooSmall if no plan is within the memory budget
    middle = time.perf_counter()
    reads: dict[str, TexelReads] = {}
    check = CheckImages(planned_memory(lowered.module))

    def check_texels(kernels: tvm.IRModule) -> None:
        if is_opencl(target):
            reads.update(texel_reads(check(kernels)))

    module = with_bounds_checks(lowered.module) if options.bounds else lowered.module
    executable = generate(with_kernel_functions(module), target, check_texels)
    seconds = {"passes": middle - start, "codegen": time.perf_counter() - middle}
    graph = lift_weights(continue_log(graph, lowered.module))[0]
    compiled = Compiled(executable, graph, target, texel_reads=reads, seconds=seconds, **facts)
    if outputs is not None:
        outputs.finish(lambda *arrays: compiled.run_whole(arrays))
    return compiled


@one_at_a_time
def lower(
    graph: tvm.IRModule,
    target: tvm.target.Target,
    options: Options,
    observe: Callable[[str, tvm.IRModule], None] | None = None,
    check: OutputCheck | None = None,
) -> Lowered:
    """Lower a graph of kernels to code of the virtual machine.

    Weights become parameters before CUDA graphs are captured: a constant within a captured graph cannot be lifted.

    Parameters
    ----------
    observe : callable, optional
        Called with the name of each phase that ran and the module after it.
    check : OutputCheck, optional
        As in `run_phases`.
    """
    phases = lower_phases(target)
    names = [phase.name for phase in phases]
    lifted_at = names.index("cuda_graph") if "cuda_graph" in names else len(phases)
    after: dict[str, tvm.IRModule] = {}

    def look(phase: str, mod: tvm.IRModule) -> None:
        if phase in (*PLANNED, "cuda_graph"):
            after[phase] = mod
        if observe is not None:
            observe(phase, mod)

    planned = run_phases(graph, phases[:lifted_at], options, look, check=check)
    if STREAMED in (planned.attrs or {}):
        weights = [Weight(tensor) for tensor in planned.attrs[STREAMED]]
        planned = planned.without_attr(STREAMED)
    else:
        # This package's OpenCL runtime keeps weights in one buffer; a constant in the code would have another one.
        planned, weights = lift_weights(planned, 0 if runs_ours(target) else LARGE)
    rest = replace(options, check=None)  # weights are inputs now, and the module no longer runs on a CPU
    module = trust_own_tensors(run_phases(planned, phases[lifted_at:], rest, look, lifted_at))
    captured = kernels_per_graph(after["cuda_graph"]) if "cuda_graph" in after else []
    return Lowered(module, weights, captured, next((after[each] for each in PLANNED if each in after), None))


def _require(mod: tvm.IRModule, target, options: Options) -> None:
    """Refuse what cannot be compiled for this target with these options."""
    if options.schedule:
        require_schedules(target)
    require_precision(target, options.precision)
    require_weights(options.weights)
    _require_threads(target, options.schedule)
    _require_cpu(target, options)
    _require_main_for_budget(mod, options)
    _require_place_for_caches(target, options)
    _require_no_open_caches(mod, options)


def _require_no_open_caches(mod: tvm.IRModule, options: Options) -> None:
    if options.caches and tile_groups(mod):
        raise UserError("Caches are of one size, and this model has an open dimension: leave the caches out.")


def _require_place_for_caches(target, options: Options) -> None:
    if options.caches and options.memory_budget:
        raise UserError("Caches are no part of what a memory budget counts: leave the budget or the caches out.")


def _require_threads(target, schedule: bool) -> None:
    if is_gpu(target) and not schedule:
        raise UserError(
            f"Target kind '{target.kind.name}' runs kernels on threads, of which plain loops have none: leave "
            f"`schedule` on, or compile for a CPU."
        )


def _require_cpu(target, options: Options) -> None:
    if options.bounds and is_gpu(target):
        raise UserError(f"Bounds are checked in kernels for a CPU, and the target is '{target.kind.name}': use cpu.")
    if options.memory_budget and is_gpu(target):
        raise UserError(
            f"A memory budget is for weights that a CPU's kernels read where a file was read to, and the target is "
            f"'{target.kind.name}': use cpu, or leave the budget out."
        )


def _require_functions(mod: tvm.IRModule) -> None:
    if not isinstance(mod, tvm.IRModule):
        raise UserError(
            f"A module of Relax functions (tvm.IRModule) is compiled, not {type(mod).__name__}: make one with "
            f"smartmem_tvm.from_onnx, smartmem_tvm.from_torch or TVM."
        )
    if not public_functions(mod):
        raise UserError(
            "The module has no public Relax function: call one 'main', or give it the attribute 'global_symbol'."
        )


def _require_main_for_budget(mod: tvm.IRModule, options: Options) -> None:
    if options.memory_budget and tile_groups(mod):
        raise UserError(
            "A memory budget is for sizes that are known, and this model has an open dimension: give a list of sizes, "
            "as in --shape 'x:{1,4,8},3,224,224', or leave the budget out."
        )
    if options.memory_budget and not size_functions(mod) and public_functions(mod) != [MAIN]:
        raise UserError(
            f"A memory budget is for one function, 'main', and the module has {quoted(public_functions(mod))}: make "
            f"a module of one of them, called 'main', or leave the budget out."
        )


@one_at_a_time
def generate(
    lowered: tvm.IRModule, target: tvm.target.Target, observe: Callable[[tvm.IRModule], None] = lambda _: None
) -> relax.VMExecutable:
    """Run TVM's code generator on the result of `lower`; for a GPU, `observe` is called first with its kernels."""
    lowered = without_plans(lowered)
    if is_gpu(target):
        return build_for_gpu(lowered, target, tir_pipeline(lowered, target), observe)
    with code_generation(target) as given:
        try:
            return build_for_cpu(lowered, given)
        except Exception as error:
            if _INVALID_CODE not in str(error):
                raise
            _logger.warning("LLVM makes invalid code of this model at level 3: it is compiled at level 1, and slower.")
            return build_for_cpu(lowered, _optimized_less(given))


def _optimized_less(target: tvm.target.Target) -> tvm.target.Target:
    return tvm.target.Target({**target.export(), "opt-level": 1})


def _compile_default(mod, target) -> Compiled:
    """Compile by TVM's default pipeline; a second run of its graph passes gives the graph to inspect."""
    start = time.perf_counter()
    with target:
        lowered = relax.get_default_pipeline(target)(mod)
    middle = time.perf_counter()
    executable = generate(lowered, target)
    seconds = {"passes": middle - start, "codegen": time.perf_counter() - middle}
    with target:
        graph = run_phases(mod, BASELINE_PHASES, Options())
    return Compiled(executable, lift_weights(graph)[0], target, seconds=seconds)

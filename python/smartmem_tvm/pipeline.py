# SPDX-License-Identifier: Apache-2.0
"""The table of phases, from which ``relax.get_pipeline("smartmem")`` is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import tvm

from .ir.check_maps import check_maps
from .ir.codes import WEIGHTS
from .ir.half import FLOAT
from .ir.strength_reduction import strength_reduction
from .module_file import write_module
from .options import Options
from .output_check import OutputCheck
from .pass_registry import make_pass
from .target import (
    has_byte_dots,
    has_textures,
    is_cuda,
    is_gpu,
    runs_ours,
)
from .tvm_lock import one_at_a_time

__all__ = [
    "BASELINE_PHASES",
    "PHASES",
    "PRECISIONS",
    "Options",
    "Phase",
    "after_schedules",
    "graph_phases",
    "lower_phases",
    "output_check",
    "phases_of",
    "prepare_passes",
    "run_phases",
]

PRECISIONS = {
    FLOAT: (),
    "half-storage": ("store-half",),
    "half": ("store-half", "compute-half"),
    "bfloat16": ("store-half", "round-factors", "round-products"),
    "tf32": ("round-factors",),
}
"""Precision (`tables.precisions`) -> the passes that bring a module to it, as far as a target's phases have them."""

# Passes that depend on another option than their phase's: pass -> the option, and whether a value of it turns them on.
_ON_REQUEST = {
    "multiply-bytes": ("rewrite", bool),
    "store-codes": ("weights", lambda weights: weights != "float"),
    "round-weights": ("weights", lambda weights: weights not in WEIGHTS),
    "apply-records": ("records", lambda records: records is not None),
    "select-layout": ("layout", lambda layout: layout is True),
    "channels-innermost": ("layout", lambda layout: layout is True),
    "plan-layout": ("layout", lambda layout: isinstance(layout, str)),
    "plan-memory": ("arena", bool),
    "keep-caches": ("caches", bool),
    "bound-keys": ("caches", bool),
    "write-in-place": ("caches", bool),
    "transform-windows": ("winograd", bool),
    "native-functions": ("native_functions", bool),
    **dict.fromkeys(("gather-rows", "slice-weights", "join-slices", "stream-weights"), ("memory_budget", bool)),
    "store-half": ("precision", lambda precision: "store-half" in PRECISIONS[precision]),
    "round-products": ("precision", lambda precision: "round-products" in PRECISIONS[precision]),
    "compute-half": ("precision", lambda precision: "compute-half" in PRECISIONS[precision]),
    "round-factors": ("precision", lambda precision: "round-factors" in PRECISIONS[precision]),
}


def _any(_: tvm.target.Target | None) -> bool:
    return True


def _cpu(target: tvm.target.Target | None) -> bool:
    return not _gpu(target)


def _gpu(target: tvm.target.Target | None) -> bool:
    return target is not None and is_gpu(target)


def _chains(target: tvm.target.Target | None) -> bool:
    """Chains keep their tensors in buffers, and the figures of their cost model are those of large GPUs."""
    return _gpu(target) and not has_textures(target)


def _cuda(target: tvm.target.Target | None) -> bool:
    return target is not None and is_cuda(target)


def _byte_dots(target: tvm.target.Target | None) -> bool:
    """Whether threads multiply four bytes at once; CUDA has a phase of its own."""
    return target is not None and not is_cuda(target) and is_gpu(target) and has_byte_dots(target)


def _recorded(target: tvm.target.Target | None) -> bool:
    """Whether runs of kernels are recorded, by CUDA or by this package's runtime for OpenCL."""
    return target is not None and (is_cuda(target) or runs_ours(target))


def _not_recorded(target: tvm.target.Target | None) -> bool:
    return not _recorded(target)


def _textures(target: tvm.target.Target | None) -> bool:
    return _gpu(target) and has_textures(target)


def _selects_layout(target: tvm.target.Target | None) -> bool:
    return _textures(target) or _cuda(target)


def _other_buffers(target: tvm.target.Target | None) -> bool:
    return _gpu(target) and not _selects_layout(target)


@dataclass(frozen=True)
class Phase:
    """A named group of passes.

    Attributes
    ----------
    name : str
        The phase runs if the field of this name in `Options` is on, or `Options` has no such field.
    passes : tuple of str
        Names in `pass_registry.PASSES`, in order.
    on : callable
        Target (None for a CPU) -> whether its pipeline has the phase.
    option : str or None
        The field of `Options` to read, if it is not called `name`.
    """

    name: str
    passes: tuple[str, ...]
    on: Callable[[tvm.target.Target | None], bool] = _any
    option: str | None = None

    def chosen(self, options: Options) -> tuple[str, ...]:
        """Return the passes that `options` leaves on."""
        if not getattr(options, self.option or self.name, True):
            return ()
        asked = {name: wanted(getattr(options, field)) for name, (field, wanted) in _ON_REQUEST.items()}
        return tuple(name for name in self.passes if asked.get(name, True))

    def option_of(self, name: str) -> str | None:
        """Return the field of `Options` that decides whether a pass runs, None if it always runs."""
        if name in _ON_REQUEST:
            return _ON_REQUEST[name][0]
        option = self.option or self.name
        return option if option in {field.name for field in fields(Options)} else None


_PLAN_MEMORY = (
    "write-in-place",  # where kernels are not scheduled
    "keep-nan",
    "keep-floats",
    "bind-choices",
    "guard-divisions",
    "wrap-casts",
    "wrap-integers",
    "clamp-indices",
    "store-bound",
    "relax.ToNonDataflow",
    "relax.RemovePurityChecking",
    "relax.CallTIRRewrite",
    "join-slices",
    "stream-weights",
    "plan-memory",
    # TVM plans the tensors that cannot be in an arena.
    "relax.StaticPlanBlockMemory",
    "own-storages",
    "fit-storages",
)
_FINISH = (
    "relax.LowerAllocTensor",
    "relax.KillAfterLastUse",
    "relax.LowerRuntimeBuiltin",
    "relax.ComputePrimValue",
    "relax.VMShapeLower",
    "relax.AttachGlobalSymbol",
)

PHASES = (
    # TVM would dispatch these operators to chains of small kernels, one of them wrong on some GPUs, or to a reduction
    # to pairs.
    Phase("mend", ("drop-empty", "lower-sorts", "lower-scans", "lower-argmax"), _gpu),
    # Constants and inference forms first, so that weights are constants for the rewrite rules.
    Phase(
        "canonicalize",
        (
            # Before all others, which would work for functions that are left out.
            "choose-tiles",
            "share-items",
            "share-lengths",
            "keep-caches",  # before operators change, as it looks for what exporters write
            "drop-empty",  # before all others, so that they meet no tensors without elements
            "widen-bfloat16",
            "relax.DecomposeOpsForInference",
            "relax.CanonicalizeBindings",
            "multiply-bytes",  # before scales are folded into the constants of bytes
            "store-codes",
            "fold-fills",
            "fold-constants",
            "relax.FoldConstant",
        ),
    ),
    # Cheaper operators, while operators still have names.
    Phase(
        "rewrite",
        (
            "fold-scales",
            "fold-norm-affine",
            "merge-branches",
            "rewrite-algebra",
            "pool-first",
            "trim-windows",
            "split-transposed",
            "split-windows",
        ),
    ),
    Phase("merge_projections", ("merge-projections", "relax.CanonicalizeBindings")),
    # After projections are merged, and scales are folded.
    Phase("weights", ("round-weights", "round-rows")),
    # Every operator becomes a PrimFunc: the passes from here on read facts from loop programs.
    Phase(
        "legalize",
        (
            "lower-scatters",
            "lower-concats",
            "widen-sums",
            "relax.DispatchSampling",
            "relax.DispatchSortScan",
            "relax.LegalizeOps",
            "mend-extremes",
            "relax.FoldConstant",
            "relax.DeadCodeElimination",
        ),
    ),
    Phase("eliminate", ("eliminate-layout",)),
    # `read-codes` first: transposes of weights have no kernels by now, and other fusions see what products read.
    Phase("fuse", ("read-codes", "fuse-rows", "fuse-operators")),
    # After `fuse`: element-wise operators have joined the matmuls by now.
    Phase("fuse_attention", ("fuse-attention",)),
    # After fusion, when the tensors that go through memory are known, and before that memory is planned.
    Phase("precision", ("store-half", "compute-half", "round-factors"), _gpu),
    # On CPUs, `schedule` rounds the factors of products later, where schedule rules price which products gain by it.
    Phase("precision", ("store-half",), _cpu),
    # After `precision`, which rounds the scales; before textures, as threads read codes from buffers.
    Phase("codes", ("pack-codes",), _gpu),
    # After `precision`, as the stored types must be known; before layouts, which are chosen for the remaining tensors.
    Phase("merge_chains", ("merge-chains",), _chains),
    # Before layouts are chosen: products want another order of their operands than windows.
    Phase("channels", ("widen-groups", "pack-channels"), _cuda, option="schedule"),
    # Before tensors are placed, as what lies between scores and values is then no tensor any more.
    Phase("lengths", ("bound-keys",), _textures),
    # After all fusion: the memory of a tensor depends on the kernels that finally write and read it.
    Phase("textures", ("place-textures",), _textures),
    Phase("layout", ("select-layout", "plan-layout"), _selects_layout),
    # SmartMem's rule slows other kernels down on CPUs. All kernels around convolutions gain by channels-innermost;
    # elsewhere the planner needs measured costs.
    # Lengths after layouts, as it notes along which dimension of a tensor the positions lie.
    Phase("layout", ("channels-innermost", "plan-layout", "skip-positions"), _cpu),
    Phase("layout", ("plan-layout",), _other_buffers),
    # After layouts: these passes read how tensors are stored.
    Phase("terms", ("order-terms", "turn-weights"), _cuda, option="schedule"),
    Phase("terms", ("order-terms",), _byte_dots, option="schedule"),
    # After fusion and layouts: the slices have to fit beside the other tensors in memory.
    # Then kernels of attention get an input that later graph passes would not know.
    # Sizes that others compute are made after all passes that see each kernel once.
    Phase("slices", ("repeat-items", "gather-rows", "slice-weights", "bound-keys"), _cpu),
    # After layouts: weights of products lie as the rule for few rows wants them.
    Phase("norms", ("norms-into-products",), _cuda),
    # On other GPUs a thread cannot return early: TVM prints no such statement.
    Phase("positions", ("skip-positions",), _cuda),
    # As on CPUs, the last of the graph passes; after chains, which take attention of small networks.
    Phase("lengths", ("bound-keys",), _chains),
    # From here on kernels are code, and the graph is lowered to the virtual machine.
    Phase(
        "schedule",
        (
            "write-in-place",
            "stage-padding",
            "align-windows",
            "pack-codes",
            "split-reductions",
            "lower-rotations",
            "vectorize-math",
            "round-products",
            "pair-products",
            "float-products",
            "transform-windows",
            "apply-records",
            "pack-weights",
            "schedule-kernels",
            # Before TVM's name of a rounding is gone.
            "round-to-bytes",
            # Again, for nested functions, whose code would have grown too much before scheduling.
            "vectorize-math",
        ),
        _cpu,
    ),
    # The budget includes the workspaces that kernels take from TVM's pool.
    Phase("workspaces", ("lift-workspaces",), _cpu, option="memory_budget"),
    # Without split-reductions, as a GPU thread reads no contiguous row, and without vectorize-math, as GPUs have exp.
    Phase(
        "schedule",
        (
            "fix-addresses",  # after all fusion, as copies of inputs are kernels of their own
            "write-in-place",
            "lower-rotations",
            "lower-single-terms",
            "apply-records",
            "schedule-kernels",
            "native-functions",
            "mend-vectors",
            "lift-workspaces",
        ),
        _gpu,
    ),
    # TVM's lowering, without RewriteDataflowReshape: no layout operator is left for it.
    Phase("lower", (*_PLAN_MEMORY, *_FINISH), _not_recorded),
    # Graphs are captured between planning, which fixes the addresses of tensors, and lowering, which hides them.
    Phase("plan_memory", _PLAN_MEMORY, _recorded),
    Phase("cuda_graph", ("capture-graphs",), _recorded),
    Phase("finish", _FINISH, _recorded),
)
_FIRST_OF_LOWERING = "schedule"

# TVM's own five passes, the baseline of every comparison.
BASELINE_PHASES = (
    Phase(
        "tvm_default",
        (
            "relax.DispatchSortScan",  # LegalizeOps leaves sorts and top-k to it
            "relax.LegalizeOps",
            "relax.AnnotateTIROpPattern",
            "relax.FoldConstant",
            "relax.FuseOps",
            "relax.FuseTIR",
        ),
    ),
)


def phases_of(target: tvm.target.Target | None) -> tuple[Phase, ...]:
    """Return the whole pipeline of a target (None for a CPU), from operators to code of the virtual machine."""
    return tuple(phase for phase in PHASES if phase.on(target))


def graph_phases(target: tvm.target.Target | None) -> tuple[Phase, ...]:
    """Return the phases from operators to the graph of kernels."""
    return _split(target)[0]


def lower_phases(target: tvm.target.Target | None) -> tuple[Phase, ...]:
    """Return the phases from the graph of kernels to code of the virtual machine."""
    return _split(target)[1]


def _split(target: tvm.target.Target | None) -> tuple[tuple[Phase, ...], tuple[Phase, ...]]:
    phases = phases_of(target)
    first = [phase.name for phase in phases].index(_FIRST_OF_LOWERING)
    return phases[:first], phases[first:]


def prepare_passes(target: tvm.target.Target | None, options: Options | None = None) -> list[tvm.transform.Pass]:
    """Return the passes that bring kernels into the form that schedule rules and tuning records expect."""
    phase, options = lower_phases(target)[0], options or Options()
    before = phase.passes[: phase.passes.index("apply-records")]
    return [make_pass(name, options, target) for name in replace(phase, passes=before).chosen(options)]


def after_schedules(target: tvm.target.Target, options: Options | None = None) -> list[tvm.transform.Pass]:
    """Return the passes that scheduled kernels for a GPU go through in a network, before their workspaces are lifted.

    A candidate of a tuner goes through them, too, so that what is measured is what a network runs.
    """
    phase, options = lower_phases(target)[0], options or Options()
    first, last = (phase.passes.index(name) for name in ("schedule-kernels", "lift-workspaces"))
    after = phase.passes[first + 1 : last]
    return [make_pass(name, options, target) for name in replace(phase, passes=after).chosen(options)]


@one_at_a_time
def run_phases(
    mod: tvm.IRModule,
    phases: tuple[Phase, ...],
    options: Options,
    observe: Callable[[str, tvm.IRModule], None] | None = None,
    first: int = 0,
    check: OutputCheck | None = None,
) -> tvm.IRModule:
    """Run the phases that `options` leaves on, for the current target, dumping the module after each on request.

    Parameters
    ----------
    observe : callable, optional
        Called with the name of each phase that ran and the module after it.
    first : int
        The number of the first phase in the names of dumps.
    check : OutputCheck, optional
        Compares the module's results after each phase; by default with those of `mod`, if `options` asks for it.
    """
    target = tvm.target.Target.current(allow_none=True)
    check = check or output_check(mod, target, options)
    for number, phase in enumerate(phases, start=first):
        passes = [(name, make_pass(name, options, target)) for name in phase.chosen(options)]
        if not passes:
            continue
        before = mod
        with strength_reduction(options.simplify), check_maps(options.check == "maps"):
            mod = tvm.transform.Sequential([each for _, each in passes])(mod)
        if options.dump_dir is not None:
            _dump(mod, Path(options.dump_dir) / f"{number:02d}_{phase.name}")
        if check is not None:
            with strength_reduction(options.simplify):
                check.after(phase.name, before, passes, mod)
        if observe is not None:
            observe(phase.name, mod)
    return mod


def output_check(mod: tvm.IRModule, target: tvm.target.Target | None, options: Options) -> OutputCheck | None:
    """Return the check that ``check="outputs"`` asks for; None if `options` does not ask for it."""
    return OutputCheck(mod, target, options.precision) if options.check == "outputs" else None


def _dump(mod: tvm.IRModule, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for ending in (".py", ".json"):
        write_module(mod, path.with_name(path.name + ending))

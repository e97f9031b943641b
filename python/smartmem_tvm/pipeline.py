# SPDX-License-Identifier: Apache-2.0
"""The one visible list of phases, which ``relax.get_pipeline("smartmem")`` is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import tvm
from tvm import relax

from .analysis.fusion import Profiles
from .errors import UserError
from .ir.half import FLOAT
from .ir.strength_reduction import strength_reduction
from .schedule import CpuParams, PackWeights, ScheduleKernels
from .schedule.gpu.attention.attention import chain_params, refusal
from .target import (
    has_half_arithmetic,
    has_half_storage,
    has_textures,
    image_limits,
    is_cpu,
    is_cuda,
    is_gpu,
    model_of,
)
from .texture_trial import Measure, TextureTrial
from .transform.capture_graphs import CaptureGraphs
from .transform.compute_half.compute_half import ComputeHalf
from .transform.eliminate_layout import EliminateLayout
from .transform.fit_storages import FitStorages
from .transform.fold_scales.fold_norm_affine import FoldNormAffine
from .transform.fold_scales.fold_scales import FoldScales
from .transform.fuse_attention import FuseAttention
from .transform.fuse_operators import FuseOperators
from .transform.fuse_rows import FuseRows
from .transform.lift_workspaces import LiftWorkspaces
from .transform.lower_argmax import LowerArgmax
from .transform.lower_rotations import LowerRotations
from .transform.lower_scans import LowerScans
from .transform.lower_sorts import LowerSorts
from .transform.merge_projections import MergeProjections
from .transform.place_textures import PlaceTextures
from .transform.rewrite_algebra.rewrite_algebra import RewriteAlgebra
from .transform.select_layout import SelectLayout
from .transform.split_reductions import SplitReductions
from .transform.split_transposed import SplitTransposed
from .transform.store_half import StoreHalf
from .transform.vectorize_math import VectorizeMath


@dataclass(frozen=True)
class Options:
    """What the pipeline does; every technique can be switched off on its own, for ablations.

    Attributes
    ----------
    rewrite, merge_projections, eliminate, fuse, schedule : bool
        Run `FoldScales`, `FoldNormAffine`, `RewriteAlgebra` and `SplitTransposed`; `MergeProjections`;
        `EliminateLayout`; `FuseRows` and `FuseOperators`; `ScheduleKernels`.
    simplify : bool
        Reduce composed index maps in strength (`ir.strength_reduction`); without, only TVM simplifies them.
    fuse_attention : bool
        Run `FuseAttention`.
    precision : str
        ``float32``; ``half-storage``: `StoreHalf`, tensors in memory are half numbers and arithmetic is not; ``half``:
        `ComputeHalf` too, arithmetic but for sums is of halves. See `require_precision` for the targets.
    textures : bool
        Run `PlaceTextures`; of no effect on targets without textures.
    layout : bool
        Run `SelectLayout` for what is in buffers; of no effect on targets without textures.
    cuda_graph : bool
        Run `CaptureGraphs`; of no effect on other targets than CUDA.
    dump_dir : str or None
        Write the module after each phase to ``<dump_dir>/<nn>_<phase>.py``.
    records : tvm.transform.Pass or None
        Gives kernels the schedules that tuning has found for them (`tune.apply_records.ApplyRecords`).
    profiles : Profiles or None
        Measured latencies that decide DNNFusion's yellow cells (`tune.profile_store.ProfileStore`); without them the
        cost model of `analysis.fusion` does.
    """

    rewrite: bool = True
    merge_projections: bool = True
    eliminate: bool = True
    simplify: bool = True
    fuse: bool = True
    fuse_attention: bool = True
    precision: str = "float32"
    textures: bool = True
    layout: bool = True
    schedule: bool = True
    cuda_graph: bool = True
    dump_dir: str | None = None
    records: tvm.transform.Pass | None = None
    profiles: Profiles | None = None


@dataclass(frozen=True)
class Phase:
    """A named group of passes; it runs if the option of the same name is on (or there is no such option)."""

    name: str
    passes: Callable[[Options], list]


GRAPH_PHASES = (
    # Constants and inference forms first, so that weights are constants when rules look at them.
    Phase(
        "canonicalize",
        lambda _: [
            relax.transform.DecomposeOpsForInference(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.FoldConstant(),
        ],
    ),
    # Cheaper operators, while operators still have names.
    Phase("rewrite", lambda _: [FoldScales(), FoldNormAffine(), RewriteAlgebra(), SplitTransposed()]),
    Phase("merge_projections", lambda _: [MergeProjections(), relax.transform.CanonicalizeBindings()]),
    # Every operator a PrimFunc: from here on facts are read from loop programs.
    Phase(
        "legalize",
        lambda _: [
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            relax.transform.LegalizeOps(),
            relax.transform.FoldConstant(),
            relax.transform.DeadCodeElimination(),
        ],
    ),
    Phase("eliminate", lambda _: [EliminateLayout()]),
    Phase("fuse", lambda options: [FuseRows(), FuseOperators(options.profiles)]),
    # Last: what element-wise work there is has joined the matmuls by now.
    Phase("fuse_attention", lambda _: [FuseAttention(CpuParams().on_chip_bytes)]),
)

# What TVM would dispatch to chains of small kernels, one of them wrong on some GPUs, or to a reduction to pairs.
_MEND = Phase("mend", lambda _: [LowerSorts(), LowerScans(), LowerArgmax()])

PRECISIONS = {FLOAT: [], "half-storage": [StoreHalf()], "half": [StoreHalf(), ComputeHalf()]}

# After fusion, when what is left between kernels goes through memory, and before anything is said of that memory.
_PRECISION = Phase("precision", lambda options: PRECISIONS[options.precision])

# TVM's own five passes, the baseline of every comparison.
BASELINE_PHASES = (
    Phase(
        "tvm_default",
        lambda _: [
            relax.backend.DispatchSortScan(),  # LegalizeOps leaves sorts and top-k to it
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ],
    ),
)


def _plan_memory(_: Options) -> list:
    return [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        FitStorages(),
    ]


def _finish(_: Options) -> list:
    return [
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]


# TVM's lowering to the virtual machine, without RewriteDataflowReshape: no layout operator is left for it.
_LOWER = Phase("lower", lambda options: _plan_memory(options) + _finish(options))


def prepare_passes(gpu: bool) -> list:
    """Passes after which kernels are what the schedule rules, and records of tuning, are for."""
    return [LowerRotations()] if gpu else [SplitReductions(), LowerRotations(), VectorizeMath()]


def _on_record(options: Options) -> list:
    return [options.records] if options.records is not None else []


LOWER_PHASES = (
    Phase(
        "schedule",
        lambda options: [*prepare_passes(gpu=False), *_on_record(options), PackWeights(), ScheduleKernels()],
    ),
    _LOWER,
)

# A thread walks no row of memory that could be cut in pieces, and a GPU has its own exp.
_SCHEDULE_ON_GPU = Phase(
    "schedule",
    lambda options: [*prepare_passes(gpu=True), *_on_record(options), ScheduleKernels(), LiftWorkspaces()],
)
GPU_LOWER_PHASES = (_SCHEDULE_ON_GPU, _LOWER)

# Which tensors stay where they are is known when memory is planned, and no longer seen when it is lowered.
CUDA_LOWER_PHASES = (
    _SCHEDULE_ON_GPU,
    Phase("plan_memory", _plan_memory),
    Phase("cuda_graph", lambda _: [CaptureGraphs()]),
    Phase("finish", _finish),
)


def graph_phases(target: tvm.target.Target | None) -> tuple[Phase, ...]:
    """`GRAPH_PHASES`, for a GPU with chains of rows that a group of its threads can take."""
    if target is None or not is_gpu(target):
        return GRAPH_PHASES
    attention = Phase(
        "fuse_attention", lambda _: [FuseAttention(refusal=partial(refusal, params=chain_params(target)))]
    )
    phases = (_MEND, *(attention if phase.name == attention.name else phase for phase in GRAPH_PHASES), _PRECISION)
    if not has_textures(target):
        return phases
    # Last: which memory a tensor goes to depends on who writes and reads it in the end.
    place = texture_phase(target)
    return (*phases, place, Phase("layout", lambda _: [SelectLayout()]))


def texture_phase(target: tvm.target.Target, measure: Measure | None = None) -> Phase:
    """The phase ``textures``; with `measure`, kernels are measured as they are tried (see `TextureTrial`)."""

    def passes(options: Options) -> list:
        times = options.profiles.latency if options.profiles is not None else None
        return [PlaceTextures(target, TextureTrial(target, times, measure), image_limits(target))]

    return Phase("textures", passes)


def lower_phases(target: tvm.target.Target | None) -> tuple[Phase, ...]:
    """From the graph of kernels to code of the virtual machine."""
    if target is None or not is_gpu(target):
        return LOWER_PHASES
    return CUDA_LOWER_PHASES if is_cuda(target) else GPU_LOWER_PHASES


def require_schedules(target: tvm.target.Target | None) -> None:
    """Refuse targets that no schedule rule knows.

    Raises
    ------
    UserError
        For anything but a CPU or a GPU.
    """
    if target is not None and not is_cpu(target) and not is_gpu(target):
        raise UserError(
            f"target kind '{target.kind.name}' has no schedules in smartmem_tvm: compile for a CPU (llvm) or a GPU "
            f"(opencl, cuda), or use the passes of smartmem_tvm.transform in a pipeline with schedules of your own."
        )


def require_precision(target: tvm.target.Target | None, precision: str) -> None:
    """Refuse precisions that a target does not have.

    Raises
    ------
    UserError
        If there is no such precision, or the target's row in `tables.targets` has no halves in memory.
    """
    if precision not in PRECISIONS:
        raise UserError(f"precision '{precision}' does not exist: use one of {', '.join(PRECISIONS)}.")
    if precision == FLOAT:
        return
    name = "llvm" if target is None else model_of(target) or target.kind.name
    if target is None or not has_half_storage(target):
        raise UserError(
            f"precision '{precision}' needs a target that stores half numbers, which '{name}' does not here: "
            f"compile for a GPU (opencl, cuda, adreno-740), or in {FLOAT}."
        )
    if precision == "half" and not has_half_arithmetic(target):
        raise UserError(
            f"precision 'half' needs a target that computes in half, which '{name}' is not known to do: "
            f"name a GPU that does (adreno-740, mali-g76), or use half-storage."
        )


def run_phases(
    mod: tvm.IRModule,
    phases: tuple[Phase, ...],
    options: Options,
    observe: Callable[[str, tvm.IRModule], None] | None = None,
    first: int = 0,
) -> tvm.IRModule:
    """Run the phases that `options` leaves on, dumping the module after each on request.

    Parameters
    ----------
    observe : callable, optional
        Is shown the name of each phase that ran and the module after it.
    first : int
        The number of the first phase in the names of dumps.
    """
    for number, phase in enumerate(phases, start=first):
        passes = phase.passes(options) if getattr(options, phase.name, True) else []
        if not passes:
            continue
        with strength_reduction(options.simplify):
            mod = tvm.transform.Sequential(passes)(mod)
        if options.dump_dir is not None:
            _dump(mod, Path(options.dump_dir), number, phase.name)
        if observe is not None:
            observe(phase.name, mod)
    return mod


def _dump(mod: tvm.IRModule, folder: Path, number: int, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:02d}_{name}.py"
    partial = path.with_suffix(".partial")
    partial.write_text(mod.script(show_meta=False), encoding="utf-8")
    partial.rename(path)


def smartmem_pipeline(**options) -> tvm.transform.Pass:
    """The pipeline behind ``relax_pipeline="smartmem"``: a Relax module of operators in, a module for the VM out.

    Parameters
    ----------
    **options
        Fields of `Options`.

    Raises
    ------
    TypeError
        If an option does not exist.
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
        return run_phases(mod, graph_phases(target) + lower_phases(target), chosen)

    return pipeline

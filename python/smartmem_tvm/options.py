# SPDX-License-Identifier: Apache-2.0
"""The options of the pipeline, from which its passes are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import UserError
from .memory_size import memory_bytes
from .planner.layout_problem import PLANNERS
from .tables.precisions import ACTIVATIONS

if TYPE_CHECKING:
    import tvm

    from .analysis.fusion import Profiles
    from .texture_trial import Measure

CHECKS = ("maps", "outputs")


@dataclass(frozen=True)
class Options:
    """What the pipeline does; every technique can be switched off on its own, for ablations.

    Attributes
    ----------
    rewrite, merge_projections, eliminate, fuse, schedule : bool
        Run `FoldScales`, `FoldNormAffine`, `MergeBranches`, `RewriteAlgebra`, `PoolFirst`, `TrimWindows`,
        `SplitTransposed`, `SplitWindows` and `MultiplyBytes`; `MergeProjections`; `EliminateLayout`; `ReadCodes`,
        `FuseRows` and `FuseOperators`; `ScheduleKernels`.
    simplify : bool
        Reduce composed index maps in strength (`ir.strength_reduction`); without, only TVM simplifies them.
    fuse_attention : bool
        Run `FuseAttention`.
    merge_chains : bool
        Run `MergeChains`; of no effect on CPUs and on targets with textures.
    precision : str
        ``float32``; ``half-storage``: `StoreHalf`, tensors in memory are half numbers and arithmetic is not; ``half``:
        `ComputeHalf` too, arithmetic but for sums is of halves; ``bfloat16``: tensors in memory and the factors of
        products are bfloat16 (`RoundProducts` on CPUs); ``tf32``: factors of products are tf32
        (`RoundFactors`). See `require_precision` for the targets.
    weights : str
        ``stored``: weights of products that are dequantised integers stay integers (`StoreCodes`); ``float``: they do
        not; ``int8`` or ``int4``, perhaps with the numbers of a group as in ``int4:64``: weights in float32 are rounded
        to integers, too (`RoundWeights`).
    activations : str
        ``stored``: rows that weights in codes are multiplied by are rounded to eight bits where the file asks for it
        (``accuracy_level`` 4); ``int8``: wherever weights are in codes; ``float``: nowhere (`RoundRows`).
    float_weights : tuple of str
        Names of products whose weights `RoundWeights` leaves as they are.
    rounded_floats : bool
        `RoundWeights` writes the rounded weights as floats: the model that one with rounded weights is compared with.
    textures : bool
        Run `PlaceTextures`; of no effect on targets without textures.
    in_buffers : tuple
        Pairs of a tensor and a reason: whoever computes the tensor neither reads nor writes a texture.
    layout : bool or str
        How the order of dimensions of tensors in buffers is chosen: by default by `SelectLayout` on targets with
        textures and on CUDA, by `ChannelsInnermost` on CPUs, and not elsewhere; ``fluid``, ``exact`` or
        ``reduction-dimension`` by that planner of `PlanLayout` on any target, the first two with what `profiles` knows.
    winograd : bool or int
        Run `TransformWindows`, on a CPU; 2 or 4 is the tile's side wherever it can be, and not where it is faster. Off
        with a memory budget, as transformed weights are larger.
    native_functions : bool
        Run `NativeFunctions`: exp, erf, tanh and others by the special unit of a phone's GPU (`tables.functions`).
    arena : bool
        Run `PlanMemory`; without, TVM plans storages for tensors of about one size.
    caches : bool or mapping
        Run `KeepCaches`: True for all caches that it finds, or input -> result of the caches. The compiled model keeps
        them between its inferences (docs/decoding.md).
    memory_budget : int, str or None
        Bytes (or a size such as ``"60MB"``) for weights, tensors between kernels and workspaces, on a CPU:
        `SliceWeights`, `JoinSlices` and `StreamWeights` in the place of `PlanMemory` (see `deploy.streamed`).
    slice_budget : int or None
        What `SliceWeights` counts with, by default `memory_budget`: with less, slices are narrower.
        `deploy.build.compile` takes less where there is no plan otherwise.
    cuda_graph : bool
        Run `CaptureGraphs`; of no effect on other targets than CUDA, and OpenCL on this machine.
    dump_dir : str or None
        Write the module after each phase to ``<dump_dir>/<nn>_<phase>.py``, to be read, and ``.json``, for
        `smartmem opt` (see `module_file`).
    check : str or None
        ``maps``: compare each composed index map with the chain that it stands for (`ir.check_maps`); ``outputs``: run
        the module after each phase and name the pass that changes what it computes (`output_check`).
    bounds : bool
        Kernels look at each index before they use it, and name themselves where one is out of bounds
        (`deploy.check_bounds`): to find faults, on a CPU and slowly.
    records : tvm.transform.Pass or None
        Gives kernels the schedules that tuning has found for them (`tune.apply_records.ApplyRecords`).
    profiles : Profiles or None
        Measured latencies that decide DNNFusion's yellow cells (`tune.profile_store.ProfileStore`); without them the
        cost model of `analysis.fusion` does.
    measure : callable or None
        Measures kernels as `PlaceTextures` tries them, in place of `profiles` (`deploy.texture_times.TextureTimes`).
    """

    rewrite: bool = True
    merge_projections: bool = True
    eliminate: bool = True
    simplify: bool = True
    fuse: bool = True
    fuse_attention: bool = True
    merge_chains: bool = True
    precision: str = "float32"
    weights: str = "stored"
    activations: str = "stored"
    float_weights: tuple[str, ...] = ()
    rounded_floats: bool = False
    textures: bool = True
    in_buffers: tuple[tuple[str, str], ...] = ()
    layout: bool | str = True
    schedule: bool = True
    winograd: bool | int = True
    native_functions: bool = True
    arena: bool = True
    caches: bool | Mapping[str, str] = False
    memory_budget: int | str | None = None
    slice_budget: int | None = None
    cuda_graph: bool = True
    dump_dir: str | None = None
    bounds: bool = False
    records: tvm.transform.Pass | None = None
    profiles: Profiles | None = None
    measure: Measure | None = None
    check: str | None = None

    def __post_init__(self):
        if self.memory_budget is not None:
            object.__setattr__(self, "memory_budget", memory_bytes(self.memory_budget))
            object.__setattr__(self, "winograd", False)
            if self.check == "outputs":
                raise UserError(
                    "check 'outputs' runs the module after each phase, and slices are put together by the last ones "
                    "only: leave the memory budget out, or the check."
                )
        if self.check is not None and self.check not in CHECKS:
            raise UserError(f"check '{self.check}' does not exist: use {' or '.join(CHECKS)}.")
        if self.activations not in ACTIVATIONS:
            raise UserError(f"activations '{self.activations}' do not exist: use {', '.join(ACTIVATIONS)}.")
        if not isinstance(self.layout, bool) and self.layout not in PLANNERS:
            raise UserError(f"layout '{self.layout}' does not exist: use {', '.join(PLANNERS)}, True or False.")

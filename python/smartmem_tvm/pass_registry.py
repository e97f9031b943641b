# SPDX-License-Identifier: Apache-2.0
"""Passes by name: this package's, and those of TVM that its pipelines run."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax

from . import schedule, transform, tvm_mends
from .errors import UserError
from .ir.codes import WEIGHTS, Rounding
from .ir.half import FLOAT, HALF, RANGES
from .ir.recent import Recent
from .options import Options
from .planner.layout_problem import FLUID, REDUCTION_DIMENSION
from .schedule.cpu.winograd.transforms import RESULTS as WINOGRAD_RESULTS
from .schedule.gpu.attention.flash_attention import takes
from .schedule.gpu.attention.flash_tile import AttentionParams
from .schedule.gpu.attention.over_keys import why_not_over_keys
from .schedule.gpu.attention.row_chains import chain_params, refusal
from .schedule.gpu.byte_price import bytes_over_floats
from .schedule.gpu.matmul.few_rows import why_not_few_rows
from .schedule.gpu.matrix.products import products_on
from .tables.fusion_policy import SINGLE_ROW_BYTES
from .tables.precisions import PRECISIONS
from .target import (
    Limits,
    cuda_architecture,
    has_matrix_instructions,
    has_textures,
    image_limits,
    is_cpu,
    is_cuda,
    is_gpu,
    named_device,
)
from .texture_trial import TextureTrial

_trials = Recent(1)  # trials of kernels by PlaceTextures, which SelectLayout uses again


@dataclass(frozen=True)
class PassEntry:
    """A pass of the registry.

    Attributes
    ----------
    name : str
        As in ``smartmem opt --pass``: the class in kebab case, or ``relax.`` and TVM's name.
    make : callable
        `Options`, the target (None for a CPU) and, by keyword, the pass's own options -> the pass.
    summary : str
        The pass's effect, in one sentence.
    section : str
        Section of the paper; empty for passes that no paper has.
    needs_target : bool
        Whether the pass's effect depends on the target.
    """

    name: str
    make: Callable[..., tvm.transform.Pass]
    summary: str
    section: str = ""
    needs_target: bool = False

    @property
    def own(self) -> dict[str, Any]:
        """Return the pass's own options with their defaults."""
        parameters = inspect.signature(self.make).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _prices(target: tvm.target.Target | None) -> schedule.Prices | None:
    """Return the prices of kernels on a CPU; None for GPUs, where launches are dear and every legal fusion is taken."""
    return None if target is None or is_gpu(target) else schedule.Prices(target)


def _fuse_attention(
    options: Options, target: tvm.target.Target | None, *, on_chip_bytes: int = schedule.CpuParams().on_chip_bytes
) -> tvm.transform.Pass:
    if target is None or not is_gpu(target):
        single_row = min(_one_kernels_weights(options), SINGLE_ROW_BYTES)
        return transform.FuseAttention(on_chip_bytes, prices=_prices(target), single_row_bytes=single_row)
    known = AttentionParams.of(target) if is_cuda(target) else None
    shortened = PRECISIONS[options.precision].multiplied in RANGES
    passing = None if known is None else partial(takes, params=known, shortened=shortened)
    return transform.FuseAttention(refusal=partial(refusal, params=chain_params(target)), passing=passing)


def _bound_keys(_: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    on_gpu = target is not None and is_gpu(target)
    return transform.BoundKeys(partial(why_not_over_keys, target=target) if on_gpu else None)


def _norms_into_products(_: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    return transform.NormsIntoProducts(partial(why_not_few_rows, target=target))


def _fuse_rows(options: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    return transform.FuseRows(_prices(target), _one_kernels_weights(options))


def _one_kernels_weights(options: Options) -> float:
    """Return the bytes of weights of one kernel, at most: half of a memory budget, so that the next ones are read."""
    budget = options.slice_budget or options.memory_budget
    return budget / 2 if budget else math.inf


def _merge_chains(_: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    if target is None or not is_gpu(target):
        return transform.MergeChains()
    return transform.MergeChains(Limits.of(target))


def _place_textures(options: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    if target is None or not has_textures(target):
        raise UserError("Pass 'place-textures' needs a target with textures, as opencl-texture or adreno-740.")
    trial = _trial(options, target)
    if options.layout is True and _lasting(options):
        _trials.put(target, trial)
    return transform.PlaceTextures(target, trial, image_limits(target), dict(options.in_buffers))


def _trial(options: Options, target: tvm.target.Target) -> TextureTrial:
    return TextureTrial(target, options.profiles.latency if options.profiles is not None else None, options.measure)


def _lasting(options: Options) -> bool:
    """Whether a trial may be used again: measured times may differ the next time."""
    return options.profiles is None and options.measure is None


def _apply_records(options: Options, _: tvm.target.Target | None) -> tvm.transform.Pass:
    """Give each kernel the fastest schedule that tuning has on record for it."""
    if options.records is None:
        raise UserError("Pass 'apply-records' has no records to apply: name those that `smartmem tune` made.")
    return options.records


def _fuse_operators(options: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    return transform.FuseOperators(options.profiles, _prices(target), schedule.is_product)


def _store_half(options: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    stored = PRECISIONS[options.precision].stored
    if stored in (HALF, FLOAT):
        return transform.StoreHalf()
    if target is None or is_cpu(target):
        return transform.StoreHalf(stored, weights=False)  # RoundProducts rounds the weights of products
    return transform.StoreHalf(stored, _no_matrices(target))


def _multiply_bytes(options: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    if target is None or not is_gpu(target):
        return transform.MultiplyBytes()
    return transform.MultiplyBytes(bytes_over_floats(target, PRECISIONS[options.precision].multiplied))


def _round_factors(options: Options, target: tvm.target.Target | None, *, kind: str = "bfloat16") -> tvm.transform.Pass:
    asked = PRECISIONS[options.precision].multiplied
    kind = kind if asked in (HALF, FLOAT) else asked
    if kind not in ("bfloat16", "tf32"):
        raise UserError(
            f"Pass 'round-factors' does not round to '{kind}': use round-factors:kind=bfloat16 or kind=tf32."
        )
    return transform.RoundFactors(kind, _no_matrices(target))


def _round_weights(options: Options, _: tvm.target.Target | None, *, weights: str = "int8") -> tvm.transform.Pass:
    asked = weights if options.weights in WEIGHTS else options.weights
    return transform.RoundWeights(Rounding.parse(asked), options.float_weights, options.rounded_floats)


def _round_rows(options: Options, _: tvm.target.Target | None) -> tvm.transform.Pass:
    return transform.RoundRows(options.activations)


def _no_matrices(target: tvm.target.Target | None) -> str:
    """Return why a target does not multiply bfloat16 and tf32; empty if it does."""
    if target is None or has_matrix_instructions(target):
        return ""
    capability = cuda_architecture(target)[0] / 10
    known = f"this is {capability}" if capability else "of this target none is known"
    return f"matrix instructions for it begin with compute capability 8.0, and {known}"


def _select_layout(options: Options, target: tvm.target.Target | None, *, fast_axes: int = 1) -> tvm.transform.Pass:
    products = products_on(target) if target is not None and is_cuda(target) else None
    if target is None or not has_textures(target) or not (options.measure or named_device(target)):
        return transform.SelectLayout(fast_axes, products)
    trial = _trials.take(target, lambda: _trial(options, target)) if _lasting(options) else _trial(options, target)
    return transform.SelectLayout(fast_axes, products, trial)


def _channels_innermost(options: Options, _: tvm.target.Target | None) -> tvm.transform.Pass:
    return transform.ChannelsInnermost(windows=PRECISIONS[options.precision].multiplied == FLOAT)


def _plan_layout(options: Options, target: tvm.target.Target | None, *, time_limit: float = 60.0) -> tvm.transform.Pass:
    if options.layout == REDUCTION_DIMENSION:
        return transform.SelectLayout()
    planner = options.layout if isinstance(options.layout, str) else FLUID
    costs = options.profiles.form_latency if options.profiles is not None else None
    # The rules for GPUs have one loop order only.
    loops = {} if target is not None and is_gpu(target) else {"loops": schedule.loop_orders}
    return transform.PlanLayout(planner, costs, **loops, time_limit=time_limit)


def _slice_weights(options: Options, _: tvm.target.Target | None, *, budget: int = 0) -> tvm.transform.Pass:
    budget = budget or options.slice_budget or options.memory_budget or 0
    if not budget:
        raise UserError("Pass 'slice-weights' needs a memory budget: slice-weights:budget=100000000, in bytes.")
    return transform.SliceWeights(budget)


def _split_windows(_: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    """Split into more kernels with fewer products each, but not on GPUs, where a launch is dear."""
    return transform.SplitWindows(math.inf) if target is not None and is_gpu(target) else transform.SplitWindows()


def _transform_windows(options: Options, _: tvm.target.Target | None, *, result: int = 0) -> tvm.transform.Pass:
    asked = 0 if isinstance(options.winograd, bool) else options.winograd
    result = result or asked
    if result and result not in WINOGRAD_RESULTS:
        raise UserError(f"winograd {result} does not exist: use 2 or 4, lines of the results of a tile.")
    return schedule.TransformWindows(result or None)


def _share_items(options: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    """Within a memory budget each tile would read the weights again."""
    return transform.ShareItems(_shares_sizes(options, target), target)


def _share_lengths(options: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    return transform.ShareLengths(_shares_sizes(options, target), target)


def _shares_sizes(options: Options, target: tvm.target.Target | None) -> bool:
    """Whether sizes may be computed by functions of others; caches are of one size, and see also the passes."""
    return (target is None or is_cpu(target)) and not options.memory_budget and not options.caches


def _skip_positions(_: Options, target: tvm.target.Target | None) -> tvm.transform.Pass:
    return transform.SkipPositions(zeros=target is None or not is_gpu(target))


def _keep_caches(options: Options, _: tvm.target.Target | None) -> tvm.transform.Pass:
    return transform.KeepCaches(options.caches if isinstance(options.caches, Mapping) else None)


def _ours(
    cls: type, section: str = "", make: Callable[..., tvm.transform.Pass] | None = None, needs_target: bool = False
) -> PassEntry:
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
    return PassEntry(name, make or (lambda _, __: cls()), _summary(cls), section, needs_target)


def _of_tvm(name: str, needs_target: bool = False, make: Callable[[], tvm.transform.Pass] | None = None) -> PassEntry:
    factory = getattr(relax.transform, name, None) or getattr(relax.backend, name)
    return PassEntry(f"relax.{name}", lambda _, __: (make or factory)(), _summary(factory), needs_target=needs_target)


def _summary(documented: object) -> str:
    """Return the first sentence of a docstring without the paper's section, which has a field of its own."""
    paragraph = " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=\.) ", paragraph)[0].rstrip(".").replace("`", "")
    return re.sub(r" \((SmartMem|DNNFusion|FluidML|FlexNN)[^()]*\)", "", sentence)


_ENTRIES = (
    # Passes over operators, before they are legalized.
    _ours(transform.ChooseTiles, make=lambda _, target: transform.ChooseTiles(target), needs_target=True),
    _ours(transform.ShareItems, make=_share_items, needs_target=True),
    _ours(transform.ShareLengths, make=_share_lengths, needs_target=True),
    _ours(transform.KeepCaches, make=_keep_caches),
    _ours(tvm_mends.DropEmpty),
    _ours(tvm_mends.WidenBfloat16),
    _ours(transform.MultiplyBytes, make=_multiply_bytes, needs_target=True),
    _ours(transform.StoreCodes),
    _ours(transform.FoldFills),
    _ours(transform.FoldConstants),
    _ours(transform.FoldScales, "DNNFusion 4.2"),
    _ours(transform.FoldNormAffine, "DNNFusion 4.2"),
    _ours(transform.MergeBranches, "DNNFusion 4.2"),
    _ours(transform.RewriteAlgebra, "DNNFusion 4.2, Table 4"),
    _ours(transform.PoolFirst),
    _ours(transform.TrimWindows),
    _ours(transform.SplitTransposed),
    _ours(transform.SplitWindows, make=_split_windows),
    _ours(transform.MergeProjections, "DNNFusion 4.2"),
    _ours(transform.RoundWeights, make=_round_weights),
    _ours(transform.RoundRows, make=_round_rows, needs_target=True),
    _ours(transform.LowerSorts),
    _ours(transform.LowerScans),
    _ours(transform.LowerArgmax),
    _ours(transform.LowerScatters),
    _ours(transform.LowerConcats),
    _ours(transform.WidenSums),
    # Passes over the graph of kernels.
    _ours(tvm_mends.MendExtremes),
    _ours(transform.EliminateLayout, "SmartMem 3.2.1, Table 5"),
    _ours(transform.ReadCodes),
    _ours(transform.FuseRows, make=_fuse_rows, needs_target=True),
    _ours(transform.FuseOperators, "DNNFusion 4.3, Table 3", _fuse_operators, needs_target=True),
    _ours(transform.FuseAttention, make=_fuse_attention, needs_target=True),
    _ours(transform.StoreHalf, make=_store_half, needs_target=True),
    _ours(transform.ComputeHalf),
    _ours(transform.RoundFactors, make=_round_factors, needs_target=True),
    _ours(transform.MergeChains, make=_merge_chains, needs_target=True),
    _ours(schedule.PackChannels, needs_target=True),
    _ours(schedule.WidenGroups, needs_target=True),
    _ours(transform.PlaceTextures, "SmartMem 3.3", _place_textures, needs_target=True),
    _ours(transform.SelectLayout, "SmartMem 3.2.2, Table 6", _select_layout, needs_target=True),
    _ours(transform.ChannelsInnermost, "SmartMem 3.2.2", _channels_innermost),
    _ours(transform.PlanLayout, "FluidML, Algorithms 1-3", _plan_layout, needs_target=True),
    _ours(transform.GatherRows),
    _ours(transform.SliceWeights, "FlexNN 3.2", _slice_weights),
    _ours(transform.BoundKeys, make=_bound_keys, needs_target=True),
    _ours(transform.NormsIntoProducts, make=_norms_into_products, needs_target=True),
    _ours(transform.SkipPositions, make=_skip_positions, needs_target=True),
    _ours(transform.RepeatItems),
    # Passes over kernels.
    _ours(transform.FixAddresses),
    _ours(transform.WriteInPlace),
    _ours(schedule.StagePadding),
    _ours(schedule.AlignWindows),
    _ours(schedule.PackCodes, needs_target=True),
    _ours(transform.SplitReductions, "SmartMem 3.2.1"),
    _ours(transform.LowerRotations),
    _ours(transform.LowerSingleTerms),
    _ours(transform.VectorizeMath, needs_target=True),
    _ours(transform.RoundToBytes, needs_target=True),
    _ours(schedule.RoundProducts, needs_target=True),
    _ours(schedule.PairProducts, needs_target=True),
    _ours(schedule.FloatProducts),
    _ours(schedule.TransformWindows, "", _transform_windows, needs_target=True),
    PassEntry("apply-records", _apply_records, _summary(_apply_records), needs_target=True),
    _ours(schedule.OrderTerms, needs_target=True),
    _ours(schedule.TurnWeights, needs_target=True),
    _ours(schedule.PackWeights, needs_target=True),
    _ours(schedule.ScheduleKernels, needs_target=True),
    _ours(transform.NativeFunctions, needs_target=True),
    _ours(tvm_mends.KeepNan, needs_target=True),
    _ours(tvm_mends.MendVectors, make=lambda _, target: tvm_mends.MendVectors(target), needs_target=True),
    _ours(transform.LiftWorkspaces),
    _ours(tvm_mends.KeepFloats),
    _ours(tvm_mends.BindChoices, needs_target=True),
    _ours(tvm_mends.GuardDivisions),
    _ours(tvm_mends.WrapCasts),
    _ours(tvm_mends.WrapIntegers, needs_target=True),
    _ours(tvm_mends.ClampIndices),
    _ours(tvm_mends.StoreBound),
    _ours(transform.CheckTextures),
    _ours(tvm_mends.CheckImages),
    _ours(tvm_mends.StageTexels),
    _ours(transform.HalfStorage),
    _ours(transform.ComputeSingle),
    # Passes over planned memory.
    _ours(transform.JoinSlices),
    _ours(
        transform.StreamWeights, "FlexNN 3.4", lambda options, _: transform.StreamWeights(options.memory_budget or 0)
    ),
    _ours(
        transform.PlanMemory, "FluidML, Algorithm 4", lambda _, target: transform.PlanMemory(target), needs_target=True
    ),
    _ours(tvm_mends.OwnStorages),
    _ours(tvm_mends.FitStorages),
    _ours(transform.CaptureGraphs, make=lambda _, target: transform.CaptureGraphs(target), needs_target=True),
    # TVM's passes.
    _of_tvm("DecomposeOpsForInference"),
    _of_tvm("CanonicalizeBindings"),
    _of_tvm("FoldConstant", make=tvm_mends.fold_constant),
    _of_tvm("DispatchSampling", needs_target=True),
    _of_tvm("DispatchSortScan", needs_target=True),
    _of_tvm("LegalizeOps", needs_target=True),
    _of_tvm("DeadCodeElimination"),
    _of_tvm("AnnotateTIROpPattern"),
    _of_tvm("FuseOps"),
    _of_tvm("FuseTIR"),
    _of_tvm("ToNonDataflow"),
    _of_tvm("RemovePurityChecking"),
    _of_tvm("CallTIRRewrite"),
    _of_tvm("StaticPlanBlockMemory"),
    _of_tvm("LowerAllocTensor"),
    _of_tvm("KillAfterLastUse"),
    _of_tvm("LowerRuntimeBuiltin"),
    _of_tvm("ComputePrimValue"),
    _of_tvm("VMShapeLower"),
    _of_tvm("AttachGlobalSymbol"),
)
PASSES: Mapping[str, PassEntry] = {entry.name: entry for entry in _ENTRIES}


def make_pass(
    name: str, options: Options | None = None, target: tvm.target.Target | None = None, own: Mapping[str, str] = {}
) -> tvm.transform.Pass:
    """Return the pass of a name.

    Parameters
    ----------
    name : str
        A key of `PASSES`.
    options : Options, optional
        The pipeline's options, from which the pass is made.
    own : mapping
        The pass's own options, as text.

    Raises
    ------
    UserError
        If there is no such pass, it has no such option or does not accept its value, or if the target or `options` lack
        something that it needs.
    """
    if name not in PASSES:
        raise UserError(f"Pass '{name}' does not exist{_nearest(name, PASSES)}; `smartmem opt --list` names them all.")
    entry = PASSES[name]
    return entry.make(options or Options(), target, **{key: _value(entry, key, text) for key, text in own.items()})


def _value(entry: PassEntry, key: str, text: str) -> Any:
    if key not in entry.own:
        known = f"it has {', '.join(entry.own)}" if entry.own else "it has none"
        raise UserError(f"Pass '{entry.name}' has no option '{key}': {known}.")
    kind = type(entry.own[key])
    try:
        return kind(text)
    except ValueError as error:
        like = entry.own[key]
        raise UserError(f"Option {key} of pass '{entry.name}' is '{text}': give a number, as {like}.") from error


def _nearest(name: str, known: Mapping[str, object]) -> str:
    found = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0)
    return f"; the nearest name is '{found[0]}'" if found else ""


def parse_passes(text: str) -> list[tuple[str, dict[str, str]]]:
    """Parse names and options of passes from a text like ``fuse-rows,fuse-attention{on_chip_bytes=65536}``.

    Raises
    ------
    UserError
        If the text has another form.
    """
    each = r"\s*([^\s,{}=]+)\s*(?:\{([^{}]*)\})?\s*"
    if not re.fullmatch(rf"{each}(?:,{each})*", text):
        raise UserError(f"'{text}' is no list of passes: give names with commas between, as name,name{{option=value}}.")
    found = []
    for name, options in re.findall(each, text):
        pairs = [pair.partition("=") for pair in options.split(",") if pair.strip()]
        found.append((name, {key.strip(): value.strip() for key, _, value in pairs}))
    return found

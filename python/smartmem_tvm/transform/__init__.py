# SPDX-License-Identifier: Apache-2.0
"""Passes over modules and over kernels, one per file; a pass never imports another pass.

rewrite/    the laws of algebra: fewer and smaller operators (DNNFusion 4.2)
fuse/       fusion: several operators in one kernel (DNNFusion 4.3)
layout/     elimination of layout operators, storage orders, textures (SmartMem 3.2 and 3.3, FluidML 3)
memory/     places and lifetimes of tensors and weights (FluidML 4, FlexNN 3)
precision/  float16 and bfloat16, in memory and in arithmetic
sizes/      sizes of one model that functions of other sizes compute
lower/      operators as loops that schedule rules can handle

Passes that only work around TVM's faults are in ``tvm_mends/``.
"""

from .._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "CaptureGraphs": "memory.capture_graphs",
        "BoundKeys": "fuse.bound_keys",
        "SkipPositions": "fuse.skip_positions",
        "ChannelsInnermost": "layout.channels_innermost",
        "CheckTextures": "layout.check_textures",
        "ChooseTiles": "rewrite.choose_tiles",
        "ComputeHalf": "precision.compute_half.compute_half",
        "ComputeSingle": "precision.compute_single",
        "EliminateLayout": "layout.eliminate_layout",
        "FoldConstants": "rewrite.fold_constants",
        "FoldFills": "rewrite.fold_fills",
        "FoldNormAffine": "rewrite.fold_scales.fold_norm_affine",
        "FoldScales": "rewrite.fold_scales.fold_scales",
        "FuseAttention": "fuse.fuse_attention",
        "FuseOperators": "fuse.fuse_operators",
        "FuseRows": "fuse.fuse_rows",
        "GatherRows": "memory.gather_rows",
        "HalfStorage": "precision.half_storage",
        "JoinSlices": "memory.join_slices",
        "KeepCaches": "memory.keep_caches",
        "LiftWorkspaces": "memory.lift_workspaces",
        "LowerArgmax": "lower.lower_argmax",
        "LowerConcats": "lower.lower_concats",
        "LowerRotations": "layout.lower_rotations",
        "LowerScans": "lower.lower_scans",
        "LowerScatters": "lower.lower_scatters",
        "LowerSingleTerms": "lower.lower_single_terms",
        "LowerSorts": "lower.lower_sorts",
        "MergeBranches": "rewrite.merge_branches",
        "MergeChains": "fuse.merge_chains",
        "MergeProjections": "rewrite.merge_projections",
        "MultiplyBytes": "rewrite.multiply_bytes",
        "NativeFunctions": "lower.native_functions",
        "PlaceTextures": "layout.place_textures.place_textures",
        "PlanLayout": "layout.plan_layout",
        "PlanMemory": "memory.plan_memory",
        "PoolFirst": "rewrite.pool_first",
        "NormsIntoProducts": "fuse.norms_into_products",
        "ReadCodes": "fuse.read_codes",
        "RepeatItems": "sizes.repeat_items",
        "RewriteAlgebra": "rewrite.rewrite_algebra.rewrite_algebra",
        "RoundToBytes": "lower.round_to_bytes",
        "RoundRows": "precision.round_rows",
        "RoundWeights": "precision.round_weights",
        "RoundFactors": "precision.round_factors",
        "SelectLayout": "layout.select_layout",
        "ShareItems": "sizes.share_items",
        "ShareLengths": "sizes.share_lengths.share_lengths",
        "SliceWeights": "memory.slice_weights",
        "SplitReductions": "layout.split_reductions",
        "SplitTransposed": "rewrite.split_transposed",
        "SplitWindows": "rewrite.split_windows",
        "StoreCodes": "rewrite.store_codes",
        "StoreHalf": "precision.store_half",
        "StreamWeights": "memory.stream_weights",
        "TrimWindows": "rewrite.trim_windows",
        "VectorizeMath": "lower.vectorize_math",
        "WidenSums": "precision.widen_sums",
        "FixAddresses": "memory.fix_addresses",
        "WriteInPlace": "memory.write_in_place",
    },
)

# SPDX-License-Identifier: Apache-2.0
"""Passes over modules and over kernels, one per file; a pass never imports another pass."""

from .bind_choices import BindChoices
from .capture_graphs import CaptureGraphs
from .channels_innermost import ChannelsInnermost
from .check_images import CheckImages
from .check_textures import CheckTextures
from .clamp_indices import ClampIndices
from .compute_half.compute_half import ComputeHalf
from .compute_single import ComputeSingle
from .drop_empty import DropEmpty
from .eliminate_layout import EliminateLayout
from .fit_storages import FitStorages
from .fold_constants import FoldConstants
from .fold_fills import FoldFills
from .fold_scales.fold_norm_affine import FoldNormAffine
from .fold_scales.fold_scales import FoldScales
from .fuse_attention import FuseAttention
from .fuse_operators import FuseOperators
from .fuse_rows import FuseRows
from .fuse_symbolic import FuseSymbolic
from .gather_rows import GatherRows
from .guard_divisions import GuardDivisions
from .half_storage import HalfStorage
from .join_slices import JoinSlices
from .keep_floats import KeepFloats
from .keep_nan import KeepNan
from .lift_workspaces import LiftWorkspaces
from .lower_argmax import LowerArgmax
from .lower_concats import LowerConcats
from .lower_rotations import LowerRotations
from .lower_scans import LowerScans
from .lower_scatters import LowerScatters
from .lower_single_terms import LowerSingleTerms
from .lower_sorts import LowerSorts
from .mend_extremes import MendExtremes
from .mend_vectors import MendVectors
from .merge_branches import MergeBranches
from .merge_projections import MergeProjections
from .own_storages import OwnStorages
from .place_textures import PlaceTextures
from .plan_layout import PlanLayout
from .plan_memory import PlanMemory
from .pool_first import PoolFirst
from .rewrite_algebra.rewrite_algebra import RewriteAlgebra
from .round_factors import RoundFactors
from .select_layout import SelectLayout
from .slice_weights import SliceWeights
from .split_reductions import SplitReductions
from .split_transposed import SplitTransposed
from .split_windows import SplitWindows
from .stage_texels import StageTexels
from .store_bound import StoreBound
from .store_half import StoreHalf
from .stream_weights import StreamWeights
from .trim_windows import TrimWindows
from .vectorize_math import VectorizeMath
from .widen_bfloat16 import WidenBfloat16
from .widen_sums import WidenSums
from .wrap_casts import WrapCasts
from .wrap_integers import WrapIntegers

__all__ = [
    "BindChoices",
    "CaptureGraphs",
    "ChannelsInnermost",
    "CheckImages",
    "CheckTextures",
    "ClampIndices",
    "ComputeHalf",
    "ComputeSingle",
    "DropEmpty",
    "EliminateLayout",
    "FitStorages",
    "FoldConstants",
    "FoldFills",
    "FoldNormAffine",
    "FoldScales",
    "FuseAttention",
    "FuseOperators",
    "FuseRows",
    "FuseSymbolic",
    "GatherRows",
    "GuardDivisions",
    "HalfStorage",
    "JoinSlices",
    "KeepFloats",
    "KeepNan",
    "LiftWorkspaces",
    "LowerArgmax",
    "LowerConcats",
    "LowerRotations",
    "LowerScans",
    "LowerScatters",
    "LowerSingleTerms",
    "LowerSorts",
    "MendExtremes",
    "MendVectors",
    "MergeBranches",
    "MergeProjections",
    "OwnStorages",
    "PlaceTextures",
    "PlanLayout",
    "PlanMemory",
    "PoolFirst",
    "RewriteAlgebra",
    "RoundFactors",
    "SelectLayout",
    "SliceWeights",
    "SplitReductions",
    "SplitTransposed",
    "SplitWindows",
    "StageTexels",
    "StoreBound",
    "StoreHalf",
    "StreamWeights",
    "TrimWindows",
    "VectorizeMath",
    "WidenBfloat16",
    "WidenSums",
    "WrapCasts",
    "WrapIntegers",
]

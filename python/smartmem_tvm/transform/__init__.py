# SPDX-License-Identifier: Apache-2.0
"""Relax passes, one per file; a pass never imports another pass."""

from .eliminate_layout import EliminateLayout
from .fuse_operators import FuseOperators
from .fuse_rows import FuseRows
from .lower_rotations import LowerRotations
from .merge_projections import MergeProjections
from .split_reductions import SplitReductions
from .vectorize_math import VectorizeMath

__all__ = [
    "EliminateLayout",
    "FuseOperators",
    "FuseRows",
    "LowerRotations",
    "MergeProjections",
    "SplitReductions",
    "VectorizeMath",
]

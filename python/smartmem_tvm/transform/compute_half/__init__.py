# SPDX-License-Identifier: Apache-2.0
"""Arithmetic in half precision: the pass, and one kernel done again in half."""

from .compute_half import ComputeHalf

__all__ = ["ComputeHalf"]

# SPDX-License-Identifier: Apache-2.0
"""Schedules: one rule per kernel family and target, and the pass that applies them."""

from .core.product import is_product
from .core.rule import Rule
from .cpu.align_windows import AlignWindows
from .cpu.elementwise import Elementwise
from .cpu.fallback import Fallback
from .cpu.matmul import Matmul, loop_orders
from .cpu.pack_weights import PackWeights
from .cpu.params import CpuParams
from .cpu.round_products import RoundProducts
from .cpu.rows import Rows
from .cpu.rule import CpuRule
from .cpu.sequence import InSequence
from .cpu.stage_padding import StagePadding
from .cpu.window import Window
from .cpu.winograd.transform_windows import TransformWindows
from .cpu.winograd.transforms import RESULTS as WINOGRAD_RESULTS
from .gpu.matrix.order_terms import OrderTerms
from .gpu.matrix.pack_channels import PackChannels
from .gpu.matrix.widen_groups import WidenGroups
from .gpu.window.turn_weights import TurnWeights
from .price import Price, Prices
from .rules import default_rules
from .schedule_kernels import ScheduleKernels

__all__ = [
    "WINOGRAD_RESULTS",
    "AlignWindows",
    "CpuParams",
    "CpuRule",
    "Elementwise",
    "Fallback",
    "InSequence",
    "Matmul",
    "OrderTerms",
    "PackChannels",
    "PackWeights",
    "Price",
    "Prices",
    "RoundProducts",
    "Rows",
    "Rule",
    "ScheduleKernels",
    "StagePadding",
    "TransformWindows",
    "TurnWeights",
    "WidenGroups",
    "Window",
    "default_rules",
    "is_product",
    "loop_orders",
]

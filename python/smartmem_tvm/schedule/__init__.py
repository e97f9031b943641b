# SPDX-License-Identifier: Apache-2.0
"""Schedules: one rule per kernel family and target, and the pass that applies them."""

from .cpu_elementwise import Elementwise
from .cpu_fallback import Fallback
from .cpu_matmul import Matmul
from .cpu_rows import Rows
from .cpu_window import Window
from .pack_weights import PackWeights
from .params import CpuParams
from .rule import CpuRule, Rule
from .rules import default_rules
from .schedule_kernels import ScheduleKernels
from .sequence import InSequence

__all__ = [
    "CpuParams",
    "CpuRule",
    "Elementwise",
    "Fallback",
    "InSequence",
    "Matmul",
    "PackWeights",
    "Rows",
    "Rule",
    "ScheduleKernels",
    "Window",
    "default_rules",
]

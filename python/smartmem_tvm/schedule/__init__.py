# SPDX-License-Identifier: Apache-2.0
"""Schedules: one rule per kernel family and target, and the pass that applies them."""

from .core.rule import CpuRule, Rule
from .core.rules import default_rules
from .core.schedule_kernels import ScheduleKernels
from .core.sequence import InSequence
from .cpu.elementwise import Elementwise
from .cpu.fallback import Fallback
from .cpu.matmul import Matmul
from .cpu.pack_weights import PackWeights
from .cpu.params import CpuParams
from .cpu.rows import Rows
from .cpu.window import Window

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

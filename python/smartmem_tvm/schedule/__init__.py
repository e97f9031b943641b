# SPDX-License-Identifier: Apache-2.0
"""Schedules: one rule per kernel family and target, and the pass that applies them."""

from .._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "AlignWindows": "cpu.align_windows",
        "CpuParams": "cpu.params",
        "CpuRule": "cpu.rule",
        "Elementwise": "cpu.elementwise",
        "Fallback": "cpu.fallback",
        "InSequence": "cpu.sequence",
        "Matmul": "cpu.matmul",
        "OrderTerms": "gpu.matrix.order_terms",
        "PackChannels": "gpu.matrix.pack_channels",
        "PackCodes": "constants.pack_codes",
        "PackWeights": "constants.pack_weights",
        "FloatProducts": "cpu.float_products",
        "PairProducts": "cpu.pair_products",
        "KernelPrice": "price",
        "Prices": "price",
        "RoundProducts": "constants.round_products",
        "Rows": "cpu.rows",
        "Rule": "core.rule",
        "ScheduleKernels": "schedule_kernels",
        "StagePadding": "cpu.stage_padding",
        "TransformWindows": "constants.transform_windows",
        "TurnWeights": "constants.turn_weights",
        "WidenGroups": "gpu.matrix.widen_groups",
        "Window": "cpu.window",
        "default_rules": "choose",
        "is_product": "core.is_product",
        "loop_orders": "cpu.matmul",
    },
)

# SPDX-License-Identifier: Apache-2.0
"""The rules, in the order they are asked."""

from __future__ import annotations

from .core.rule import Rule
from .cpu.attention import RowChains
from .cpu.depthwise import Depthwise
from .cpu.elementwise import Elementwise
from .cpu.fallback import Fallback
from .cpu.matmul import Matmul
from .cpu.rounded_product import RoundedProduct
from .cpu.rows import Rows
from .cpu.sequence import InSequence
from .cpu.slide import Slide
from .cpu.steps import Steps
from .cpu.window import Window
from .gpu.attention.attention import GpuRowChains
from .gpu.attention.matrix_attention import GpuMatrixAttention
from .gpu.chain import GpuChain
from .gpu.dlight_rules import dlight_rules
from .gpu.elementwise import GpuElementwise
from .gpu.matmul.matmul import GpuMatmul
from .gpu.matrix.matrix import GpuMatrix
from .gpu.rows.rows import GpuRows
from .gpu.sequence import GpuSequence
from .gpu.window.window import windows_rules


def default_rules() -> list[Rule]:
    """One rule per kernel family and target; a target's rules return None for other targets."""
    families = [Depthwise(), RoundedProduct(), Slide(), Matmul(), Window(), RowChains(), Rows(), Elementwise()]
    # A window is a reduction too, and a convolution a matmul: who knows more is asked first.
    products = [GpuMatrix(), *windows_rules(), GpuMatmul()]
    on_gpu = [*products, GpuMatrixAttention(), GpuRowChains(), GpuRows(), GpuElementwise()]
    return [
        *families,
        InSequence([*families, Fallback()]),
        Steps(),
        GpuChain(),
        *on_gpu,
        GpuSequence(on_gpu),
        *dlight_rules(),
    ]

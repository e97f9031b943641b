# SPDX-License-Identifier: Apache-2.0
"""The rules, in the order they are asked."""

from __future__ import annotations

from .cpu_attention import RowChains
from .cpu_elementwise import Elementwise
from .cpu_fallback import Fallback
from .cpu_matmul import Matmul
from .cpu_rows import Rows
from .cpu_slide import Slide
from .cpu_window import Window
from .gpu_attention import GpuRowChains
from .gpu_default import gpu_rules
from .gpu_elementwise import GpuElementwise
from .gpu_matmul import GpuMatmul
from .gpu_rows import GpuRows
from .gpu_sequence import GpuSequence
from .gpu_window import windows_rules
from .rule import Rule
from .sequence import InSequence


def default_rules() -> list[Rule]:
    """One rule per kernel family and target; a target's rules return None for other targets."""
    families = [Slide(), Matmul(), Window(), RowChains(), Rows(), Elementwise()]
    # A window is a reduction too, and a convolution a matmul: who knows more is asked first.
    on_gpu = [*windows_rules(), GpuMatmul(), GpuRowChains(), GpuRows(), GpuElementwise()]
    return [*families, InSequence([*families, Fallback()]), *on_gpu, GpuSequence(on_gpu), *gpu_rules()]

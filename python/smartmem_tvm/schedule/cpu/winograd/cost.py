# SPDX-License-Identifier: Apache-2.0
"""What a convolution takes by transformed tiles, and as it is written."""
from __future__ import annotations
import os
from collections.abc import Sequence
from .plan import WinogradPlan


def worth(plans: Sequence[WinogradPlan]) -> list[WinogradPlan]:
    """The plans that are faster than the plain convolution, the fastest first."""
    f = os.environ.get("WINO")
    return [p for p in plans if f == str(p.result)]

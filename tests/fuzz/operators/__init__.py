# SPDX-License-Identifier: Apache-2.0
"""How each operator is drawn: functions that add a node, or a few, to a `Drawing`, or raise `NotDrawn`."""

from . import arithmetic, control, idioms, index, layout, reduction, window
from .table import TABLE

__all__ = ["TABLE", "arithmetic", "control", "idioms", "index", "layout", "reduction", "window"]

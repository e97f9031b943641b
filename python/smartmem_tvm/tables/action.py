# SPDX-License-Identifier: Apache-2.0
"""SmartMem Table 5: the action for a pair of operators, first operator down, second operator across."""

from enum import Enum

from .quadrant import Quadrant


class Action(Enum):
    """Computation optimisation of one producer-consumer pair."""

    KEEP_BOTH = "Keep both"
    TRY_FUSE = "Try fuse"
    ELIMINATE_FIRST = "Eliminate 1st"
    ELIMINATE_SECOND = "Eliminate 2nd"
    ELIMINATE_BOTH = "Eliminate both"


_COLUMNS = (Quadrant.ILD_VARIABLE, Quadrant.ILI_VARIABLE, Quadrant.ILD_FIXED, Quadrant.ILI_FIXED)
_KEEP, _FUSE = Action.KEEP_BOTH, Action.TRY_FUSE
_FIRST, _SECOND, _BOTH = Action.ELIMINATE_FIRST, Action.ELIMINATE_SECOND, Action.ELIMINATE_BOTH

# fmt: off
_ROWS = {
    # first \ second        ILD&Var  ILI&Var  ILD&Fixed  ILI&Fixed
    Quadrant.ILD_VARIABLE: (_KEEP,   _FUSE,   _SECOND,   _SECOND),
    Quadrant.ILI_VARIABLE: (_FUSE,   _FUSE,   _SECOND,   _SECOND),
    Quadrant.ILD_FIXED:    (_FIRST,  _FIRST,  _BOTH,     _BOTH),
    Quadrant.ILI_FIXED:    (_FIRST,  _FIRST,  _BOTH,     _BOTH),
}
# fmt: on

TABLE_5: dict[tuple[Quadrant, Quadrant], Action] = {
    (first, second): action for first, row in _ROWS.items() for second, action in zip(_COLUMNS, row, strict=True)
}

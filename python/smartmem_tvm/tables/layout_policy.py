# SPDX-License-Identifier: Apache-2.0
"""SmartMem Table 6: the type of a pair's result and the layouts to search, first operator down, second across."""

from enum import Enum
from typing import NamedTuple

from .quadrant import Quadrant


class Search(Enum):
    """The operators whose input and output layouts are searched."""

    BOTH = "Search both"
    FUSED = "Search fused"
    FIRST = "Search 1st"
    SECOND = "Search 2nd"
    NONE = "No search"


class LayoutDecision(NamedTuple):
    """One cell: output type (None if the paper prints N/A) and layout search."""

    output: Quadrant | None
    search: Search


_COLUMNS = (Quadrant.ILD_VARIABLE, Quadrant.ILI_VARIABLE, Quadrant.ILD_FIXED, Quadrant.ILI_FIXED)
_ILD, _ILI, _NA = Quadrant.ILD_VARIABLE, Quadrant.ILI_VARIABLE, None

# fmt: off
_ROWS = {
    # first \ second         ILD&Var                ILI&Var                ILD&Fixed              ILI&Fixed
    Quadrant.ILD_VARIABLE: ((_ILD, Search.BOTH),   (_ILD, Search.FUSED),  (_ILD, Search.FIRST),  (_ILD, Search.FIRST)),
    Quadrant.ILI_VARIABLE: ((_ILD, Search.FUSED),  (_ILI, Search.NONE),   (_ILI, Search.NONE),   (_ILI, Search.NONE)),
    Quadrant.ILD_FIXED:    ((_ILD, Search.SECOND), (_ILI, Search.NONE),   (_NA,  Search.NONE),   (_NA,  Search.NONE)),
    Quadrant.ILI_FIXED:    ((_ILD, Search.SECOND), (_ILI, Search.NONE),   (_NA,  Search.NONE),   (_NA,  Search.NONE)),
}
# fmt: on

TABLE_6: dict[tuple[Quadrant, Quadrant], LayoutDecision] = {
    (first, second): LayoutDecision(*cell)
    for first, row in _ROWS.items()
    for second, cell in zip(_COLUMNS, row, strict=True)
}

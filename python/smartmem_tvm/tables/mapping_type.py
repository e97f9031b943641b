# SPDX-License-Identifier: Apache-2.0
"""DNNFusion Table 3: the mapping type of two fused operators, and whether fusion pays, first down, second across."""

from enum import Enum
from typing import NamedTuple


class MappingType(Enum):
    """The dependence of output elements on input elements (DNNFusion, operator classification).

    The order is the transformation impedance: the most complex mapping of an operator's operands decides.
    """

    ONE_TO_ONE = "One-to-One"
    REORGANIZE = "Reorganize"
    SHUFFLE = "Shuffle"
    ONE_TO_MANY = "One-to-Many"
    MANY_TO_MANY = "Many-to-Many"


class FusionVerdict(Enum):
    """Colour of a cell."""

    FUSE = "+"  # green: always profitable
    PROFILE = "?"  # yellow: legal, profit to be measured or modelled
    NEVER = "x"  # red: illegal or not profitable


class Fusion(NamedTuple):
    """One cell: mapping type of the fused operator and verdict."""

    result: MappingType
    verdict: FusionVerdict


_11, _1M, _MM = MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY, MappingType.MANY_TO_MANY
_RE, _SH = MappingType.REORGANIZE, MappingType.SHUFFLE
_COLUMNS = (_11, _1M, _MM, _RE, _SH)

# fmt: off
_ROWS = {
    # first \ second  1-1          1-M          M-M          Re           Sh
    _11:            ((_11, "+"),  (_1M, "+"),  (_MM, "+"),  (_RE, "+"),  (_SH, "+")),
    _1M:            ((_1M, "+"),  (_1M, "?"),  (_MM, "x"),  (_1M, "?"),  (_1M, "?")),
    _MM:            ((_MM, "+"),  (_MM, "?"),  (_MM, "x"),  (_MM, "?"),  (_MM, "?")),
    _RE:            ((_RE, "+"),  (_1M, "?"),  (_MM, "?"),  (_RE, "+"),  (_RE, "+")),
    _SH:            ((_SH, "+"),  (_1M, "?"),  (_MM, "?"),  (_RE, "+"),  (_SH, "+")),
}
# fmt: on

TABLE_3: dict[tuple[MappingType, MappingType], Fusion] = {
    (first, second): Fusion(result, FusionVerdict(verdict))
    for first, row in _ROWS.items()
    for second, (result, verdict) in zip(_COLUMNS, row, strict=True)
}

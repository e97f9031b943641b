# SPDX-License-Identifier: Apache-2.0
"""The cost of one element of an element-wise operator or reduction, in floating point operations."""

# fmt: off
# Orders of magnitude on a CPU with vector units: divisions and roots take four times as long as a multiplication, and
# polynomial functions at least ten times as long. DNNFusion's Table 4 counts one for each.
_ROWS = {
    1: ("add", "subtract", "multiply", "negative", "abs", "square", "maximum", "minimum", "nn.relu", "left_shift"),
    4: ("divide", "sqrt", "rsqrt"),
    10: ("exp", "log", "sigmoid"),
    20: ("power",),
}
# fmt: on
# Cost for each element that they read.
_REDUCTIONS = ("sum", "mean", "prod", "max", "min")

FLOPS: dict[str, int] = {
    **{name: cost for cost, names in _ROWS.items() for name in names},
    **dict.fromkeys(_REDUCTIONS, 1),
    "matmul": 2,  # for each multiplication and the addition after it
}

# SPDX-License-Identifier: Apache-2.0
"""A genetic search over discrete parameters under constraints, independent of the parameters' meaning."""

from .genes import AtMost, Constraint, Divides, Gene, Genome, Requires, Value, category, divisors, integer
from .search import Failure, GeneticSearch, Settings
from .seeding import Known, nearest
from .space import EmptySpace, Space

__all__ = [
    "AtMost",
    "Constraint",
    "Divides",
    "EmptySpace",
    "Failure",
    "Gene",
    "GeneticSearch",
    "Genome",
    "Known",
    "Requires",
    "Settings",
    "Space",
    "Value",
    "category",
    "divisors",
    "integer",
    "nearest",
]

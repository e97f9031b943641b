# SPDX-License-Identifier: Apache-2.0
"""Features of a candidate for a cost model: its decisions and the sizes of its kernel, without the loops."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.feature_extractor import PyFeatureExtractor

from .genetic import Value
from .trace import genome_of
from .tunable_kernel import TunableKernel

# Columns; the checksum of a name selects its column. A kernel has about forty names, which seldom collide.
_COLUMNS = 512


def features(genome: Mapping[str, Value], facts: Mapping[str, int]) -> np.ndarray:
    """Return one row of `_COLUMNS` numbers: the logarithm of each value in the column of its name, else 0."""
    row = np.zeros((1, _COLUMNS), "float32")
    for name, value in (*facts.items(), *genome.items()):
        row[0, zlib.crc32(name.encode()) % _COLUMNS] += 1.0 + math.log2(1 + int(value))
    return row


@derived_object
class DecisionFeatures(PyFeatureExtractor):
    """Features of candidates of our space, for MetaSchedule's cost models.

    The kernels of all contexts share one model, so that training on one kernel helps with the next.
    """

    def __init__(self):
        self.known: dict[int, tuple[tvm.IRModule, Mapping[str, int]]] = {}

    def extract_from(self, context, candidates: Sequence) -> list[tvm.runtime.Tensor]:
        """Return one row for each candidate; candidates of other spaces get no row, and the model ignores them."""
        facts = self._facts(context)
        rows = [self._row(candidate, facts) for candidate in candidates]
        return [tvm.runtime.tensor(row) for row in rows]

    def _facts(self, context) -> Mapping[str, int]:
        key = tvm_ffi.structural_hash(context.mod)
        if key not in self.known:
            kernel = TunableKernel.of(context.mod["main"], context.target)
            self.known[key] = (context.mod, kernel.space.facts if kernel is not None else {})
        return self.known[key][1]

    @staticmethod
    def _row(candidate, facts: Mapping[str, int]) -> np.ndarray:
        genome = genome_of(candidate.sch.trace)
        return np.zeros((0, _COLUMNS), "float32") if genome is None else features(genome, facts)

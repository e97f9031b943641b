# SPDX-License-Identifier: Apache-2.0
"""SplitWindows: compute the results near an image's edge without multiplying by padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...analysis.windows import WindowAxis, convolution, window_axes
from ...ir.block import constant, shape_of, weight
from ...ir.rewrite_calls import rewrite_calls

# Multiplications of a core in a cycle, and cycles to load a weight from memory. Measured on a Xeon with AVX-512: 29 and
# 0.96 (`python benchmarks/machine.py --json benchmarks/machine_xeon.json`, 2026-11-28).
_PER_CYCLE, _FETCH = 32, 1.0
_GAIN = 0.6  # share of the unsplit time; a split that takes more is not worth its additional weights in memory
_MOST_GROUPS = 5  # groups of results along a dimension


@tvm.transform.module_pass(opt_level=0, name="smartmem.SplitWindows")
class SplitWindows:
    """Compute results whose windows see the same part of the picture by themselves, without the padding around it.

    Before::

        y = conv2d(x, w, padding=12, dilation=12)           # x: (N, C, 14, 14), w: (F, C, 3, 3)

    After::

        y = concat([..., concat([..., conv2d(x[:, :, 2:12, 2:12], w[:, :, 1:2, 1:2]), ...], 3), ...], 2)

    Dilated windows on small images mostly see padding: in the example, only two rows and columns of results at each
    edge read a second place of the image. A cost model decides along which dimensions splitting pays, as each part
    loads weights of its own from memory.

    Parameters
    ----------
    kernel_cycles : float
        Cycles of a further kernel and its share of the concatenation; infinite to split no convolution.

    Refuses (leaves as they are) weights that are computed or not finite, groups, images of unknown size, layouts that
    are not channels-first, and windows that see padding only.
    """

    def __init__(self, kernel_cycles: float = 20_000.0):
        self.kernel_cycles = kernel_cycles

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every Relax function of `mod`."""
        return rewrite_calls(mod, _Splitting(mod, self.kernel_cycles))


@dataclass(frozen=True)
class _Part:
    """Some results along a dimension: the window places that they use, their part of the image, and the padding."""

    results: range
    places: range
    pixels: range
    padding: tuple[int, int] = (0, 0)


@mutator
class _Splitting(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, kernel_cycles: float):
        super().__init__(mod)
        self.kernel_cycles = kernel_cycles

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Split one call."""
        call = self.visit_expr_post_order(call)
        axes = window_axes(call)
        parts = _best(call, axes, self.kernel_cycles) if axes is not None and int(call.attrs.groups) == 1 else None
        values = weight(call.args[1]) if parts is not None else None
        if values is None or not np.isfinite(values).all():
            return call
        return self._joined(call, values, parts, ())

    def _joined(self, call: ir.Call, values: np.ndarray, parts: Sequence, chosen: tuple[_Part, ...]) -> relax.Expr:
        """Return the results of `chosen` along the first dimensions, and of all parts along the others."""
        level = len(chosen)
        if level == len(parts):
            return self.builder_.emit(self._part(call, values, chosen))
        found = [self._joined(call, values, parts, (*chosen, part)) for part in parts[level]]
        return self.builder_.emit(relax.op.concat(found, level + 2)) if len(found) > 1 else found[0]

    def _part(self, call: ir.Call, values: np.ndarray, chosen: tuple[_Part, ...]) -> ir.Call:
        data, sizes = call.args[0], shape_of(call.args[0])[2:]
        cut = [axis for axis, part in enumerate(chosen) if len(part.pixels) != sizes[axis]]
        if cut:
            begin, end = ([getattr(chosen[axis].pixels, name) for axis in cut] for name in ("start", "stop"))
            data = self.builder_.emit(relax.op.strided_slice(data, [axis + 2 for axis in cut], begin, end))
        places = (slice(part.places.start, part.places.stop) for part in chosen)
        kept = constant(values[(slice(None), slice(None), *places)], values)
        return convolution(call, data, kept, [part.padding for part in chosen])


def _best(call: ir.Call, axes: list[WindowAxis], kernel: float) -> list[list[_Part]] | None:
    """Return the fastest parts along each dimension; None if the whole convolution is fastest."""
    filters = math.prod(shape_of(call.args[1])[:2])
    ways = [way for way in product(*map(_ways, axes)) if any(len(parts) > 1 for parts in way)]
    timed = [(_cycles(way, filters, shape_of(call)[0], kernel), number) for number, way in enumerate(ways)]
    whole = _cycles([[_whole(axis)] for axis in axes], filters, shape_of(call)[0], kernel)
    best = min(timed, default=(whole, 0))
    return list(ways[best[1]]) if best[0] < _GAIN * whole else None


def _ways(axis: WindowAxis) -> list[list[_Part]]:
    """Return two ways to split a dimension: all results as one part, or grouped by the window places that they see."""
    groups = axis.groups()
    apart = [_Part(results, places, axis.pixels(results, places)) for results, places in groups if places]
    able = 1 < len(groups) <= _MOST_GROUPS and len(apart) == len(groups)
    return [[_whole(axis)], apart] if able else [[_whole(axis)]]


def _whole(axis: WindowAxis) -> _Part:
    return _Part(range(axis.results), range(axis.window), range(axis.size), (axis.before, axis.after))


def _cycles(way: Sequence[Sequence[_Part]], filters: int, pictures: int, kernel: float) -> float:
    """Return the cycles of all parts: multiplications, loads of weights, and the overhead of each kernel."""
    total = 0.0
    for chosen in product(*way):
        weights = filters * math.prod(len(part.places) for part in chosen)
        results = pictures * math.prod(len(part.results) for part in chosen)
        total += weights * results / _PER_CYCLE + weights * _FETCH + kernel
    return total

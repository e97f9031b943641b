# SPDX-License-Identifier: Apache-2.0
"""Windows over textures: results in whole texels, and sums whose terms are the channels of texels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ....analysis.row_chain import factors
from ....ir.kernel import substitute
from ....ir.recent import Recent
from ....ir.strength_reduction import Simplifier
from ....ir.texels import is_texture
from ....ir.walk import loads
from ....planner.texture_form import TEXEL
from ...core.expressions import uses
from ...core.nest import current_index_type, fresh, index
from ...core.reduction import Reduction

_in_texels = Recent(64)


def texel_axes(reduction: Reduction, order: Sequence) -> tuple | None:
    """Return the spatial iterators that run over the four values of one texel of the result, fastest last.

    Parameters
    ----------
    order : sequence of tirx.Var
        Spatial iterators, slowest in memory first.

    Returns
    -------
    tuple or None
        Empty if the result is no texture; None if no iterators run over exactly its texels.
    """
    if not is_texture(reduction.output):
        return ()
    *place, lane = reduction.indices
    axes = tuple(uses(lane, order))
    whole = prod(reduction.extents[v] for v in axes) == TEXEL and axes == tuple(order[len(order) - len(axes) :])
    return axes if whole and not any(uses(at, axes) for at in place) else None


def terms_in_texels(reduction: Reduction) -> Reduction:
    """Return the same sum with the four values of a texel as its last terms.

    Before, with a texture ``D``::

        sum over i, p, q of D[i // 4, y + p, x + q, i % 4] * W[f, i, p, q]

    After::

        sum over j, p, q, lane of D[j, y + p, x + q, lane] * W[f, j * 4 + lane, p, q]
    """
    return _in_texels.get(reduction, lambda: _terms_in_texels(reduction), current_index_type())


def _terms_in_texels(reduction: Reduction) -> Reduction:
    along = next((v for v in reduction.reduce if goes_in_texels(reduction, v)), None)
    if along is None:
        return reduction
    quad, lane = fresh(f"{along.name}_texel"), fresh(f"{along.name}_lane")
    count = reduction.extents[along] // TEXEL
    extents = {v: e for v, e in reduction.extents.items() if not v.same_as(along)} | {lane: TEXEL}
    first = [quad if v.same_as(along) else v for v in reduction.reduce]
    if count == 1:
        first, position = [v for v in first if v is not quad], lane
    else:
        extents[quad], position = count, quad * index(TEXEL) + lane
    term = Simplifier(extents).body(substitute(reduction.term, {along: position}))
    return replace(reduction, reduce=(*first, lane), extents=extents, term=term)


def goes_in_texels(reduction: Reduction, var) -> bool:
    """Whether a factor of the terms is read in whole texels along an iterator of the sum."""
    return any(runs_along_texels(factor, var, reduction.extents) for factor in factors(reduction.term))


def runs_along_texels(value, var, extents: Mapping) -> bool:
    """Whether every four aligned steps of `var` are one texel of each texture that `value` reads along it."""
    read = [ld for ld in loads(value) if is_texture(ld.source) and uses(ld, [var])]
    if not read or extents[var] % TEXEL:
        return False
    number, lane = fresh("number"), fresh("lane")
    simplifier = Simplifier({**extents, number: extents[var] // TEXEL, lane: TEXEL})
    where = {var: number * index(TEXEL) + lane}

    def in_texel(load) -> bool:
        *place, at = [simplifier.index(substitute(i, where)) for i in load.indices]
        return not any(uses(i, [lane]) for i in place) and simplifier.analyzer.can_prove_equal(at, lane)

    return all(in_texel(load) for load in read)

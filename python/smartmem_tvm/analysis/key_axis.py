# SPDX-License-Identifier: Apache-2.0
"""The keys of attention over a cache: which iterators run along them, and which of them a mask lets through.

    s[h, t, j] = sum_d q[h, t, d] * k[h, j, d] + m[t, j]
    e[h, t, j] = exp(s[h, t, j] - max_j s[h, t, j]);  o[h, t, d] = sum_j e[h, t, j] * v[h, j, d]

`key_axis` finds j in each stage, from the cache v whose rows are the keys. `mask_of` finds m, and proves that stages
leave out nothing if they begin at the first key that m lets through, and end behind the last one: the maximum is that
of another key, e is zero, and what is multiplied with zero adds nothing. `analysis.key_span` cuts the kernel to these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from ..ir.index_map import function_name, is_if_then_else, variables
from ..ir.kernel import Kernel, Opaque, Stage, shape_of, substitute
from ..ir.walk import loads
from .row_chain import summand

UNSEEN = -1e9
"""The largest number that hides a key when a mask adds it to the key's score: chosen, as exporters write this or less
for minus infinity in float32. Scores are assumed to be far above it, so that the exponential of the difference is 0."""
_FLOAT = "float32"


def key_axis(kernel: Kernel, cache, dim: int) -> dict[Stage, tirx.Var]:
    """Return the iterator along the keys of each stage that has one.

    Parameters
    ----------
    cache : buffer
        An input, whose rows belong to the keys.
    dim : int
        The dimension that counts its rows.

    Raises
    ------
    Opaque
        If a stage reads the cache, or what is computed for each key, through a map or in parts.
    """
    producers = {stage.body.buffer: stage for stage in kernel.stages if isinstance(stage.body, tirx.BufferStore)}
    if len(producers) < len(kernel.stages):
        raise Opaque("a stage writes several tensors")
    found: dict[Stage, tirx.Var] = {}
    waiting: list[Stage] = []

    def add(stage: Stage, at) -> None:
        if not isinstance(at, ir.Var) or stage.extents.get(at) != shape_of(cache)[dim]:
            raise Opaque("keys are read through a map")
        if not found.setdefault(stage, at).same_as(at):
            raise Opaque("a stage runs along the keys twice")
        waiting.append(stage)

    for stage in kernel.stages:
        for load in stage.loads:
            if load.source.same_as(cache):
                add(stage, load.indices[dim])
    done: set[Stage] = set()
    while waiting:
        stage = waiting.pop()
        if stage in done:
            continue
        done.add(stage)
        for producer, place in _written(kernel, producers, stage, found[stage]):
            add(producer, producer.body.indices[place])
            buffer = producer.body.buffer
            if any(buffer.same_as(each) for each in kernel.outputs):
                raise Opaque("its result has numbers for each key")
            for reader in kernel.readers(buffer):
                for indices in reader.maps(buffer):
                    add(reader, indices[place])
    return found


def _written(kernel: Kernel, producers: Mapping, stage: Stage, key) -> list[tuple[Stage, int]]:
    """Return the stages between which and `stage` a tensor passes with a dimension for the keys, and the dimension."""
    places = [(stage, place) for place in _dims(stage.body.indices, key)]
    for load in stage.loads:
        if load.source in producers:
            places += [(producers[load.source], place) for place in _dims(load.indices, key)]
    return places


def _dims(indices, key) -> list[int]:
    return [place for place, index in enumerate(indices) if any(key.same_as(var) for var in variables(index))]


@dataclass(frozen=True, eq=False)
class Mask:
    """A number that is added to each score, or takes its place, and does not depend on the scores.

    Attributes
    ----------
    stage : Stage
        The stage that computes the masked scores.
    value : expression
        The number, in iterators of `stage`.
    key : tirx.Var
        The iterator along the keys.
    """

    stage: Stage
    value: object
    key: tirx.Var


def mask_of(kernel: Kernel, keys: Mapping[Stage, tirx.Var], noughts: Sequence = ()) -> Mask:
    """Return the mask of a softmax over the keys, after which only sums of products follow.

    Parameters
    ----------
    noughts : sequence of buffer
        Inputs that are constants of zeros.

    Raises
    ------
    Opaque
        If some stage would see that keys are left out behind the last one that the mask lets through.
    """
    return _Proof(kernel, keys, noughts).mask()


class _Proof:
    """Facts about the numbers of a key that no row sees, gathered stage by stage."""

    def __init__(self, kernel: Kernel, keys: Mapping[Stage, tirx.Var], noughts: Sequence):
        self.kernel, self.keys = kernel, keys
        self.producers = {stage.body.buffer: stage for stage in kernel.stages}
        self.masks: dict = {}  # masked scores -> their mask
        self.zeros = list(noughts)  # tensors that are zero there
        self.largest: dict = {}  # the maximum of the scores -> the scores
        self.inline: dict = {}  # the maximum of scores that no tensor has -> the stage, the scores, and their mask

    def mask(self) -> Mask:
        for stage in self.kernel.stages:
            if stage not in self.keys:
                continue
            self._stage = stage
            if self.keys[stage] in stage.reduction:
                self._reduction(stage)
            elif not stage.reduction:
                self._values(stage)
        used = [self.masks[scores] for scores in dict.fromkeys(self.largest.values())]
        used += [mask for _, _, mask in self.inline.values()]
        if len(used) != 1:
            raise Opaque("no softmax of one tensor of scores")
        return used[0]

    def _reduction(self, stage: Stage) -> None:
        value, buffer = stage.body.value, stage.body.buffer
        if isinstance(value, tirx.Max):
            term = value.b if self._is(value.a, buffer) else value.a
            if isinstance(term, ir.TensorLoad) and term.source in self.masks:
                self.largest[buffer] = term.source
                return
            added, key = self._mask(term), self.keys[stage]
            if str(term.ty.dtype) != _FLOAT or not any(key.same_as(var) for var in variables(added)):
                raise Opaque("its scores have no mask of float32 numbers")
            self.inline[buffer] = stage, term, Mask(stage, added, key)
            return
        term = summand(stage)
        if term is None or not self._is_zero(term):
            raise Opaque("it adds up other numbers than products with the results of a softmax")

    def _values(self, stage: Stage) -> None:
        buffer, value = stage.body.buffer, stage.body.value
        if self._is_zero(value):
            self.zeros.append(buffer)
        elif str(value.ty.dtype) == _FLOAT:
            added = self._mask(value)
            if any(self.keys[stage].same_as(var) for var in variables(added)):
                self.masks[buffer] = Mask(stage, added, self.keys[stage])

    def _is(self, expr, buffer) -> bool:
        return isinstance(expr, ir.TensorLoad) and expr.source.same_as(buffer)

    def _is_zero(self, expr) -> bool:
        if isinstance(expr, ir.TensorLoad):
            return any(expr.source.same_as(each) for each in self.zeros)
        if isinstance(expr, tirx.Mul):
            return self._is_zero(expr.a) or self._is_zero(expr.b)
        if isinstance(expr, tirx.Div):
            return self._is_zero(expr.a)
        if isinstance(expr, tirx.Cast):
            return self._is_zero(expr.value)
        if isinstance(expr, tirx.Select) or is_if_then_else(expr):  # of a NaN, which a softmax over a row may be
            return all(_is_nought(each) or self._is_zero(each) for each in _branches(expr)[1:])
        if isinstance(expr, ir.Call) and function_name(expr) == "exp" and isinstance(expr.args[0], tirx.Sub):
            scores, most = expr.args[0].a, expr.args[0].b
            if isinstance(most, ir.TensorLoad) and most.source in self.inline:
                return self._is_inline(scores, most)
            known = isinstance(scores, ir.TensorLoad) and isinstance(most, ir.TensorLoad)
            largest = self.largest.get(most.source) if known else None
            return largest is not None and largest.same_as(scores.source)
        return False

    def _is_inline(self, scores, most: ir.TensorLoad) -> bool:
        """Whether an expression is the one of which `most` is the maximum."""
        stage, term, _ = self.inline[most.source]
        written = zip(stage.body.indices, most.indices, strict=True)  # a dimension of one element may have no iterator
        places = {var: at for var, at in written if isinstance(var, ir.Var)} | {
            self.keys[stage]: self.keys[self._stage]
        }
        return tvm_ffi.structural_equal(substitute(term, places), scores)

    def _mask(self, expr):
        """Return what an expression is where scores are zero: the sum of what is added to them."""
        inner = [load for load in loads(expr) if load.source in self.producers]
        if not inner:
            return expr
        if isinstance(expr, tirx.Add):
            return self._mask(expr.a) + self._mask(expr.b)
        if isinstance(expr, tirx.Max):
            return tirx.max(self._mask(expr.a), self._mask(expr.b))
        if isinstance(expr, tirx.Select) or is_if_then_else(expr):
            parts = _branches(expr)
            if not any(load.source in self.producers for load in loads(parts[0])):
                return tirx.Select(parts[0], self._mask(parts[1]), self._mask(parts[2]))
        if isinstance(expr, ir.TensorLoad):
            stage = self.producers[expr.source]
            if stage.is_pointwise:
                return self._mask(substitute(stage.body.value, dict(zip(stage.spatial, expr.indices, strict=True))))
        return tirx.const(0.0, _FLOAT)


def _branches(expr) -> list:
    """Return the condition of a choice, and what it chooses from."""
    return list(expr.args) if isinstance(expr, ir.Call) else [expr.condition, expr.true_value, expr.false_value]


def _is_nought(expr) -> bool:
    return isinstance(expr, tirx.FloatImm) and expr.value == 0

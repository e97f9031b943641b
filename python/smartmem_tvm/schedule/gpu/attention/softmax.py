# SPDX-License-Identifier: Apache-2.0
"""Recognise in a chain of rows an attention whose softmax can be computed online, block of keys by block of keys.

    s[i, j] = sum_d q[i, d] * k[j, d]
    w[i, j] = exp(f(s[i, j]) - max_j f(s[i, j]))       f: a scale, a bias, a mask, any element-wise function
    o[i, c] = finish(sum_j w[i, j] * v[j, c], sum_j w[i, j])

Weights may be divided by their sum before the second product or after it. A select may replace weights that are NaN,
which are those of rows without any key.
"""

from __future__ import annotations

from functools import cached_property

import tvm_ffi
from tvm import ir, tirx

from ....analysis.row_chain import RowChain, row_chain_of
from ....ir.half import FLOAT, RANGES, rounded_to
from ....ir.index_map import function_name, variables
from ....ir.kernel import Kernel, Opaque, Stage, substitute
from ....ir.texels import is_texture
from ....ir.walk import loads
from ...core.decisions import declined
from ...core.expressions import replace_loads
from ...core.nest import fresh
from ...core.reduction import combiner_of
from ..gemm.operand import Operand
from ..gemm.ptx import HALF, SHORT, Element
from ..matrix.widened import widened
from .points import ChainPoints


class SoftmaxAttention(ChainPoints):
    """The parts of an attention.

    Attributes
    ----------
    scores, maximum, total, result : Stage
        The first product, the statistics of its rows, the second product.
    finish : Stage or None
        The epilogue of the second product.
    normalised : bool
        Whether weights are divided by their sum before the second product.
    lonely : expression or None
        Weight of each key in rows all of whose scores are minus infinity; None: these rows are NaN.

    Raises
    ------
    Opaque
        If the chain is no attention, with the reason.
    """

    def __init__(self, chain: RowChain):
        super().__init__(chain)
        self.batch, self.row, self.key = (fresh(name) for name in ("batch", "row", "key"))
        self.score, self.most, self.sum = (tirx.Var(name, FLOAT) for name in ("score", "most", "sum"))
        self.scores, self.maximum, self.total, self.result, self.finish = self._stages()
        self._known = {
            self.scores.body.buffer: self.score,
            self.maximum.body.buffer: self.most,
            self.total.body.buffer: self.sum,
        }
        self.value = self._of_key(self.maximum, combiner_of(self.maximum)[1])
        if self.most in variables(self.value) or self.score not in variables(self.value):
            raise Opaque("its maximum is not that of scores")
        weight = self._of_key(self.total, combiner_of(self.total)[1])
        if not _is_exponential(weight, self.value, self.most):
            raise Opaque("it does not sum exponentials of scores less their maximum")
        self.normalised, self.lonely = self._weights(weight)

    # -- the form ------------------------------------------------------------------------------------------------------

    def _stages(self) -> tuple[Stage, Stage, Stage, Stage, Stage | None]:
        chain, stages = self.chain, self.chain.kernel.stages
        products, statistics = list(chain.products), chain.statistics
        if len(products) != 2 or len(statistics) != 2 or stages[0] is not products[0]:
            raise Opaque("it is not two products with two statistics between them")
        (scores, result), (maximum, total) = products, statistics
        after = [stage for stage in stages[stages.index(result) + 1 :] if stage is not total]
        if len(after) > 1:
            raise Opaque("more than one stage follows the second product")
        kinds = [type(s.body.value) for s in statistics]
        if kinds != [tirx.Max, tirx.Add] or any(combiner_of(s) is None or chain.inner(s) for s in statistics):
            raise Opaque("its statistics are not a maximum and a sum per row")
        if any(str(s.body.buffer.dtype) not in (FLOAT, *RANGES) for s in (scores, *statistics)):
            raise Opaque("its scores are in float64, and matrix instructions leave them in float32")
        keys = self.axes(scores, self.columns(scores))
        if any(self.axes(stage, self.depth(stage)) != keys for stage in (maximum, total, result)):
            raise Opaque("its statistics and its second product do not go over the keys")
        finish = after[0] if after else None
        if finish is not None and self.axes(finish, self.columns(finish)) != self.axes(result, self.columns(result)):
            raise Opaque("what follows the second product is of another shape")
        read = {load.source for load in finish.loads} if finish is not None else set()
        if (read & set(self.makers)) - {result.body.buffer, total.body.buffer}:
            raise Opaque("what follows the second product reads more than sums")
        return scores, maximum, total, result, finish

    def _of_key(self, stage: Stage, expr):
        """Return an expression of a stage at a row and a key, in float32, as a function of score and statistics."""
        return widened(self._inlined(self.at(stage, expr, batch=self.batch, row=self.row, depth=self.key)))

    def _inlined(self, expr):
        for _ in self.chain.kernel.stages:
            if not any(load.source in self.makers for load in loads(expr)):
                return expr
            expr = replace_loads(expr, self._made)
        raise Opaque("it reads results of its second product")

    def _made(self, load):
        if load.source in self._known:
            return self._known[load.source]
        stage = self.maker(load.source)
        if stage is None or stage.reduction:
            return None
        point = {v: at for v, at in zip(stage.body.indices, load.indices, strict=True) if isinstance(v, ir.Var)}
        return substitute(stage.body.value, point)

    def _weights(self, weight) -> tuple[bool, object]:
        """Return (whether weights are divided by their sum, the weight of keys in a row without keys)."""
        left = self._of_key(self.result, self.chain.products[self.result].left)
        quotient = weight / self.sum
        if _same(left, weight):
            return False, None
        if _same(left, quotient):
            return True, None
        if isinstance(left, tirx.Select) and _same(left.false_value, quotient):
            mine = {self.score, self.most, self.sum, self.key} & set(variables(left.true_value))
            if _is_no_number(left.condition, quotient) and not mine:
                return True, left.true_value
        raise Opaque("its weights are not exponentials, nor these divided by their sum")

    # -- sizes and operands --------------------------------------------------------------------------------------------

    @property
    def keys(self) -> int:
        """Keys of a row."""
        return self.chain.width(self.scores)

    @property
    def depth_count(self) -> int:
        """Terms of a score."""
        return self.length(self.scores)

    @property
    def width(self) -> int:
        """Columns of a result."""
        return self.chain.width(self.result)

    @cached_property
    def element(self) -> Element | None:
        """The type that both products multiply, float16 or bfloat16, with float32 sums; None for any other."""
        q_and_k, weights = (self.chain.products[s] for s in (self.scores, self.result))
        read = [load for e in (q_and_k.left, q_and_k.right, weights.right) for load in loads(e)]
        types = {str(load.ty.dtype) for load in read if "int" not in str(load.ty.dtype)}
        sums = {str(s.body.buffer.ty.dtype) for s in (self.scores, self.result, self.total)}
        return SHORT.get(types.pop()) if len(types) == 1 and sums == {FLOAT} else None

    def operands(self) -> tuple[Operand, Operand, Operand]:
        """Return queries, keys and values in the type of `element`, or as float16, by rows, keys and columns."""
        first, second = self.chain.products[self.scores], self.chain.products[self.result]
        dtype = (self.element or HALF).dtype

        def operand(stage: Stage, expr, along: str, outer: int, depth: int) -> Operand:
            def value(b, at, k):
                return rounded_to(self.at(stage, expr, batch=b, depth=k, **{along: at}), dtype)

            return Operand(value, self.chain.batch_count, outer, depth)

        return (
            operand(self.scores, first.left, "row", self.chain.row_count, self.depth_count),
            operand(self.scores, first.right, "column", self.keys, self.depth_count),
            operand(self.result, second.right, "column", self.width, self.keys),
        )

    # -- expressions of a point ----------------------------------------------------------------------------------------

    def value_at(self, score, batch, row, key):
        """Return the operand of softmax at a point, in float32."""
        return substitute(self.value, {self.batch: batch, self.row: row, self.key: key, self.score: score})

    def lonely_at(self, batch, row):
        """Return the weight of keys in a row without any key."""
        return substitute(self.lonely, {self.batch: batch, self.row: row})

    @property
    def scale(self) -> float | None:
        """The positive factor of the scores if softmax is of scaled scores and nothing else; otherwise None."""
        if self.value.same_as(self.score):
            return 1.0
        parts = (self.value.a, self.value.b) if isinstance(self.value, tirx.Mul) else ()
        numbers = [each.value for each in parts if isinstance(each, tirx.FloatImm) and each.value > 0]
        return numbers[0] if numbers and any(each.same_as(self.score) for each in parts) else None

    def leave(self, result, total, batch, row, column) -> tirx.Stmt:
        """Finish and store a result, given a sum of weighted values and the sum of weights."""
        point = {"batch": batch, "row": row, "column": column}
        last = self.finish or self.result
        indices = [self.at(last, at, **point) for at in last.body.indices]
        if self.finish is None:
            return tirx.BufferStore(last.body.buffer, result, indices)
        given = {self.result.body.buffer: result, self.total.body.buffer: total}
        value = replace_loads(self.at(last, last.body.value, **point), lambda load: given.get(load.source))
        return tirx.BufferStore(last.body.buffer, value, indices)


def attention_of(kernel: Kernel) -> SoftmaxAttention | None:
    """Return the attention that a kernel of buffers computes; None, with the reason declined, if it computes none."""
    if len(kernel.outputs) != 1 or any(map(is_texture, (*kernel.inputs, *kernel.outputs))):
        return declined("several results, or textures")
    try:
        return SoftmaxAttention(row_chain_of(kernel))
    except Opaque as reason:
        return declined(str(reason))


def _is_exponential(weight, value, most) -> bool:
    if not (isinstance(weight, ir.Call) and function_name(weight) == "exp"):
        return False
    inside = weight.args[0]
    return isinstance(inside, tirx.Sub) and _same(inside.a, value) and inside.b.same_as(most)


def _is_no_number(condition, value) -> bool:
    """Whether a condition says that a value is NaN; a boolean may be an integer compared with zero."""
    if isinstance(condition, tirx.LT) and isinstance(condition.b, tirx.Cast) and _is_zero(condition.a):
        condition = condition.b.value
    return isinstance(condition, ir.Call) and function_name(condition) == "isnan" and _same(condition.args[0], value)


def _is_zero(number) -> bool:
    return isinstance(number, tirx.IntImm) and number.value == 0


def _same(a, b) -> bool:
    return tvm_ffi.structural_equal(a, b)

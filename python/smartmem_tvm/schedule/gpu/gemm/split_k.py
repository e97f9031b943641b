# SPDX-License-Identifier: Apache-2.0
"""The second kernel of a split-K product: it adds the partial sums of the thread blocks."""

from __future__ import annotations

from tvm import tirx

from ...core.nest import SERIAL, Scope, index
from ...core.nest import VECTOR as VECTORIZED
from ..launch import launch, when
from ..machine import VECTOR
from .product import MatmulProduct


def add_parts(product: MatmulProduct, parts, threads: int, scope: Scope) -> tirx.Stmt:
    """Return a launch whose threads add the partial sums of a vector of results each, and apply the epilogue.

    Parameters
    ----------
    parts : buffer
        Partial sums of shape (splits, batch, rows, columns).
    threads : int
        Threads of a thread block.
    """
    run = product.result_run(VECTOR)
    across = product.columns // run
    vectors = product.batch * product.rows * across

    def finish(number):
        simplify = scope.analyzer.simplify
        j = simplify(tirx.floormod(number, index(across)) * index(run))
        i = simplify(tirx.floormod(tirx.floordiv(number, index(across)), index(product.rows)))
        batch = simplify(tirx.floordiv(number, index(across * product.rows)))

        def result(v):
            total = product.reduction.init
            for part in range(int(parts.shape[0])):
                total = total + parts[index(part), batch, i, j + v]
            return scope.simplify(product.result(total, batch, i, j + v))

        return scope.loop(run, result, "v", VECTORIZED if run > 1 else SERIAL)

    def thread(block, t):
        number = block * index(threads) + t
        return when(None if vectors % threads == 0 else number < index(vectors), finish(number))

    return launch(scope, -(-vectors // threads), threads, thread)

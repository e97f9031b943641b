# SPDX-License-Identifier: Apache-2.0
"""The second kernel of a product whose terms are divided among groups of threads: it adds their sums."""

from __future__ import annotations

from tvm import tirx

from ...core.nest import SERIAL, Scope, index
from ...core.nest import VECTOR as VECTORIZED
from ..launch import launch, when
from ..occupancy import VECTOR
from .product import MatmulProduct


def add_parts(product: MatmulProduct, parts, threads: int, scope: Scope) -> tirx.Stmt:
    """Each thread of groups of `threads` adds the parts of a vector of results and finishes them.

    Parameters
    ----------
    parts : buffer
        Of shape (splits, batch, rows, columns).
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

    def thread(group, t):
        number = group * index(threads) + t
        return when(None if vectors % threads == 0 else number < index(vectors), finish(number))

    return launch(scope, -(-vectors // threads), threads, thread)

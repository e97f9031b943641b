# SPDX-License-Identifier: Apache-2.0
"""The exact optimum of the layout problem, as an integer program that HiGHS solves (`scipy.optimize.milp`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .layout_problem import LayoutProblem, Order, Tensor

_MICROSECONDS = 1e6  # seconds are scaled to microseconds: the solver's tolerances are for numbers about 1
_TIME_LIMIT = 1  # the solver's status at its time limit


class Unsolved(Exception):
    """No optimum was proved; the message says why."""


def exact_layouts(problem: LayoutProblem, time_limit: float = 60.0) -> dict[Tensor, Order]:
    """Return the orders with the least total time of all kernels.

    With x for "tensor t is in order l" and y for "kernel k has its tensors in the orders c", both 0 or 1::

        minimise the sum of seconds(k, c) * y(k, c)
        sum over l of x(t, l) = 1                              for each tensor
        sum over c with t in l of y(k, c) = x(t, l)            for each tensor of each kernel, and each order

    Only the x must be integers: the y follow from them.

    Parameters
    ----------
    time_limit : float
        Seconds for the solver.

    Raises
    ------
    Unsolved
        If the optimum was not proved in that time, or no solver is installed.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ImportError as error:
        raise Unsolved("it needs scipy, which `pip install smartmem_tvm[exact]` installs") from error
    if not problem.orders:
        return {}
    columns = [("x", tensor, order) for tensor, orders in problem.orders.items() for order in orders]
    costs = [0.0] * len(columns)
    column = {name: number for number, name in enumerate(columns)}
    rows: list[tuple[Mapping[int, float], float]] = []
    for tensor, orders in problem.orders.items():
        rows.append(({column["x", tensor, order]: 1.0 for order in orders}, 1.0))
    for kernel in problem.kernels:
        first = len(costs)
        costs += [_MICROSECONDS * seconds for seconds in kernel.seconds.values()]
        for place, tensor in enumerate(kernel.tensors if kernel.seconds else ()):
            for order in problem.orders[tensor]:
                ways = (first + n for n, orders in enumerate(kernel.seconds) if orders[place] == order)
                rows.append(({column["x", tensor, order]: -1.0, **dict.fromkeys(ways, 1.0)}, 0.0))
    integer = np.zeros(len(costs))
    integer[: len(columns)] = 1
    places = [(number, column, value) for number, (row, _) in enumerate(rows) for column, value in row.items()]
    at, across, values = zip(*places, strict=True)
    sums = coo_array((values, (at, across)), shape=(len(rows), len(costs)))
    rights = [right for _, right in rows]
    result = milp(
        np.array(costs),
        integrality=integer,
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(sums, rights, rights),
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    if result.status == _TIME_LIMIT:
        raise Unsolved(f"no optimum was proved in {time_limit:g} s")
    if result.x is None:
        raise Unsolved(f"HiGHS: {result.message}")
    return {tensor: order for (_, tensor, order), value in zip(columns, result.x, strict=False) if value > 0.5}

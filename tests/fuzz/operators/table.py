# SPDX-License-Identifier: Apache-2.0
"""The table of what can be drawn."""

from collections.abc import Callable

TABLE: dict[str, tuple[Callable, float]] = {}
"""Name -> the function that draws it, and how often in proportion to the others."""


def draws(weight: float = 1.0):
    """Enter a function into the table."""

    def enter(function: Callable) -> Callable:
        TABLE[function.__name__] = function, weight
        return function

    return enter

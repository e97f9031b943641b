# SPDX-License-Identifier: Apache-2.0
"""Check, on request, that a kernel with composed index maps equals the chain of kernels that it replaces.

The chain applies one map after the other. Both sides are evaluated in numbers (`elements`): at every element of a
result of up to `_MOST` elements, else at its corners and at random elements. A wrong index or condition shows as a
difference of the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import product

import numpy as np

from ..errors import CheckError
from .elements import Elements, Source, places
from .index_map import NotAnIndex
from .kernel import Kernel, shape_of

_MOST, _DRAWN = 1 << 16, 1 << 14  # elements
_CLOSE = 1e-6  # relative error: TVM may reorder the sum in a condition
_SHOWN = 3  # reads of an element that a message lists

_checking: ContextVar[bool] = ContextVar("smartmem.check_maps", default=False)


@contextmanager
def check_maps(on: bool) -> Iterator[None]:
    """Switch the check on or off."""
    before = _checking.set(on)
    try:
        yield
    finally:
        _checking.reset(before)


def checks_maps() -> bool:
    """Whether the check is on."""
    return _checking.get()


def check_same(chain: Elements, composed: Elements, shape: Sequence[int], operators: str) -> None:
    """Compare the elements of a result of `shape` between a chain of kernels and the composed kernel.

    Parameters
    ----------
    operators : str
        Names of the operators, for the message.

    Raises
    ------
    CheckError
        If elements differ; the message names the first index and what both sides read there.
    """
    if 0 in shape:
        return
    points = _points(shape)
    try:
        first, second = np.broadcast_arrays(chain(points), composed(points), points[0] if shape else 0)[:2]
    except NotAnIndex:  # more than index arithmetic, as in hand-written code, whose maps are not composed either
        return
    same = np.isclose(first, second, rtol=_CLOSE, atol=_CLOSE, equal_nan=True)
    if same.all():
        return
    place = int(np.argmin(same.reshape(-1)))
    at = [np.asarray([int(axis[place])]) for axis in points]
    raise CheckError(
        f"Check of index maps: the kernel of {operators} computes something else than its operators one after the "
        f"other: at index {[int(axis[0]) for axis in at]} these {_read(chain, at)}, and the composed kernel "
        f"{_read(composed, at)}; compile with simplify=False or eliminate=False (--no-simplify, --no-eliminate), and "
        f"report it."
    )


def _read(elements: Elements, at: Sequence[np.ndarray]) -> str:
    elements.trace = found = []
    value = float(np.asarray(elements(at)).reshape(-1)[0])
    elements.trace = None
    shown = [f"{name}{index}" for name, index in found]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"read {', '.join(shown[:_SHOWN]) or 'nothing'}{more} (value {value:g})"


def _points(shape: Sequence[int]) -> list[np.ndarray]:
    if math.prod(shape) <= _MOST:
        return [each.reshape(-1) for each in np.indices(shape)]
    random = np.random.default_rng(0)
    corners = np.array(list(product(*({0, size - 1} for size in shape)))[:_DRAWN])
    return [np.concatenate([corners[:, axis], random.integers(0, n, _DRAWN)]) for axis, n in enumerate(shape)]


class Tensors:
    """Sources of elements; the same tensor has the same elements in every kernel, under any name."""

    def __init__(self):
        self._numbers: dict = {}

    def elements(self, kernel: Kernel, args: Sequence, made: Mapping[object, Source] = {}) -> Elements:
        """Return the elements of a kernel called with `args`; arguments in `made` are computed by other kernels."""
        pairs = zip(kernel.inputs, args, strict=True)
        return Elements(kernel, {b: made[arg] if arg in made else self._own(arg) for b, arg in pairs})

    def _own(self, arg) -> Source:
        return places(self._numbers.setdefault(arg, len(self._numbers)))


def check_rewritten(before: Kernel, after: Kernel, label: str = "") -> None:
    """Check a rewritten kernel that still has the same buffers; see `check_same`."""
    if not checks_maps() or len(before.outputs) != 1:
        return
    tensors, out = Tensors(), before.outputs[0]
    name = label or ", ".join(stage.name for stage in before.stages)
    check_same(tensors.elements(before, before.inputs), tensors.elements(after, after.inputs), shape_of(out), name)

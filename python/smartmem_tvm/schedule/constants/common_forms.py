# SPDX-License-Identifier: Apache-2.0
"""Forms of weights chosen in common by the kernels of several sizes, so that fewer forms of a weight are stored."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType

import numpy as np
from tvm import IRModule, ir

from ...ir.graph import launches
from ...ir.several_sizes import size_functions

# Times the price of a size's products, up to which they read weights in a form that other sizes read. Chosen: what a
# size may be slower than a model compiled for it alone.
_DEARER = 1.02
Form = Hashable


@dataclass(frozen=True, eq=False)
class FormReader:
    """A kernel that reads constants in a form that its rule chose.

    Attributes
    ----------
    own : Form
        The form that the rule chose.
    constants : frozenset
        What identifies the values of its constants (`values_of`).
    price : callable
        Form -> cycles of the kernel with it; None if it cannot read that form.
    size : callable
        Form -> bytes of one of the constants in it.
    """

    own: Form
    constants: frozenset
    price: Callable[[Form], float | None]
    size: Callable[[Form], int]


def values_of(arrays: Collection[np.ndarray]) -> frozenset:
    """Return what is equal for arrays of equal values: each size has folded constants of its own."""
    return frozenset(
        (each.shape, str(each.dtype), hashlib.sha256(np.ascontiguousarray(each).reshape(-1).view("uint8")).digest())
        for each in arrays
    )


def in_common(mod: IRModule, readers: Mapping[ir.GlobalVar, FormReader]) -> dict[ir.GlobalVar, Form]:
    """Return the readers of a module of several sizes that should read another form than their own, and that form.

    Where kernels of different sizes read one weight in several forms, those of one form read another one instead, as
    long as no size gets dearer than `_DEARER`. What saves most bytes for its price comes first.

    Parameters
    ----------
    readers : mapping
        The kernels whose rules choose a form; other kernels of a size count as free of charge.
    """
    return _Search(mod, readers).run()


class _Search:
    """The greedy choice of forms."""

    def __init__(self, mod: IRModule, readers: Mapping[ir.GlobalVar, FormReader]):
        names = size_functions(mod)
        calls = {name: launches(mod, without=[each for each in names if each != name]) for name in names}
        self.readers, self.chosen = readers, {gvar: each.own for gvar, each in readers.items()}
        self.calls = {gvar: Counter({name: calls[name][gvar] for name in names}) for gvar in readers}
        self.prices: dict[tuple[ir.GlobalVar, Form], float | None] = {}
        self.left = {name: (_DEARER - 1) * self._whole(name) for name in names}

    def _whole(self, name: str) -> float:
        """Return the cycles of all readers of a size, in their own forms."""
        return sum(count[name] * self._price(gvar, self.readers[gvar].own) for gvar, count in self.calls.items())

    def run(self) -> dict[ir.GlobalVar, Form]:
        """Move kernels from form to form while a move fits."""
        while (move := max(self._moves(), key=lambda each: each[0], default=None)) is not None:
            _, moved, form, more = move
            self.chosen |= dict.fromkeys(moved, form)
            for name, cycles in more.items():
                self.left[name] -= cycles
        return {gvar: form for gvar, form in self.chosen.items() if form != self.readers[gvar].own}

    def _moves(self) -> Iterator[tuple[float, list[ir.GlobalVar], Form, dict[str, float]]]:
        """Yield (bytes saved for the largest share of what is left, kernels, their new form, more cycles of sizes)."""
        for together in _groups(self.readers):
            for old, new in permutations(dict.fromkeys(self.chosen[gvar] for gvar in together), 2):
                moved = [gvar for gvar in together if self.chosen[gvar] == old]
                more = self._more(moved, new)
                if more is None or any(cycles > self.left[name] for name, cycles in more.items()):
                    continue
                share = max((cycles / self.left[name] for name, cycles in more.items() if cycles > 0), default=0.0)
                saved = self._stored(together) - self._stored(together, dict.fromkeys(moved, new))
                if saved > 0:
                    yield saved / (share + 1e-9), moved, new, more

    def _stored(self, together: Collection[ir.GlobalVar], instead: Mapping[ir.GlobalVar, Form] = MappingProxyType({})):
        """Return the bytes of the weights that some kernels read, each form once."""
        forms = {gvar: instead.get(gvar, self.chosen[gvar]) for gvar in together}
        found = {(each, forms[gvar]): self.readers[gvar] for gvar in together for each in self.readers[gvar].constants}
        return sum(reader.size(form) for (_, form), reader in found.items())

    def _more(self, moved: Collection[ir.GlobalVar], form: Form) -> dict[str, float] | None:
        """Return the cycles that each size takes more if kernels read another form; None if one cannot."""
        found: dict[str, float] = {}
        for gvar in moved:
            before, after = self._price(gvar, self.chosen[gvar]), self._price(gvar, form)
            if after is None:
                return None
            for name, count in self.calls[gvar].items():
                found[name] = found.get(name, 0.0) + count * (after - before)
        return found

    def _price(self, gvar: ir.GlobalVar, form: Form) -> float | None:
        if (gvar, form) not in self.prices:
            self.prices[gvar, form] = self.readers[gvar].price(form)
        return self.prices[gvar, form]


def _groups(readers: Mapping[ir.GlobalVar, FormReader]) -> list[list[ir.GlobalVar]]:
    """Return the kernels that read the same constants, directly or through others, in groups."""
    of_constant: dict[object, ir.GlobalVar] = {}
    first: dict[ir.GlobalVar, ir.GlobalVar] = {gvar: gvar for gvar in readers}

    def root(gvar: ir.GlobalVar) -> ir.GlobalVar:
        while first[gvar] != gvar:
            gvar = first[gvar]
        return gvar

    for gvar, each in readers.items():
        for constant in each.constants:
            first[root(gvar)] = root(of_constant.setdefault(constant, gvar))
    found: dict[ir.GlobalVar, list[ir.GlobalVar]] = {}
    for gvar in readers:
        found.setdefault(root(gvar), []).append(gvar)
    return list(found.values())

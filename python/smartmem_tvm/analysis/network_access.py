# SPDX-License-Identifier: Apache-2.0
"""Memory accesses of a whole network: the sum over its kernels and their launches."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi

from ..ir.graph import launches
from ..tables.targets import Row
from .access_pattern import Unmodelled
from .memory_access import Accesses, Effort, kernel_accesses


@dataclass(frozen=True)
class KernelAccesses:
    """One kernel of a network.

    Attributes
    ----------
    name : str
    launches : int
        Launches in one inference.
    accesses : Accesses or None
        Accesses of all launches together; None if they depend on data.
    reason : str
        The reason why `accesses` is None.
    """

    name: str
    launches: int
    accesses: Accesses | None
    reason: str = ""

    def as_dict(self) -> dict:
        """Plain data for JSON."""
        found = self.accesses.as_dict() if self.accesses else {"not_modelled": self.reason}
        return {"kernel": self.name, "launches": self.launches, **found}


Known = dict[int, list[tuple[tvm.tirx.PrimFunc, "Accesses | str"]]]
"""Kernels by their hash, with their accesses in one launch or the reason why they cannot be modelled."""


def network_accesses(
    mod: tvm.IRModule, row: Row, effort: Effort | None = None, known: Known | None = None
) -> list[KernelAccesses]:
    """Count the memory accesses of one inference, kernel by kernel.

    Parameters
    ----------
    mod : tvm.IRModule
        Module whose ``main`` calls scheduled PrimFuncs (``call_tir``); any pipeline may have made it.
    row : Row
        The device.
    known : dict, optional
        Kernels already modelled for the same device; the function adds to it.

    Returns
    -------
    list of KernelAccesses
        Sorted by requested lines, most first; kernels that cannot be modelled come last.
    """
    known = {} if known is None else known
    found = []
    for gvar, times in launches(mod).items():
        each = _modelled(mod[gvar].without_attr("global_symbol"), row, effort, known)
        lost = isinstance(each, str)
        found.append(KernelAccesses(gvar.name_hint, times, None if lost else each * times, each if lost else ""))
    return sorted(found, key=lambda each: each.accesses.lines if each.accesses else -1.0, reverse=True)


def total(kernels: list[KernelAccesses]) -> Accesses:
    """Return the sum over all kernels that can be modelled."""
    return sum((each.accesses for each in kernels if each.accesses), Accesses())


def _modelled(func: tvm.tirx.PrimFunc, row: Row, effort: Effort | None, known: Known) -> Accesses | str:
    alike = known.setdefault(tvm_ffi.structural_hash(func), [])
    for other, answer in alike:
        if tvm_ffi.structural_equal(func, other):
            return answer
    try:
        answer = kernel_accesses(func, row, effort)
    except Unmodelled as reason:
        answer = str(reason)
    alike.append((func, answer))
    return answer

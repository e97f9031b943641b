# SPDX-License-Identifier: Apache-2.0
"""Memory accesses of a whole network: those of its kernels, each as often as it is launched."""

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
        In one inference.
    accesses : Accesses or None
        Of all launches together; None where they depend on data.
    reason : str
        Why there are none.
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
        Its ``main`` calls scheduled PrimFuncs (``call_tir``), from whichever pipeline.
    row : Row
        The device.
    known : dict, optional
        Kernels of other modules for the same device, which are not modelled again; filled in here.

    Returns
    -------
    list of KernelAccesses
        The kernels that ask for most lines first, those that cannot be modelled last.
    """
    known = {} if known is None else known
    found = []
    for gvar, times in launches(mod).items():
        each = _modelled(mod[gvar].without_attr("global_symbol"), row, effort, known)
        lost = isinstance(each, str)
        found.append(KernelAccesses(gvar.name_hint, times, None if lost else each * times, each if lost else ""))
    return sorted(found, key=lambda each: each.accesses.lines if each.accesses else -1.0, reverse=True)


def total(kernels: list[KernelAccesses]) -> Accesses:
    """Those of all kernels that can be modelled."""
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

# SPDX-License-Identifier: Apache-2.0
"""What a schedule rule is: one per kernel family and target, dlight manner (None means: not its business)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from ...ir.kernel import Kernel, Opaque, parse
from ...target import is_cpu
from ..cpu.params import CpuParams
from .inline import inline
from .nest import index_type


class Rule(ABC):
    """A schedule for one family of kernels on one kind of target.

    Attributes
    ----------
    catch_all : bool
        The rule answers for whatever the others leave over, and is not fast.
    """

    catch_all = False

    @property
    def name(self) -> str:
        """What tables call the rule."""
        return type(self).__name__

    @property
    def family(self) -> str:
        """The kernels that it is for, in words: the first line of the class's documentation."""
        line = (type(self).__doc__ or "").strip().partition("\n")[0]
        return line.removeprefix("The rule for ").rstrip(".")

    @abstractmethod
    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        """Schedule `func` (unscheduled S-TIR) for `target`, or None if this rule does not know how."""


class NestRule(Rule):
    """A rule written as a function from the functional form of a kernel to a loop nest.

    Parameters
    ----------
    params : optional
        Tile sizes and thresholds; by default those of the target.
    """

    def __init__(self, params=None):
        self.params = params

    def apply(self, func: tirx.PrimFunc, target: Target) -> s_tir.Schedule | None:
        """Schedule `func`, or None if the target is of another kind or the kernel of another family."""
        if not self.runs_on(target):
            return None
        try:
            kernel = parse(func)
        except Opaque:
            return None
        types = {it.var.ty.dtype for stage in kernel.stages for it in stage.iters}
        if len(types) > 1:
            return None
        with index_type(str(next(iter(types), "int64"))):
            kernel = self.prepare(kernel)
            body = None if kernel is None else self.lower(kernel, self.params or self.params_of(target))
            return None if body is None else s_tir.Schedule(finished(func, kernel, body))

    @abstractmethod
    def runs_on(self, target: Target) -> bool:
        """Whether the rule is for targets of this kind."""

    @abstractmethod
    def params_of(self, target: Target):
        """The parameters of a target."""

    @abstractmethod
    def prepare(self, kernel: Kernel) -> Kernel | None:
        """The kernel as `lower` wants it: element-wise stages folded into their readers. None: another family."""

    @abstractmethod
    def lower(self, kernel: Kernel, params) -> tirx.Stmt | None:
        """The nest of a prepared kernel, or None."""


class CpuRule(NestRule):
    """A rule for ``llvm`` targets."""

    def runs_on(self, target: Target) -> bool:
        """Whether the target is a CPU."""
        return is_cpu(target)

    def params_of(self, target: Target) -> CpuParams:
        """Tile sizes and thresholds of a CPU."""
        return CpuParams.of(target)

    def prepare(self, kernel: Kernel) -> Kernel | None:
        """The kernel with element-wise stages inlined."""
        return inline(kernel)


def finished(func: tirx.PrimFunc, kernel: Kernel, body: tirx.Stmt) -> tirx.PrimFunc:
    """`func` with `body` under its root block; buffers between stages stay allocated there where still used."""
    used: list = []
    tvm_ffi.structural_walk(body, (tirx.BufferStore, lambda st: used.append(st.buffer)))
    between = [b for b in kernel.intermediates if any(b.same_as(u) for u in used)]
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=between)
    return func.with_body(s_tir.SBlockRealize([], True, root)).with_attr("tirx.noalias", True)

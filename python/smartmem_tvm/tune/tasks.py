# SPDX-License-Identifier: Apache-2.0
"""The distinct kernels of a model that are worth tuning, with their launches per inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ..ir.exchange_constants import constant_operands
from ..ir.graph import launches
from ..ir.kernel import CACHE_AXIS, KEY_AXIS
from ..pipeline import Options, prepare_passes
from ..schedule.core.rule import is_open
from .tunable_kernel import TunableKernel, with_constants, workload


@dataclass(frozen=True, eq=False)
class Task:
    """One kernel to tune.

    Attributes
    ----------
    names : tuple of str
        Names of all kernels of the model that are equal to this one; they are tuned together.
    mod : tvm.IRModule
        The workload, in the form of databases.
    kernel : TunableKernel or None
        None if no rule of ours takes a decision: then only TVM's strategies can tune it.
    launches : int
        Launches in one inference of the model; of several models, in one inference of each.
    models : mapping
        Model -> launches in one of its inferences.
    """

    names: tuple[str, ...]
    mod: tvm.IRModule
    kernel: TunableKernel | None
    launches: int
    models: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "models", self.models or {"": self.launches})


def joined(models: Mapping[str, Sequence[Task]]) -> list[Task]:
    """Join the tasks of several models; equal kernels become one task.

    The names of kernels get the name of their model as a prefix.
    """
    found: list[Task] = []
    known: dict[int, list[int]] = {}
    for model, tasks in models.items():
        for task in tasks:
            names = tuple(f"{model}/{name}" for name in task.names)
            alike = known.setdefault(tvm_ffi.structural_hash(task.mod), [])
            same = next((n for n in alike if tvm_ffi.structural_equal(found[n].mod, task.mod)), None)
            if same is None:
                alike.append(len(found))
                found.append(replace(task, names=names, models={model: task.launches}))
            else:
                one = found[same]
                launches = {**one.models, model: task.launches}
                found[same] = replace(one, names=(*one.names, *names), launches=sum(launches.values()), models=launches)
    return found


def _has_caches(func: tirx.PrimFunc) -> bool:
    """Whether a kernel writes rows of a cache, or reads one up to a length that is data: it has loops of its own."""
    return CACHE_AXIS in (func.attrs or {}) or KEY_AXIS in (func.attrs or {})


def tasks_of(graph: tvm.IRModule, target: Target, options: Options | None = None) -> list[Task]:
    """Return the tasks of a model, in the order of their names.

    Parameters
    ----------
    graph : tvm.IRModule
        Unscheduled module after the graph passes (`deploy.build.optimize`).
    target : tvm.target.Target
    options : Options, optional
        Options of the passes that prepare kernels, for example whether convolutions use the Winograd transform, whose
        kernels have nothing to tune.
    """
    with target:
        mod = tvm.transform.Sequential(prepare_passes(target, options))(graph)
    constants, counts = constant_operands(mod), launches(mod)
    found: list[tuple[list[str], tirx.PrimFunc, int]] = []
    for gvar, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
        if not (isinstance(func, tirx.PrimFunc) and is_open(func) and counts[gvar]) or _has_caches(func):
            continue
        plain = with_constants(func, constants.get(gvar, ()))
        same = next((n for n, each in enumerate(found) if tvm_ffi.structural_equal(each[1], plain)), None)
        if same is None:
            found.append(([gvar.name_hint], plain, counts[gvar]))
        else:
            names, _, count = found[same]
            found[same] = ([*names, gvar.name_hint], plain, count + counts[gvar])
    return [Task(tuple(names), workload(f), TunableKernel.of(f, target), count) for names, f, count in found]

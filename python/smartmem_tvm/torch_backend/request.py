# SPDX-License-Identifier: Apache-2.0
"""Read the options of ``torch.compile(model, backend="smartmem", options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import tvm

from ..errors import UserError
from ..ir.half import FLOAT
from ..options import Options
from ..target import device_of, parse_target

_TARGETS = {"cpu": "cpu", "cuda": "cuda"}  # kind of torch's device -> default target


@dataclass(frozen=True)
class Request:
    """The options that a user of ``torch.compile`` gives.

    Attributes
    ----------
    target : tvm.target.Target or None
        A device of this machine; None: the device of a graph's inputs.
    freeze : bool
        Whether weights are compiled in, packed for the kernels; otherwise they are inputs in torch's memory.
    options : Options
        The options of `smartmem_tvm.compile`.
    """

    target: tvm.target.Target | None = None
    freeze: bool = True
    options: Options = field(default_factory=Options)

    def target_for(self, device: str) -> tvm.target.Target | None:
        """Return the target for tensors on a kind of torch's devices; None if those are not supported.

        Raises
        ------
        UserError
            If the target does not support the chosen precision.
        """
        target = self.target
        if target is None and device in _TARGETS:
            target = parse_target(_TARGETS[device])
        if target is not None and self.options.precision != FLOAT:
            from ..requirements import require_precision  # the whole compiler, which what is kept on disk does not need

            require_precision(target, self.options.precision)
        return target


def read_request(options: Mapping[str, Any] | None = None, **others: Any) -> Request:
    """Read the arguments that ``torch.compile`` passes to a backend.

    Raises
    ------
    UserError
        If an option is unknown, a value is invalid, or this machine lacks the device.
    """
    for name in others:
        raise UserError(f"torch.compile's '{name}' is not for backend 'smartmem': leave it out, and use options.")
    given = dict(options or {})
    target, freeze = given.pop("target", None), given.pop("freeze", True)
    known = [each.name for each in fields(Options)]
    for name in sorted(given.keys() - set(known), key=str):
        raise UserError(f"backend 'smartmem' has no option '{name}': use {', '.join(['target', 'freeze', *known])}.")
    if not isinstance(freeze, bool):
        raise UserError(f"option 'freeze' of backend 'smartmem' is True or False, not {freeze!r}.")
    return Request(None if target is None else _target(target), freeze, Options(**given))


def _target(given: tvm.target.Target | str) -> tvm.target.Target:
    if not isinstance(given, str | tvm.target.Target):
        raise UserError(
            f"option 'target' of backend 'smartmem' is a name as of --target, not {type(given).__name__}: use 'cpu'."
        )
    target = parse_target(given) if isinstance(given, str) else given
    device_of(target)  # raises if this machine has none
    return target

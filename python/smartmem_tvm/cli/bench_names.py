# SPDX-License-Identifier: Apache-2.0
"""The names of ``--against``: a system, and where it is to run if that is not ``--target``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..timm_networks import has_definition
from .bench_systems import BASELINES, ON_TARGETS, SMARTMEM
from .model import TECHNIQUES

CPU = "cpu"
_WITHOUT = "no-"
_UNTUNED, _TUNED = "no-tuned", "tuned="


@dataclass(frozen=True)
class System:
    """A system to measure.

    Attributes
    ----------
    name : str
        As the user wrote it, and as tables call it.
    kind : str
        What it is: ours, or one of `bench_systems.BASELINES`.
    target : str
        What it is compiled for.
    options : dict
        Of ours: fields of `pipeline.Options` that differ from the default.
    records : str or None
        Of ours: the file of records it is compiled with, empty for none; None for that of the run.
    """

    name: str
    kind: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    records: str | None = None

    def request(self) -> dict:
        """What a child process is told of it."""
        said = {"system": self.name, "kind": self.kind, "target": self.target, "options": self.options}
        return said if self.records is None else {**said, "records": self.records}


def parse_systems(text: str, target: str) -> tuple[System, ...]:
    """Read names separated by commas.

    A name is a baseline, ``smartmem``, ``no-`` and a technique for ours without it, ``no-tuned`` for ours without
    records of tuning, or ``tuned=`` and a file for ours with those; ``@TARGET`` after it compiles for another target.
    Baselines that know no targets run on the CPU.

    Parameters
    ----------
    text : str
        ``none`` for no system at all.
    target : str
        Where a name says nothing.

    Raises
    ------
    UserError
        If there is no such system, or it runs on no other target than the CPU.
    """
    names = dict.fromkeys(name for name in text.split(",") if name and name != "none")
    return tuple(_parse(name, target) for name in names)


def is_defined(kind: str, model: Path) -> bool:
    """Whether a system can run a model of ``models/``: most read the file, torch needs the network's definition."""
    return not kind.startswith("torch-") or has_definition(model)


def _parse(text: str, target: str) -> System:
    name, at, place = text.partition("@")
    if at and not place:
        raise UserError(f"--against {text} names no target after the @; give one, as in {name}@opencl.")
    if name == SMARTMEM:
        return System(text, SMARTMEM, place or target)
    if name == _UNTUNED or (name.startswith(_TUNED) and name != _TUNED):
        return System(text, SMARTMEM, place or target, records=name.removeprefix(_UNTUNED).removeprefix(_TUNED))
    technique = name.removeprefix(_WITHOUT).replace("-", "_")
    if name.startswith(_WITHOUT) and technique in TECHNIQUES:
        return System(text, SMARTMEM, place or target, {technique: False})
    if name not in BASELINES:
        known = ", ".join((SMARTMEM, *BASELINES, f"{_WITHOUT}TECHNIQUE", _UNTUNED, f"{_TUNED}FILE"))
        raise UserError(f"--against does not know the system '{name}'; it knows {known}.")
    if name not in ON_TARGETS:
        if place and place != CPU:
            raise UserError(f"--against {text}: {name} runs on the CPU only; leave @{place} out.")
        return System(text, name, CPU)
    return System(text, name, place or target)

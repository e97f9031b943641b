# SPDX-License-Identifier: Apache-2.0
"""The systems of `bench` by name, and the names of ``--against``: a system and its target."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..timm_networks import has_definition

SMARTMEM, ONNXRUNTIME, UNSCHEDULED = "smartmem", "onnxruntime", "tvm-unscheduled"
TEXTURES, TEXTURES_MATMUL = "tvm-textures", "tvm-textures-matmul"
TORCH_MODES = {
    "torch-eager": None,
    "torch-compile": "default",
    "torch-cuda-graphs": "reduce-overhead",
    "torch-max-autotune": "max-autotune",
}
"""System -> the mode of ``torch.compile``, None to run the network as it is."""
BASELINES = {
    "tvm": "the graph of TVM's importer and five default passes, with our schedules: the gain of the graph alone; "
    "on a GPU TVM's default pipeline for it, with TVM's schedules",
    TEXTURES: "on targets with textures TVM's Adreno pipeline, mended where it fails or computes wrong",
    TEXTURES_MATMUL: "the same with TVM's schedule of matmuls for any GPU",
    UNSCHEDULED: "the same graph as TVM's code generator compiles it: plain loops on one core, seconds per run",
    ONNXRUNTIME: "ONNX Runtime's CPU provider on as many threads; its results are the reference",
    "openvino": "OpenVINO's CPU plugin in float32 [peers]",
    "iree": "IREE compiled for this CPU, data tiling on [peers]",
    "mnn": "MNN's CPU backend in float32, in an environment of its own in ~/.cache, made when first wanted",
    "torch-eager": "timm's network as it is, for the models of models/ that are timm's [peers]",
    "torch-compile": "the same through torch.compile; weights are constants (freezing) on the CPU [peers]",
    "torch-cuda-graphs": "the same in torch.compile's mode reduce-overhead [peers]",
    "torch-max-autotune": "the same in torch.compile's mode max-autotune [peers]",
}
"""Name -> description for ``--help``; those with [peers] need the packages of this extra."""
ON_TARGETS = frozenset({"tvm", TEXTURES, TEXTURES_MATMUL, *TORCH_MODES})
"""The baselines that run on any target; the others only run on the CPU."""
SERVING = frozenset({SMARTMEM, "tvm", TEXTURES, TEXTURES_MATMUL, UNSCHEDULED, ONNXRUNTIME, "openvino"})
"""The systems that serve several requests at once (`throughput`)."""

CPU = "cpu"
_WITHOUT = "no-"
_UNTUNED, _TUNED = "no-tuned", "tuned="


@dataclass(frozen=True)
class SystemSpec:
    """A system to measure.

    Attributes
    ----------
    name : str
        The user's name for it, which tables show.
    kind : str
        Ours, or one of `BASELINES`.
    target : str
        The target that it is compiled for.
    options : dict
        For ours: fields of `pipeline.Options` that differ from the default.
    records : str or None
        For ours: the file of records that it is compiled with, empty for none; None for that of the run.
    """

    name: str
    kind: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    records: str | None = None

    def request(self) -> dict:
        """Return the request for the child process."""
        said = {"system": self.name, "kind": self.kind, "target": self.target, "options": self.options}
        return said if self.records is None else {**said, "records": self.records}


def parse_systems(text: str, target: str) -> tuple[SystemSpec, ...]:
    """Read names separated by commas.

    A name is a baseline, ``smartmem``, ``no-`` and a technique for ours without it, ``no-tuned`` for ours without
    records of tuning, or ``tuned=`` and a file for ours with those records; ``@TARGET`` after it compiles for another
    target. Baselines without targets run on the CPU.

    Parameters
    ----------
    text : str
        ``none`` for no system at all.
    target : str
        The target of names without one.

    Raises
    ------
    UserError
        If a name is unknown, or its system only runs on the CPU and has another target.
    """
    names = dict.fromkeys(name for name in text.split(",") if name and name != "none")
    return tuple(_parse(name, target) for name in names)


def switches() -> dict[str, bool]:
    """Return the techniques, which are switches of `pipeline.Options`, with their defaults and in their order there."""
    from ...pipeline import Options

    return {each.name: each.default for each in fields(Options) if each.default is True}


def is_defined(kind: str, model: Path) -> bool:
    """Whether a system can run a model of ``models/``: most read the file, torch needs the network's definition."""
    return not kind.startswith("torch-") or has_definition(model)


def _parse(text: str, target: str) -> SystemSpec:
    name, at, place = text.partition("@")
    if at and not place:
        raise UserError(f"--against {text} names no target after the @; give one, as in {name}@opencl.")
    if name == SMARTMEM:
        return SystemSpec(text, SMARTMEM, place or target)
    if name == _UNTUNED or (name.startswith(_TUNED) and name != _TUNED):
        return SystemSpec(text, SMARTMEM, place or target, records=name.removeprefix(_UNTUNED).removeprefix(_TUNED))
    technique = name.removeprefix(_WITHOUT).replace("-", "_")
    if name.startswith(_WITHOUT) and technique in switches():
        return SystemSpec(text, SMARTMEM, place or target, {technique: False})
    if name not in BASELINES:
        known = ", ".join((SMARTMEM, *BASELINES, f"{_WITHOUT}TECHNIQUE", _UNTUNED, f"{_TUNED}FILE"))
        raise UserError(f"--against does not know the system '{name}'; it knows {known}.")
    if name not in ON_TARGETS:
        if place and place != CPU:
            raise UserError(f"--against {text}: {name} runs on the CPU only; leave @{place} out.")
        return SystemSpec(text, name, CPU)
    return SystemSpec(text, name, place or target)

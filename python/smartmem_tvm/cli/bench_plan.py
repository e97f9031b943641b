# SPDX-License-Identifier: Apache-2.0
"""What ``smartmem bench`` measures of a model: the systems, and the row that becomes of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from .bench_names import CPU, System, is_defined
from .bench_systems import ONNXRUNTIME, SMARTMEM, UNSCHEDULED, largest_error, prepare
from .console import plain
from .timing import usable_cores

if TYPE_CHECKING:
    from ..bench.results import Results
    from ..bench.turns import Effort

# Without schedules a run takes seconds, beside which no other technique is to be seen: ablated only by name.
_ON_REQUEST = ("schedule",)
# Fewer kernels are not always faster: its kernels are counted with and without, whichever is the default.
_BOTH_WAYS = ("fuse_attention",)


@dataclass(frozen=True)
class Target:
    """A model to measure.

    Attributes
    ----------
    name, key : str
        For people; in the result file.
    path : Path
        The ONNX file.
    apart : bool
        Measure one system after the other, because all at once take too much memory.
    compile_only : bool
        No other systems: what is of interest is how long the passes take.
    unscheduled : bool
        Compare with TVM's graph without schedules as well.
    of_suite : bool
        Leave out systems that have no definition of this model, instead of having them say so.
    """

    name: str
    key: str
    path: Path
    apart: bool = False
    compile_only: bool = False
    unscheduled: bool = False
    of_suite: bool = False


def techniques(names: Sequence[str] | None = None) -> tuple[str, ...]:
    """The switches of `pipeline.Options` to ablate, in their order there.

    Parameters
    ----------
    names : sequence of str or None
        Those wanted, in this order; None for all but those that need to be named.

    Raises
    ------
    UserError
        If one does not exist.
    """
    switches = tuple(field.name for field in _switches())
    if names is None:
        return tuple(name for name in switches if name not in _ON_REQUEST)
    for name in names:
        if name not in switches:
            raise UserError(f"--ablation does not know the technique '{name}'; it knows {', '.join(switches)}.")
    return tuple(names)


def _switches() -> list:
    from ..pipeline import Options

    return [field for field in fields(Options) if isinstance(field.default, bool)]


@dataclass(frozen=True)
class Plan:
    """What to measure of every model.

    Attributes
    ----------
    target : str
        What ours is compiled for.
    against : tuple of System
        What it is compared with (see `bench_names`).
    ablation : tuple of str or None
        Techniques to switch off together and then on again, one by one.
    shapes : mapping
        Input name -> shape, for sizes that a model leaves open.
    threads, seed, effort, patience
        Of all systems.
    devices : mapping
        Target -> what is known of its device, for each one that is not the CPU (see `runtime.device.describe`).
    profiles : Path or None
        The profile store that ours are compiled with.
    records : Path or None
        The records of tuning that ours are compiled with.
    """

    target: str
    against: tuple[System, ...]
    ablation: tuple[str, ...] | None
    shapes: Mapping[str, tuple[int, ...]]
    threads: int
    seed: int
    effort: Effort
    patience: float
    devices: Mapping[str, Mapping] = field(default_factory=dict)
    profiles: Path | None = None
    records: Path | None = None

    @property
    def on_device(self) -> bool:
        """Whether ours runs on something other than the CPU."""
        return self.target in self.devices

    def _files(self) -> dict[str, Path]:
        """What was measured earlier, by what it is."""
        named = {"profiles": self.profiles, "records": self.records}
        return {name: path for name, path in named.items() if path is not None}

    def row(self, target: Target, results: Results, again: bool = False) -> dict:
        """Measure a model, or take the row that is there; the row is in `results` afterwards."""
        from ..bench.results import fingerprint

        row = {"model": target.key, "name": target.name, "date": date.today().isoformat()}
        if not target.path.is_file():
            remedy = f"scripts/export_models.py --only {target.path.stem} makes those of the suites"
            row["error"] = f"{target.path}: no such file; {remedy}, --models says where they are."
            results.add(row)
            return row
        settings = {"systems": self.requests(target), "effort": asdict(self.effort), "apart": target.apart}
        settings["devices"] = {name: dict(facts) for name, facts in self.devices.items()}
        files = self._files() | {each.name: Path(each.records) for each in self.against if each.records}
        settings |= {name: sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
        mark = fingerprint(Path(__file__).parent.parent, target.path, settings)
        old = None if again else results.kept(target.key, mark)
        if old is not None:
            return old
        start = time.perf_counter()
        row |= {"fingerprint": mark, **self._measure(target), "seconds": time.perf_counter() - start}
        results.add(_rounded(plain(row)))
        return results.rows[target.key]

    def _measure(self, target: Target) -> dict:
        from ..bench.machine import machine
        from ..bench.measure import Method, measure

        requests = [{**each, "path": str(target.path)} for each in self.requests(target)]
        method = Method(
            prepare, largest_error, ONNXRUNTIME, self.effort, not target.apart, self.patience, self.on_device
        )
        systems = measure(requests, method)
        row = {
            "machine": machine(usable_cores(), self.devices),
            "target": self.target,
            "threads": self.threads,
            "in_turns": not target.apart,
        }
        row |= {name: path.name for name, path in self._files().items()}
        if "error" in systems[SMARTMEM]:
            return {**row, "error": systems[SMARTMEM]["error"]}
        graph = {name: systems[SMARTMEM].pop(name) for name in ("onnx_nodes", "onnx_layout_nodes")}
        row |= {**graph, "systems": systems}
        if self.ablation is not None and not target.compile_only:
            row["ablation"] = [{"added": added, "system": system} for added, system, _ in self._steps()]
        return row

    def requests(self, target: Target) -> list[dict]:
        """What the child processes are asked for; ours first, which brings the inputs."""
        wanted = {SMARTMEM: System(SMARTMEM, SMARTMEM, self.target)}
        if not target.compile_only:
            wanted |= {system.name: system for system in self._compared(target) if system.name != SMARTMEM}
            wanted |= {name: System(name, SMARTMEM, self.target, options) for _, name, options in self._steps()}
        common = {"shapes": dict(self.shapes), "threads": self.threads, "seed": self.seed, "count_only": False}
        common |= {name: str(path) for name, path in self._files().items()}
        requests = {name: {**common, **system.request()} for name, system in wanted.items()}
        if not target.compile_only and not self.on_device:
            for name, options in _other_ways():
                counted = System(name, SMARTMEM, self.target, options).request()
                requests.setdefault(name, {**common, **counted, "count_only": True})
        if self.on_device and ONNXRUNTIME in requests:
            requests[ONNXRUNTIME]["untimed"] = True  # it is here for its results: its threads would disturb the others
        return list(requests.values())

    def _compared(self, target: Target) -> list[System]:
        systems = [each for each in self.against if not target.of_suite or is_defined(each.kind, target.path)]
        if target.unscheduled and self.against and not self.on_device:
            systems.append(System(UNSCHEDULED, UNSCHEDULED, CPU))
        return systems

    def _steps(self) -> list[tuple[str | None, str, dict]]:
        """The ablation, from none of the techniques to all: what is added, the system, its options."""
        if self.ablation is None:
            return []
        defaults = {switch.name: switch.default for switch in _switches()}
        steps = []
        for count in range(len(self.ablation) + 1):
            on = {name: index < count for index, name in enumerate(self.ablation)}
            options = {name: value for name, value in on.items() if value != defaults[name]}
            added = self.ablation[count - 1] if count else None
            steps.append((added, _name(options), options))
        return steps


def _other_ways() -> list[tuple[str, dict]]:
    """The systems whose kernels are only counted: name and options."""
    ways = [{switch.name: not switch.default} for switch in _switches() if switch.name in _BOTH_WAYS]
    return [(_name(options), options) for options in ways]


def _name(options: Mapping[str, bool]) -> str:
    """What tables call ours with these options."""
    return " ".join(f"{'+' if value else '-'}{name}" for name, value in options.items()) or SMARTMEM


def _rounded(value):
    """Measured figures with four digits, which is more than they are worth; counts are whole numbers."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value

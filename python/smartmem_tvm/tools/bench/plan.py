# SPDX-License-Identifier: Apache-2.0
"""What ``smartmem bench`` measures of a model: the systems, and the row that becomes of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...json_data import plain
from ...runtime.device import describe
from ...tables.suite import SUITES
from ...target import device_of, is_gpu, parse_target
from ...tune.host import usable_cores
from .machine import machine
from .measure import Method, measure
from .names import CPU, ONNXRUNTIME, SMARTMEM, UNSCHEDULED, SystemSpec, is_defined, switches
from .results import Results, fingerprint, rounded
from .systems import largest_error, prepare
from .throughput import RequestEffort
from .turns import RunEffort

# Without schedules a run takes seconds, beside which no other technique is to be seen: ablated only by name.
_ON_REQUEST = ("schedule",)


@dataclass(frozen=True)
class Network:
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


def networks_of(suite: str, names: Sequence[str], folder: Path, large: bool, apart: bool) -> list[Network]:
    """The networks of a suite whose models are in a folder: those named, or all of one size.

    Raises
    ------
    UserError
        If a name is not in the suite.
    """
    entries = SUITES[suite]
    known = [entry.file for entry in entries]
    for name in names:
        if name not in known:
            raise UserError(f"Suite {suite} has no model '{name}'; it has {', '.join(known)}.")
    return [
        Network(e.name, e.file, folder / f"{e.file}.onnx", e.large or apart, e.compile_only, e.unscheduled, True)
        for e in entries
        if (e.file in names if names else e.large == large)
    ]


def devices_of(targets: Iterable[str]) -> dict[str, dict]:
    """What is known of the device of each target that is not the CPU.

    Raises
    ------
    UserError
        If there is no such target, or this machine has no device for it.
    """
    parsed = {text: parse_target(text) for text in targets if text != CPU}
    return {text: describe(device_of(target)) for text, target in parsed.items() if is_gpu(target)}


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
    known = switches()
    if names is None:
        return tuple(name for name in known if name not in _ON_REQUEST)
    for name in names:
        if name not in known:
            raise UserError(f"--ablation does not know the technique '{name}'; it knows {', '.join(known)}.")
    return tuple(names)


@dataclass(frozen=True)
class Plan:
    """What to measure of every model.

    Attributes
    ----------
    target : str
        What ours is compiled for.
    against : tuple of SystemSpec
        What it is compared with (see `names`).
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
    batch : int or None
        The first dimension of all inputs; None for that of the model.
    values : mapping
        Input name -> numbers, for inputs that have one value for good.
    """

    target: str
    against: tuple[SystemSpec, ...]
    ablation: tuple[str, ...] | None
    shapes: Mapping[str, tuple[int, ...]]
    threads: int
    seed: int
    effort: RunEffort | RequestEffort
    patience: float
    devices: Mapping[str, Mapping] = field(default_factory=dict)
    profiles: Path | None = None
    records: Path | None = None
    batch: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def on_device(self) -> bool:
        """Whether ours runs on something other than the CPU."""
        return self.target in self.devices

    @property
    def serves(self) -> bool:
        """Whether requests are measured, of which there are several at once."""
        return isinstance(self.effort, RequestEffort)

    def _files(self) -> dict[str, Path]:
        """What was measured earlier, by what it is."""
        named = {"profiles": self.profiles, "records": self.records}
        return {name: path for name, path in named.items() if path is not None}

    def row(self, network: Network, results: Results, again: bool = False) -> dict:
        """Measure a model, or take the row that is there; the row is in `results` afterwards."""
        row = {"model": network.key, "name": network.name, "date": date.today().isoformat()}
        if not network.path.is_file():
            remedy = f"scripts/export_models.py --only {network.path.stem} makes those of the suites"
            row["error"] = f"{network.path}: no such file; {remedy}, --models says where they are."
            results.add(row)
            return row
        settings = {"systems": self.requests(network), "effort": asdict(self.effort), "apart": network.apart}
        settings["devices"] = {name: dict(facts) for name, facts in self.devices.items()}
        files = self._files() | {each.name: Path(each.records) for each in self.against if each.records}
        settings |= {name: sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
        mark = fingerprint(Path(__file__).parents[2], network.path, settings)
        old = None if again else results.kept(network.key, mark)
        if old is not None:
            return old
        start = time.perf_counter()
        row |= {"fingerprint": mark, **self._measure(network), "seconds": time.perf_counter() - start}
        results.add(rounded(plain(row)))
        return results.rows[network.key]

    def _measure(self, network: Network) -> dict:
        requests = [{**each, "path": str(network.path)} for each in self.requests(network)]
        method = Method(
            prepare, largest_error, ONNXRUNTIME, self.effort, not network.apart, self.patience, self.on_device
        )
        systems = measure(requests, method)
        row = {
            "machine": machine(usable_cores(), self.devices),
            "target": self.target,
            "threads": self.threads,
            "in_turns": not network.apart,
        }
        row |= {name: path.name for name, path in self._files().items()}
        row |= {"batch": self.batch} if self.batch else {}
        row |= {"streams": self.effort.streams} if self.serves else {}
        # Without ONNX Runtime nobody knows whether a batch gives what its samples give.
        for name in (SMARTMEM, ONNXRUNTIME) if self.batch else (SMARTMEM,):
            if "error" in systems.get(name, {}):
                return {**row, "error": systems[name]["error"]}
        graph = {name: systems[SMARTMEM].pop(name) for name in ("onnx_nodes", "onnx_layout_nodes")}
        row |= {**graph, "systems": systems}
        if self.ablation is not None and not network.compile_only:
            row["ablation"] = [{"added": added, "system": system} for added, system, _ in self._steps()]
        return row

    def requests(self, network: Network) -> list[dict]:
        """What the child processes are asked for; ours first, which brings the inputs."""
        wanted = {SMARTMEM: SystemSpec(SMARTMEM, SMARTMEM, self.target)}
        if not network.compile_only:
            wanted |= {system.name: system for system in self._compared(network) if system.name != SMARTMEM}
            wanted |= {name: SystemSpec(name, SMARTMEM, self.target, options) for _, name, options in self._steps()}
        common = {"shapes": dict(self.shapes), "threads": self.threads, "seed": self.seed}
        common |= {name: str(path) for name, path in self._files().items()}
        common |= {"batch": self.batch} if self.batch else {}
        common |= {"values": dict(self.values)} if self.values else {}
        common |= {"streams": self.effort.streams} if self.serves else {}
        requests = {name: {**common, **system.request()} for name, system in wanted.items()}
        if self.on_device and ONNXRUNTIME in requests:
            requests[ONNXRUNTIME]["untimed"] = True  # it is here for its results: its threads would disturb the others
        return list(requests.values())

    def _compared(self, network: Network) -> list[SystemSpec]:
        systems = [each for each in self.against if not network.of_suite or is_defined(each.kind, network.path)]
        if network.unscheduled and self.against and not self.on_device and not self.serves:
            systems.append(SystemSpec(UNSCHEDULED, UNSCHEDULED, CPU))
        return systems

    def _steps(self) -> list[tuple[str | None, str, dict]]:
        """The ablation, from none of the techniques to all: what is added, the system, its options."""
        if self.ablation is None:
            return []
        defaults = switches()
        steps = []
        for count in range(len(self.ablation) + 1):
            on = {name: index < count for index, name in enumerate(self.ablation)}
            options = {name: value for name, value in on.items() if value != defaults[name]}
            added = self.ablation[count - 1] if count else None
            steps.append((added, _name(options), options))
        return steps


def _name(options: Mapping[str, bool]) -> str:
    """What tables call ours with these options."""
    return " ".join(f"{'+' if value else '-'}{name}" for name, value in options.items()) or SMARTMEM

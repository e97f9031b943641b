# SPDX-License-Identifier: Apache-2.0
"""Plan the measurements of ``smartmem bench`` on a model: select the systems and make the row of results."""

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
from .machine_facts import machine
from .measure_systems import Method, Processes, measure
from .names import CPU, ONNXRUNTIME, SMARTMEM, UNSCHEDULED, SystemSpec, is_defined, switches
from .results import Results, fingerprint, rounded
from .systems import largest_error, prepare
from .throughput import RequestEffort
from .turns import RunEffort

# Without schedules a run takes seconds, which hides the effect of any other technique: ablated only by name.
_ON_REQUEST = ("schedule",)


@dataclass(frozen=True)
class Network:
    """A model to measure.

    Attributes
    ----------
    name, key : str
        The name for people, and the key in the result file.
    path : Path
        The ONNX file.
    apart : bool
        Whether systems are measured one after the other because all at once take too much memory.
    compile_only : bool
        Whether only the time of the passes is measured, without other systems.
    unscheduled : bool
        Whether TVM's graph without schedules is measured, too.
    of_suite : bool
        Whether systems without a definition of this model are skipped instead of reporting an error.
    shapes : mapping or None
        Input name -> shape, if the model is one size of several; None for the shapes of the plan.
    ranges : mapping or None
        Input name -> its dimensions (`frontend.open_dimension.Wanted`), if the size is one of an open dimension, for
        which ours is compiled once.
    """

    name: str
    key: str
    path: Path
    apart: bool = False
    compile_only: bool = False
    unscheduled: bool = False
    of_suite: bool = False
    shapes: Mapping[str, tuple[int, ...]] | None = None
    ranges: Mapping[str, Sequence] | None = None


def networks_of(suite: str, names: Sequence[str], folder: Path, large: bool, apart: bool) -> list[Network]:
    """Return the networks of a suite whose models are in a folder: those named, or all of one size.

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
    """Return the description of the device of each target other than the CPU.

    Raises
    ------
    UserError
        If a target does not exist, or this machine has no device for it.
    """
    parsed = {text: parse_target(text) for text in targets if text != CPU}
    return {text: describe(device_of(target)) for text, target in parsed.items() if is_gpu(target)}


def techniques(names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the switches of `pipeline.Options` to ablate, in their order there.

    Parameters
    ----------
    names : sequence of str or None
        The switches, in this order; None for all except those ablated only by name.

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
    """Settings of the measurements of every model.

    Attributes
    ----------
    target : str
        The target that ours is compiled for.
    against : tuple of SystemSpec
        The systems that it is compared with (see `names`).
    ablation : tuple of str or None
        Techniques that are switched off together and then on again, one by one.
    shapes : mapping
        Input name -> shape, for sizes that a model leaves open.
    threads, seed, effort, patience
        Settings of all systems.
    devices : mapping
        Target -> description of its device, for each one other than the CPU (see `runtime.device.describe`).
    profiles : Path or None
        The profile store that ours are compiled with.
    records : Path or None
        The records of tuning that ours are compiled with.
    batch : int or None
        The first dimension of all inputs; None for that of the model.
    values : mapping
        Input name -> numbers, for inputs with a fixed value.
    caches : bool or mapping
        What ours keeps in place, as in `Options`.
    rows : int or None
        Rows of caches that grow in the file.
    processes : Processes
        Of systems that are compiled once for several rows; closed by the caller.
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
    caches: bool | Mapping[str, str] = False
    rows: int | None = None
    processes: Processes = field(default_factory=Processes)

    @property
    def on_device(self) -> bool:
        """Whether ours runs on a device other than the CPU."""
        return self.target in self.devices

    @property
    def serves(self) -> bool:
        """Whether several requests at once are measured."""
        return isinstance(self.effort, RequestEffort)

    def _files(self) -> dict[str, Path]:
        """Return the files of earlier measurements by their kind."""
        named = {"profiles": self.profiles, "records": self.records}
        return {name: path for name, path in named.items() if path is not None}

    def row(self, network: Network, results: Results, again: bool = False) -> dict:
        """Measure a model, or take the existing row; the row is in `results` afterwards."""
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
        systems = measure(requests, method, self.processes)
        row = {
            "machine": machine(usable_cores(), self.devices),
            "target": self.target,
            "threads": self.threads,
            "in_turns": not network.apart,
        }
        row |= {name: path.name for name, path in self._files().items()}
        row |= {"batch": self.batch} if self.batch else {}
        row |= {"streams": self.effort.streams} if self.serves else {}
        # Only ONNX Runtime checks that a batch gives the same results as its samples.
        for name in (SMARTMEM, ONNXRUNTIME) if self.batch else (SMARTMEM,):
            if "error" in systems.get(name, {}):
                return {**row, "error": systems[name]["error"]}
        graph = {name: systems[SMARTMEM].pop(name) for name in ("onnx_nodes", "onnx_layout_nodes")}
        row |= {**graph, "systems": systems}
        if self.ablation is not None and not network.compile_only:
            row["ablation"] = [{"added": added, "system": system} for added, system, _ in self._steps()]
        return row

    def requests(self, network: Network) -> list[dict]:
        """Return the requests for the child processes; ours is the first and supplies the inputs."""
        wanted = {SMARTMEM: SystemSpec(SMARTMEM, SMARTMEM, self.target)}
        if not network.compile_only:
            wanted |= {system.name: system for system in self._compared(network) if system.name != SMARTMEM}
            wanted |= {name: SystemSpec(name, SMARTMEM, self.target, options) for _, name, options in self._steps()}
        shapes = self.shapes if network.shapes is None else network.shapes
        common = {"shapes": dict(shapes), "threads": self.threads, "seed": self.seed}
        common |= {name: str(path) for name, path in self._files().items()}
        common |= {"batch": self.batch} if self.batch else {}
        common |= {"values": dict(self.values)} if self.values else {}
        common |= {"caches": self.caches} if self.caches else {}
        common |= {"rows": self.rows} if self.rows is not None else {}
        common |= {"streams": self.effort.streams} if self.serves else {}
        ranges = {"ranges": dict(network.ranges)} if network.ranges is not None else {}
        of_ours = {name for name, system in wanted.items() if system.kind == SMARTMEM}
        requests = {
            name: {**common, **(ranges if name in of_ours else {}), **system.request()}
            for name, system in wanted.items()
        }
        if self.on_device and ONNXRUNTIME in requests:
            requests[ONNXRUNTIME]["untimed"] = True  # only its results are needed; its threads would disturb the others
        return list(requests.values())

    def _compared(self, network: Network) -> list[SystemSpec]:
        systems = [each for each in self.against if not network.of_suite or is_defined(each.kind, network.path)]
        if network.unscheduled and self.against and not self.on_device and not self.serves:
            systems.append(SystemSpec(UNSCHEDULED, UNSCHEDULED, CPU))
        return systems

    def _steps(self) -> list[tuple[str | None, str, dict]]:
        """Return the ablation, from none of the techniques to all: the technique added, the system, its options."""
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
    """Return the name of ours with these options in tables."""
    return " ".join(f"{'+' if value else '-'}{name}" for name, value in options.items()) or SMARTMEM

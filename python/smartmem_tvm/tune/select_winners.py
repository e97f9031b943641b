# SPDX-License-Identifier: Apache-2.0
"""Which winners of a file of records a model is compiled with, and why the others do not count.

A run counts if its kernels would be the same ones and their times say something here: TVM, the version of the
schedules, the target and the number of threads are the same (what is fastest on one thread may leave nothing to do
for a second one, and made Swin-T half as fast on four) and, on a GPU, so is the device: one description fits many
GPUs, as it has no figures of their caches. The CPU's instruction set is in its target; another CPU with the same one
counts. So does another driver, and another number of cores where there is no winner for the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tvm import s_tir

from .record_lines import Selected, is_faster, kind_of, of_runs, without_cores
from .records import database

NO_FASTER = "no faster than the untuned kernel"
NO_RECORD = "the record is missing in the file"


@dataclass(frozen=True)
class Winner:
    """A winner that counts.

    Attributes
    ----------
    record : str
        The key of the candidate.
    seconds, untuned : float
        Of a launch of the tuned and of the untuned kernel, measured in turns.
    run : mapping
        Who found it: ``strategy``, ``date``, ``device``, ``driver``, ``threads``, as far as the file tells.
    """

    record: str
    seconds: float
    untuned: float
    run: Mapping

    @property
    def gain(self) -> float:
        """How many times faster it was."""
        return self.untuned / self.seconds


@dataclass(frozen=True)
class Chosen:
    """What there is in a file for some circumstances.

    Attributes
    ----------
    winners : dict
        Key of a workload -> its winner.
    database : s_tir.meta_schedule.database.MemoryDatabase
        Their records.
    left_out : dict
        Key of a workload -> why none of its winners counts.
    """

    winners: dict[str, Winner]
    database: s_tir.meta_schedule.database.MemoryDatabase
    left_out: dict[str, str]


def choose(lines: Iterable[Mapping], where: Mapping, device: str | None = None) -> Chosen:
    """Choose among the lines of a file.

    Parameters
    ----------
    lines : iterable of mapping
        See `record_lines`.
    where : mapping
        `record_lines.circumstances` of what is compiled; threads None, if another machine decides about them.
    device : str, optional
        The name of the GPU; without, any will do.
    """
    lines = list(lines)
    runs = {line["run"]: line for line in lines if kind_of(line) == "target"}
    refused = {key: _refusal(run, where, device) for key, run in runs.items()}
    known = of_runs(lines, lambda run: refused[run["run"]] is None)
    best: dict[str, Mapping] = {}
    left_out: dict[str, str] = {}
    for line in (each for each in lines if kind_of(each) == "winner" and each["run"] in runs):
        key, reason = line["workload"], refused[line["run"]] or _problem(line, known)
        if reason is not None:
            left_out[key] = reason
        elif key not in best or _likeness(line, runs, where) >= _likeness(best[key], runs, where):
            best[key] = line
    slow = {key for key, line in best.items() if not is_faster(line)}
    left_out = {**{key: why for key, why in left_out.items() if key not in best}, **dict.fromkeys(slow, NO_FASTER)}
    winners = {
        key: Winner(line["winner"], line["seconds"], line["untuned"], runs[line["run"]])
        for key, line in best.items()
        if key not in slow
    }
    chosen = {winner.record for winner in winners.values()}
    known.records = {key: line for key, line in known.records.items() if key in chosen}
    return Chosen(winners, database(known, where), left_out)


def _problem(winner: Mapping, known: Selected) -> str | None:
    if winner["winner"] in known.wrong:
        return "its outputs were wrong"
    there = winner["winner"] in known.records and winner["workload"] in known.workloads
    return None if there else NO_RECORD


def _likeness(winner: Mapping, runs: Mapping[str, Mapping], where: Mapping) -> bool:
    """Whether the cores were as many as now; of equals, the last one counts."""
    return runs[winner["run"]]["target"] == where["target"]


def _refusal(run: Mapping, where: Mapping, device: str | None) -> str | None:
    """Why what a run has found does not count."""
    if run["tvm"] != where["tvm"]:
        return f"found with TVM {run['tvm']}, and this is {where['tvm']}"
    if run["schedules"] != where["schedules"]:
        return f"found for version {run['schedules']} of the schedules, and these are version {where['schedules']}"
    theirs, mine = without_cores(run["target"]), without_cores(where["target"])
    if theirs != mine:
        limits = " with other limits" if _name(theirs) == _name(mine) else ""
        return f"found for target {_name(theirs)}{limits}"
    if device is not None and run.get("device", device) != device:
        return f"found on {run['device']}, and this is {device}"
    if where["threads"] is not None and run["threads"] != where["threads"]:
        return f"found with {_threads(run)}, and this is for {_threads(where)}"
    return None


def _threads(run: Mapping) -> str:
    return f"{run['threads']} thread{'s' * (run['threads'] != 1)}"


def _name(target: Mapping) -> str:
    """A target in few words."""
    words = [str(target[name]) for name in ("kind", "mcpu", "arch", "model") if target.get(name)]
    return " ".join([*words, *(["with textures"] if "texture" in target.get("keys", ()) else [])])

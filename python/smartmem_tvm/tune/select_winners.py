# SPDX-License-Identifier: Apache-2.0
"""Select the winners in a file of records for compiling a model, and give the reasons why others do not count.

A run counts if its kernels would be the same and its times apply here: TVM, the version of the schedules, the target
and the number of threads must be the same, and on a GPU also the device. A schedule that is fastest on one thread may
leave no work for a second one; it made Swin-T half as fast on four. One target fits many GPUs, as it has no figures of
their caches. The target of a CPU has its instruction set; another CPU with the same one counts. Another driver counts
too, and so does another number of cores if there is no winner for the same number.

A measured winner counts before a modelled one, and if it was no faster, the kernel stays as it is: prices of a model
(`record_lines.judge_of`) count only for kernels of which nothing was measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tvm import s_tir

from .record_lines import Selected, is_faster, judge_of, kind_of, of_runs, without_cores
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
        Seconds of a launch of the tuned and of the untuned kernel, measured in turns.
    run : mapping
        The run that found it: ``strategy``, ``date``, ``device``, ``driver``, ``threads``, ``judge``, if the file has
        them.
    """

    record: str
    seconds: float
    untuned: float
    run: Mapping

    @property
    def gain(self) -> float:
        """Speedup over the untuned kernel."""
        return self.untuned / self.seconds


@dataclass(frozen=True)
class Chosen:
    """The winners of a file for some circumstances.

    Attributes
    ----------
    winners : dict
        Key of a workload -> its winner.
    database : s_tir.meta_schedule.database.MemoryDatabase
        The records of the winners.
    left_out : dict
        Key of a workload -> the reason why none of its winners counts.
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
        `record_lines.circumstances` of the compilation; threads are None if another machine decides about them.
    device : str, optional
        The name of the GPU; without it, any device counts.
    """
    lines = list(lines)
    runs = {line["run"]: line for line in lines if kind_of(line) == "target"}
    refused = {key: _refusal(run, where, device) for key, run in runs.items()}
    known = of_runs(lines, lambda run: refused[run["run"]] is None)
    measured = of_runs(lines, lambda run: refused[run["run"]] is None and judge_of(run) is None)
    failed = {key for key, line in measured.records.items() if not line["seconds"]}
    best: dict[str, Mapping] = {}
    left_out: dict[str, str] = {}
    for line in (each for each in lines if kind_of(each) == "winner" and each["run"] in runs):
        key, reason = line["workload"], refused[line["run"]] or _problem(line, known, failed)
        if reason is not None:
            left_out[key] = reason
        elif key not in best or _rank(line, runs, where) >= _rank(best[key], runs, where):
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


def _problem(winner: Mapping, known: Selected, failed: Collection[str]) -> str | None:
    if winner["winner"] in known.wrong:
        return "its outputs were wrong"
    if winner["winner"] in failed:
        return "it failed when it was measured"
    there = winner["winner"] in known.records and winner["workload"] in known.workloads
    return None if there else NO_RECORD


def _rank(winner: Mapping, runs: Mapping[str, Mapping], where: Mapping) -> tuple[bool, bool]:
    """Whether a winner was measured, and with the present number of cores; in a tie, the caller takes the last one."""
    run = runs[winner["run"]]
    return judge_of(run) is None, run["target"] == where["target"]


def _refusal(run: Mapping, where: Mapping, device: str | None) -> str | None:
    """Return the reason why a run does not count, None if it does."""
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
    """Describe a target in a few words."""
    words = [str(target[name]) for name in ("kind", "mcpu", "arch", "model") if target.get(name)]
    return " ".join([*words, *(["with textures"] if "texture" in target.get("keys", ()) else [])])

# SPDX-License-Identifier: Apache-2.0
"""The lines of a file of tuning records: their format, selection, check, merge and pruning.

A line is of one of five kinds; a line that refers to others comes after them::

    {"run": "4f..", "date": .., "command": .., "target": {..}, "device": .., "driver": .., "threads": 2, "tvm": ..}
        and "judge": ".." if nothing ran: the model that priced the candidates
    {"workload": "9c1f..", "module": "eNq.."}                   a kernel as MetaSchedule's JSON, by zlib and in base64
    {"record": "a0..", "workload": .., "run": .., "trace": .., "seconds": [..], "arguments": [..]}
    {"winner": "a0..", "workload": .., "run": .., "seconds": .., "untuned": ..}
    {"wrong": "a0..", "workload": .., "run": .., "error": ..}

A record without seconds is a candidate that failed by its own fault; failures of the machine have no line. Models are
compiled with winners only: each was compared with the untuned kernel, and counts if it was faster. A wrong candidate is
never tried again. Seconds of a run with a judge are modelled, and are never mixed with measured ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import json_data
from .._version import SCHEDULES, installed_version
from ..errors import UserError
from . import json_lines

_CIRCUMSTANCES = ("target", "threads", "tvm", "schedules")
# Kind of a line (a field that only such lines have) -> its required fields.
_TIME = json_data.is_positive
_FIELDS = {
    "module": {"workload": str, "module": object},
    "trace": {"record": str, "workload": str, "run": str, "seconds": [_TIME], "arguments": list, "trace": object},
    "winner": {"winner": str, "workload": str, "run": str, "seconds": _TIME, "untuned": _TIME},
    "wrong": {"wrong": str, "workload": str, "run": str, "error": object},
    "target": {
        **dict.fromkeys(("run", "date", "command", "tvm", "device?", "driver?", "strategy?", "judge?"), str),
        "target": lambda target: json_data.fits(target, {"keys?": [str]}),
        "threads": (int, None),
        "schedules": int,
    },
}
_REFERENCES = {"trace": ("workload", "run"), "winner": ("record", "run"), "wrong": ("record", "run")}

_FASTER = 1.01  # least speedup; a smaller one is noise


def circumstances(target: Mapping, threads: int | None) -> dict:
    """Return the circumstances that a time depends on, besides the kernel and the device.

    Parameters
    ----------
    target : mapping
        The target, as TVM exports it.
    threads : int or None
        Threads of the CPU that kernels run on; None on a GPU.
    """
    where = (json.loads(json.dumps(target)), threads, installed_version("apache-tvm"), SCHEDULES)
    return dict(zip(_CIRCUMSTANCES, where, strict=True))


def candidate_key(workload: str, trace: object) -> str:
    """Return the key of a candidate, which is the same in every run."""
    return hashlib.sha256(json.dumps([workload, trace]).encode()).hexdigest()[:16]


def kind_of(line: Mapping) -> str | None:
    """Return the kind of a line: the name of its characteristic field; None if unknown, or if a field is wrong."""
    kind = next((name for name in _FIELDS if name in line), None)
    return kind if kind is not None and json_data.fits(line, _FIELDS[kind]) else None


def judge_of(run: Mapping) -> str | None:
    """Return the model that priced the candidates of a run; None if they were measured."""
    return run.get("judge")


def is_faster(winner: Mapping) -> bool:
    """Whether a winner is faster than the untuned kernel."""
    return winner["untuned"] >= _FASTER * winner["seconds"]


@dataclass
class Selected:
    """The lines of a file that were written in the same circumstances.

    Attributes
    ----------
    workloads : dict
        Key -> the kernel, as text (`module_text`).
    records : dict
        Key -> the last record of this candidate, in the order of the file.
    winners : dict
        Key of a workload -> the last line of its winner, unless that is wrong.
    wrong : set
        Keys of wrong candidates.
    settled : set
        Keys of workloads whose winner was chosen among all of their records.
    """

    workloads: dict[str, str] = field(default_factory=dict)
    records: dict[str, dict] = field(default_factory=dict)
    winners: dict[str, dict] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)


def selected(lines: Iterable[Mapping], where: Mapping, device: str | None = None, judge: str | None = None) -> Selected:
    """Return the lines that count in some circumstances.

    Parameters
    ----------
    where : mapping
        `circumstances`; the number of cores of a target does not matter, as the number of threads is given separately.
    device : str, optional
        The only device whose times count; without it, those of any device count.
    judge : str, optional
        The only judge whose prices count (`judge_of`); without it, only measured times do.
    """

    def counts(run: Mapping) -> bool:
        there = device is None or run.get("device", device) == device
        return there and judge_of(run) == judge and _alike(run, where)

    return of_runs(lines, counts)


def modelled(lines: Iterable[Mapping], where: Mapping) -> Selected:
    """Return the lines of all judges in some circumstances, whose seconds are prices."""
    return of_runs(lines, lambda run: judge_of(run) is not None and _alike(run, where))


def check_is_records(path: Path) -> None:
    """Refuse to change a file with other content than records; an empty or missing file is accepted.

    Raises
    ------
    UserError
        If the file has no line of tuning records, and no beginning of one.
    """
    if not path.exists():
        return
    lines, damaged = json_lines.read(path)
    only_begun = len(damaged) == 1 and damaged[0].torn and not lines and path.read_bytes().startswith(b'{"run"')
    if (lines or damaged) and not only_begun and not any(map(kind_of, lines)):
        raise UserError(f"{path} has no line of tuning records, and is left as it is; name another file.")


def of_runs(lines: Iterable[Mapping], counts: Callable[[Mapping], bool]) -> Selected:
    """Return the lines of the runs for which `counts` holds."""
    found, runs = Selected(), set()
    for line in lines:
        kind = kind_of(line)
        if kind == "target":
            if counts(line):
                runs.add(line["run"])
        elif kind == "module":
            found.workloads.setdefault(line["workload"], line["module"])
        elif kind is not None and line["run"] in runs and line["workload"] in found.workloads:
            _take(found, kind, line)
    found.winners = {key: line for key, line in found.winners.items() if line["winner"] not in found.wrong}
    return found


def _alike(run: Mapping, where: Mapping) -> bool:
    same = all(run[name] == where[name] for name in _CIRCUMSTANCES if name != "target")
    return same and without_cores(run["target"]) == without_cores(where["target"])


def without_cores(target: Mapping) -> dict:
    """Return a target without its number of cores, on which its kernels do not depend."""
    return {name: value for name, value in target.items() if name != "num-cores"}


def _take(found: Selected, kind: str, line: Mapping) -> None:
    if kind == "trace":
        found.records[line["record"]] = dict(line)
        found.settled.discard(line["workload"])
    elif kind == "wrong":
        found.wrong.add(line["wrong"])
    else:
        found.winners[line["workload"]] = dict(line)
        found.settled.add(line["workload"])


@dataclass(frozen=True)
class RecordCheck:
    """The content of a file of records.

    Attributes
    ----------
    counts : dict
        Number of lines of each kind.
    problems : list of str
        One sentence for each unusable line.
    """

    counts: dict[str, int]
    problems: list[str]


def check(path: Path) -> RecordCheck:
    """Check all lines of a file.

    Raises
    ------
    UserError
        If the file cannot be read.
    """
    lines, damaged = json_lines.read(path)
    found, _ = sift(lines)
    torn = [f"Line {each.line} {'is torn' if each.torn else 'is no JSON object'}." for each in damaged]
    return RecordCheck(found.counts, torn + found.problems)


def sift(lines: Iterable[dict]) -> tuple[RecordCheck, list[dict]]:
    """Return the check of some lines, and the usable lines."""
    problems: list[str] = []
    known: dict[str, set[str]] = {"workload": set(), "run": set(), "record": set()}
    counts = {"runs": 0, "kernels": 0, "candidates": 0, "failed": 0, "winners": 0, "wrong": 0}
    kept = []
    for line in lines:
        problem = _problem(line, known)
        if problem:
            problems.append(problem)
        else:
            kept.append(line)
            _count(line, counts)
    return RecordCheck(counts, problems), kept


def _problem(line: Mapping, known: dict[str, set[str]]) -> str | None:
    """Return the reason why a line is unusable, None if it is usable; a usable line adds its keys to `known`."""
    kind = kind_of(line)
    if kind is None:
        return f"A line with the fields {', '.join(sorted(map(str, line)))} is no run, kernel, record or verdict."
    for name in _REFERENCES.get(kind, ()):
        key = line[kind] if name == "record" else line[name]
        if key not in known[name]:
            return f"A {'record' if kind == 'trace' else kind} names {name} {key}, which no line before it describes."
    defines = {"module": "workload", "trace": "record", "target": "run"}.get(kind)
    if defines is not None:
        known[defines].add(line[defines])
    return None


def _count(line: Mapping, counts: dict[str, int]) -> None:
    kind = kind_of(line)
    name = {"target": "runs", "module": "kernels", "trace": "candidates", "winner": "winners", "wrong": "wrong"}[kind]
    counts[name] += 1
    counts["failed"] += kind == "trace" and not line["seconds"]


def merge(files: Sequence[Iterable[dict]]) -> list[dict]:
    """Return the distinct lines of several files."""
    found: dict[str, dict] = {}
    for lines in files:
        for line in lines:
            found.setdefault(json.dumps(line, sort_keys=True), line)
    return list(found.values())


def prune(lines: Sequence[dict], keep: int) -> list[dict]:
    """Keep only the fastest records of each kernel and run; winners, wrong candidates and runs stay.

    Parameters
    ----------
    keep : int
        Number of records to keep for a kernel in a run.
    """
    groups: dict[tuple[str, str], list[dict]] = {}
    for line in lines:
        if kind_of(line) == "trace" and line["seconds"]:
            groups.setdefault((line["workload"], line["run"]), []).append(line)
    fast = {id(line) for group in groups.values() for line in sorted(group, key=_median)[:keep]}
    named = {line[kind] for line in lines if (kind := kind_of(line)) in ("winner", "wrong")}
    kept = [each for each in lines if kind_of(each) != "trace" or id(each) in fast or each["record"] in named]
    used = {line["workload"] for line in kept if kind_of(line) == "trace"}
    return [line for line in kept if kind_of(line) != "module" or line["workload"] in used]


def _median(line: Mapping) -> float:
    times = sorted(line["seconds"])
    return times[len(times) // 2]

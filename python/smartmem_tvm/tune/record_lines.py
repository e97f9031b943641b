# SPDX-License-Identifier: Apache-2.0
"""The lines of a file of tuning records: which belong together, which count here, which are damaged or wrong.

A line is one of five things; those that refer to others come after them::

    {"run": "4f..", "date": .., "command": .., "target": {..}, "device": .., "driver": .., "threads": 2, "tvm": ..}
    {"workload": "9c1f..", "module": "eNq.."}                   a kernel as MetaSchedule's JSON, by zlib and in base64
    {"record": "a0..", "workload": .., "run": .., "trace": .., "seconds": [..], "arguments": [..]}
    {"winner": "a0..", "workload": .., "run": .., "seconds": .., "untuned": ..}
    {"wrong": "a0..", "workload": .., "run": .., "error": ..}

A record without seconds is a candidate that failed; what the machine failed at has no line. Only winners are what
models are compiled with: each was compared with the untuned kernel, and counts if it was faster. What is wrong is never
tried again.
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
# What a line is -> what it has to have.
_TIME = json_data.is_positive
_FIELDS = {
    "module": {"workload": str, "module": object},
    "trace": {"record": str, "workload": str, "run": str, "seconds": [_TIME], "arguments": list, "trace": object},
    "winner": {"winner": str, "workload": str, "run": str, "seconds": _TIME, "untuned": _TIME},
    "wrong": {"wrong": str, "workload": str, "run": str, "error": object},
    "target": {
        **dict.fromkeys(("run", "date", "command", "tvm", "device?", "driver?", "strategy?"), str),
        "target": lambda target: json_data.fits(target, {"keys?": [str]}),
        "threads": (int, None),
        "schedules": int,
    },
}
_REFERENCES = {"trace": ("workload", "run"), "winner": ("record", "run"), "wrong": ("record", "run")}

_FASTER = 1.01  # times; less is noise


def circumstances(target: Mapping, threads: int | None) -> dict:
    """What a time depends on besides the kernel and the device.

    Parameters
    ----------
    target : mapping
        As TVM exports it.
    threads : int or None
        Of the CPU that kernels run on; None on a GPU.
    """
    where = (json.loads(json.dumps(target)), threads, installed_version("apache-tvm"), SCHEDULES)
    return dict(zip(_CIRCUMSTANCES, where, strict=True))


def candidate_key(workload: str, trace: object) -> str:
    """The key of a candidate: the same for whoever tries it."""
    return hashlib.sha256(json.dumps([workload, trace]).encode()).hexdigest()[:16]


def kind_of(line: Mapping) -> str | None:
    """What a line is: the name of the field that only such lines have; None if it is nothing, or a field is amiss."""
    kind = next((name for name in _FIELDS if name in line), None)
    return kind if kind is not None and json_data.fits(line, _FIELDS[kind]) else None


def is_faster(winner: Mapping) -> bool:
    """Whether a winner is faster than the untuned kernel."""
    return winner["untuned"] >= _FASTER * winner["seconds"]


@dataclass
class Selected:
    """The lines of a file that were written in the same circumstances.

    Attributes
    ----------
    workloads : dict
        Key -> the kernel, as its line has it (`module_text`).
    records : dict
        Key -> the last record of this candidate; the order is that of the file.
    winners : dict
        Key of a workload -> the last line on its winner, if that is not known to be wrong.
    wrong : set
        Keys of candidates.
    settled : set
        Keys of workloads whose winner was chosen among all of their records.
    """

    workloads: dict[str, str] = field(default_factory=dict)
    records: dict[str, dict] = field(default_factory=dict)
    winners: dict[str, dict] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)


def selected(lines: Iterable[Mapping], where: Mapping, device: str | None = None) -> Selected:
    """The lines that count in some circumstances.

    Parameters
    ----------
    where : mapping
        `circumstances`; the cores that a target counts are no part of them: kernels run on as many threads as they say.
    device : str, optional
        The only device whose times count; without, any will do.
    """
    return of_runs(lines, lambda run: _alike(run, where) and (device is None or run.get("device", device) == device))


def check_is_records(path: Path) -> None:
    """Refuse to add to a file, or to mend it, that holds something else; one that is empty or not there will do.

    Raises
    ------
    UserError
        If it has no line of tuning records, and no beginning of one either.
    """
    if not path.exists():
        return
    lines, damaged = json_lines.read(path)
    only_begun = len(damaged) == 1 and damaged[0].torn and not lines and path.read_bytes().startswith(b'{"run"')
    if (lines or damaged) and not only_begun and not any(map(kind_of, lines)):
        raise UserError(f"{path} has no line of tuning records, and is left as it is; name another file.")


def of_runs(lines: Iterable[Mapping], counts: Callable[[Mapping], bool]) -> Selected:
    """What those runs have found that count, by their lines."""
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
    """A target, but for its number of cores: what a process may use says nothing of its kernels."""
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
    """What is in a file of records.

    Attributes
    ----------
    counts : dict
        Lines of each kind.
    problems : list of str
        One sentence for each line that is of no use.
    """

    counts: dict[str, int]
    problems: list[str]


def check(path: Path) -> RecordCheck:
    """Look at all lines of a file.

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
    """What is in some lines, and those that are of use."""
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
    """Why a line is of no use; what it defines is known afterwards if it is of use."""
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
    """The lines of several files in one, each once."""
    found: dict[str, dict] = {}
    for lines in files:
        for line in lines:
            found.setdefault(json.dumps(line, sort_keys=True), line)
    return list(found.values())


def prune(lines: Sequence[dict], keep: int) -> list[dict]:
    """The lines without all but the fastest records of each kernel and run; winners, wrong ones and the runs stay.

    Parameters
    ----------
    keep : int
        Records of a kernel in a run.
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

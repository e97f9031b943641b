# SPDX-License-Identifier: Apache-2.0
"""The command line of the fuzzer; exit code 1 if a graph fails."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from . import check
from .case import Case, load
from .check import Job
from .draw import FULL, GRAPHS, KINDS, draw
from .pool import Pool
from .report import Report
from .shrink import shrink

_AT_ONCE = 20_000  # seeds in a batch


def main(arguments: list[str] | None = None) -> int:
    """Check graphs by seed, or shrink one; returns the exit code."""
    given = _parser().parse_args(arguments)
    pool = Pool(given.workers, given.timeout)
    try:
        return _shrink(given, pool) if given.shrink else _run(given, pool)
    finally:
        pool.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, help="FIRST:LAST, without the last one, or seeds like 3,17,230:240")
    parser.add_argument("--minutes", type=float, help="go on for so long, from the seed in the file of --state")
    parser.add_argument("--state", type=Path, default=Path("fuzz-state.json"), help="where the next seed is kept")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--target", choices=check.TARGETS, default="llvm")
    parser.add_argument("--kind", choices=KINDS, default=GRAPHS, help="what is drawn (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=FULL, help="the most elements of a tensor (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a graph (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="a line for each graph goes to this file")
    parser.add_argument("--shrink", metavar="SEED_OR_FILE", help="shrink the case of a seed, or of a file")
    parser.add_argument("-o", "--output", type=Path, help="where --shrink writes to (default: fuzz-SEED.onnx)")
    return parser


def _seeds(text: str) -> Sequence[int]:
    parts = [_range(part) for part in text.split(",")]
    return parts[0] if len(parts) == 1 else [seed for part in parts for seed in part]


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last) if last else int(first) + 1)


def _run(given: argparse.Namespace, pool: Pool) -> int:
    """Check a range of seeds, or as many as there is time for."""
    seeds, deadline, state = given.seeds, None, {}
    if given.minutes is not None:
        state = json.loads(given.state.read_text()) if given.state.exists() else {}
        first = state.get(_next(given), 0)
        seeds, deadline = range(first, first + 10**9), time.monotonic() + 60 * given.minutes
    if seeds is None:
        raise SystemExit("python -m fuzz: say --seeds or --minutes")
    report, console, done = Report(), Console(), 0
    lines = given.json.open("a") if given.json else None
    for start in range(0, len(seeds), _AT_ONCE):
        batch = [Job(given.target, seed, given.limit, kind=given.kind) for seed in seeds[start : start + _AT_ONCE]]
        for number, verdict in pool.verdicts(batch, lambda: deadline is None or time.monotonic() < deadline):
            seed = batch[number].seed
            done = max(done, seed + 1)
            report.add(seed, verdict)
            if lines:
                print(
                    json.dumps({"seed": seed, "target": given.target, "of": given.kind, **verdict}),
                    file=lines,
                    flush=True,
                )
            if verdict["kind"] in check.FAULTS or report.total % 100 == 0:
                console.print(f"{report.line()}; seed {seed}: {verdict['kind']}", markup=False, highlight=False)
        if deadline is not None and time.monotonic() >= deadline:
            break
    if given.minutes is not None:
        given.state.write_text(json.dumps({**state, _next(given): done}) + "\n")
    report.show(console)
    console.print(f"seeds {seeds[0]}:{done} of {given.kind} on {given.target}")
    return int(report.faults + report.kinds[check.KILLED] > 0)


def _next(given: argparse.Namespace) -> str:
    """Where the file of states has the next seed."""
    return given.target if given.kind == GRAPHS else f"{given.target} {given.kind}"


def _shrink(given: argparse.Namespace, pool: Pool) -> int:
    """Make one case smaller, and write it."""
    by_seed = given.shrink.isdigit()
    case: Case = draw(int(given.shrink), given.limit, given.kind) if by_seed else load(Path(given.shrink))
    small, verdict = shrink(case, given.target, pool)
    if verdict["kind"] not in check.FAULTS:
        print(f"{given.shrink}: {verdict['kind']} {verdict['detail']}")
        return int(verdict["kind"] == check.KILLED)
    path = given.output or Path(f"fuzz-{Path(given.shrink).stem}.onnx")
    small.save(path, target=given.target, kind=verdict["kind"])
    print(
        f"{path}: {verdict['kind']}, {', '.join(small.operators)}; options {small.options}; {verdict['detail'][-600:]}"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())

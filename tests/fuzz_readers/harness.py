# SPDX-License-Identifier: Apache-2.0
"""Gives a reader changed files, in a process of its own: one that crashes or hangs is a finding, not the end.

An input is known by its number: the same number makes the same file in every process.
"""

import collections
import multiprocessing
import random
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from fuzz_readers.readers import READERS, Reader


@dataclass
class Outcome:
    """What came of some inputs: how many were taken, how many refused, and what was at fault."""

    taken: int = 0
    refused: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        """All of them."""
        return self.taken + self.refused + len(self.faults)


def content(reader: Reader, number: int) -> bytes:
    """The file of this number."""
    generator = random.Random(number)
    return reader.change(generator.choice(reader.seeds()), generator)


def attempt(reader: Reader, number: int, folder: Path) -> str | None:
    """Give a reader one input: "taken" or "refused", otherwise what it raised."""
    path = folder / reader.file
    path.write_bytes(content(reader, number))
    try:
        reader.read(path)
        return "taken"
    except reader.allowed:
        return "refused"
    except BaseException:
        return traceback.format_exc()


def _serve(name: str, numbers: range, folder: str, pipe) -> None:
    reader = READERS[name]
    for number in numbers:
        pipe.send((number, "begun"))
        pipe.send((number, attempt(reader, number, Path(folder))))


def run(name: str, numbers: range, seconds_each: float = 30.0, until: float = float("inf")) -> Outcome:
    """Give a reader the inputs of these numbers; a process that dies, or is silent for so long, is started again."""
    outcome, context, left = Outcome(), multiprocessing.get_context("fork"), numbers
    READERS[name].seeds()  # here, once for all processes
    while left and time.monotonic() < until:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            mine, other = context.Pipe(duplex=False)
            child = context.Process(target=_serve, args=(name, left, folder, other))
            child.start()
            other.close()
            last = _listen(mine, outcome, seconds_each, until)
            child.kill()
            child.join()
            if last is None:
                break
            if last >= 0:
                outcome.faults.append((last, f"it took longer than {seconds_each} s, or ended with {child.exitcode}"))
        left = range(max(last, left[0]) + 1, left[-1] + 1)
    return outcome


def _listen(pipe, outcome: Outcome, seconds_each: float, until: float) -> int | None:
    """Count what is said until nothing more comes; the number of the input that was begun, None if there is none."""
    begun = None
    while time.monotonic() < until:
        try:
            if not pipe.poll(seconds_each):
                return begun
            number, what = pipe.recv()
        except EOFError:
            return begun
        if what == "begun":
            begun = number
            continue
        begun = None
        if what in ("taken", "refused"):
            setattr(outcome, what, getattr(outcome, what) + 1)
        else:
            outcome.faults.append((number, what))
    return None


def summary(outcome: Outcome) -> str:
    """One line for each kind of fault, with the number of one input."""
    kinds = collections.defaultdict(list)
    for number, what in outcome.faults:
        lines = what.strip().splitlines()
        where = [line.strip() for line in lines if line.strip().startswith("File ") and "smartmem_tvm" in line]
        kinds[(where or lines)[-1][-90:] + "  " + lines[-1][:150]].append(number)
    found = [f"{len(each):5} times, as input {each[0]}: {kind}" for kind, each in sorted(kinds.items())]
    return "\n".join([f"{outcome.inputs} inputs, {outcome.taken} taken, {outcome.refused} refused", *found])

# SPDX-License-Identifier: Apache-2.0
"""The profile store: measured latencies of kernels, and the questions that they answer (DNNFusion 4.3).

A store is a file of JSON lines, one measurement each, which is only appended to::

    {"kernel": "9c1f...", "seconds": 1.2e-05, "together": "5d0e...", "cpu": "AMD EPYC", "threads": 4, ...}

The key of a kernel is the structural hash of its unscheduled PrimFunc, which depends on no name. A line counts if the
target, the CPU and its threads, TVM and this package's schedules are the same; other lines are ignored. For a GPU, the
name of the device replaces the CPU and its threads.
"""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import tvm_ffi
from tvm import tirx
from tvm.target import Target

from .. import json_data
from .._version import PREPARATION, SCHEDULES, installed_version
from ..errors import UserError
from ..ir.kernel import CONSTANTS, DECISIONS, factors_attr
from ..ir.regions import reads_joined
from . import json_lines
from .host import cpu_name, run_threads

try:
    import fcntl
except ImportError:  # missing on Windows; an append is still one write there
    fcntl = None

_logger = logging.getLogger(__name__)
_LONGEST = 1e6  # seconds; a longer time is no valid measurement


@dataclass(frozen=True)
class Question:
    """Whether the kernels `fused`, one after the other, are faster than the kernels `parts`, which compute the same."""

    fused: tuple[tirx.PrimFunc, ...]
    parts: tuple[tirx.PrimFunc, ...]


def kernel_key(func: tirx.PrimFunc) -> str:
    """Return the name-independent key of an unscheduled PrimFunc: its structural hash, in hexadecimal.

    The hash excludes attributes; those on factors, constants and given decisions follow it as text.
    """
    plain = tirx.PrimFunc(func.params, reads_joined(func).body, func.ret_type)
    key = f"{tvm_ffi.structural_hash(plain) & (2**64 - 1):016x}"
    attrs = func.attrs or {}
    for value in factors_attr(func).values():
        key += f" factors {value}"
    for place in attrs.get(CONSTANTS) or ():
        key += f" constant {place}"
    for name, value in sorted((attrs.get(DECISIONS) or {}).items()):
        key += f" {name}={value}"
    return key


class ProfileStore:
    """Latencies measured for one target on this machine.

    Parameters
    ----------
    path : Path or None
        File of JSON lines, created by the first `add`. With None, everything stays in memory.
    target : tvm.target.Target
        Target of the kernels.
    threads : int, optional
        Threads that kernels run on; by default `host.run_threads`.
    device : str, optional
        Name of the GPU that kernels run on; without it, they run on the CPU.
    cpu : str, optional
        Name of the CPU, by default this machine's. For another CPU, any number of threads counts unless one is given:
        its default is unknown here.

    Attributes
    ----------
    damaged : int
        Lines of the file that are no measurement; they are skipped.

    Raises
    ------
    UserError
        If the file exists and cannot be read.
    """

    def __init__(
        self,
        path: Path | None,
        target: Target,
        threads: int | None = None,
        device: str | None = None,
        cpu: str | None = None,
    ):
        self.path = Path(path) if path is not None else None
        self.damaged = 0
        self._asked: dict[tuple, Question] = {}
        self._answered: dict[tuple, tuple[float, float]] = {}
        threads = threads or (None if cpu else run_threads())
        runs_on = {"cpu": cpu or cpu_name(), "threads": threads} if device is None else {"device": device}
        self._where = {
            "target": str(target),
            **{key: value for key, value in runs_on.items() if value is not None},
            "tvm": installed_version("apache-tvm"),
            "schedules": SCHEDULES,
            "preparation": PREPARATION,
        }
        # Kernel -> session -> seconds: measurements of one session are compared with each other.
        self._seconds: dict[str, dict[str, float]] = defaultdict(dict)
        for record in self._read():
            self._take(record)

    @property
    def kernels(self) -> int:
        """Number of kernels measured."""
        return len(self._seconds)

    def latency(self, func: tirx.PrimFunc) -> float | None:
        """Return the seconds of one launch of an unscheduled PrimFunc, None if it was never measured here.

        The result is the median over all sessions, so that one noisy session does not decide.
        """
        sessions = self._seconds.get(kernel_key(func))
        return median(sessions.values()) if sessions else None

    def form_latency(self, func: tirx.PrimFunc, base: tirx.PrimFunc) -> float | None:
        """Return the seconds of one launch of `func`, a form of the kernel `base`; None if it was never measured here.

        If `func` and `base` share sessions, the result is the median of their ratios times the median of `base`. So
        kernels that are compared by their `base` do not depend on the machine's speed during a session.
        """
        ours, others = (self._seconds.get(kernel_key(each), {}) for each in (func, base))
        ratios = [ours[session] / others[session] for session in ours.keys() & others.keys()]
        return median(ratios) * median(others.values()) if ratios else self.latency(func)

    def compare(self, fused: Sequence[tirx.PrimFunc], parts: Sequence[tirx.PrimFunc]) -> tuple[float, float] | None:
        """Return the summed seconds of the fused kernels and of the parts; None if a kernel was never measured here.

        If all kernels ran in turns in one session, its times count; of several such sessions, the one with the median
        ratio. Otherwise the medians of each kernel count. The question is kept in `answered` or `asked`.
        """
        question = Question(tuple(fused), tuple(parts))
        sides = tuple(tuple(map(kernel_key, side)) for side in (fused, parts))
        measured = [self._seconds.get(key, {}) for side in sides for key in side]
        if not all(measured):
            self._asked.setdefault(sides, question)
            return None
        common = set.intersection(*(set(sessions) for sessions in measured))
        pairs = [tuple(sum(self._seconds[key][session] for key in side) for side in sides) for session in common]
        pairs = pairs or [tuple(sum(median(self._seconds[key].values()) for key in side) for side in sides)]
        pairs.sort(key=lambda pair: pair[0] / pair[1])
        self._answered[sides] = pairs[(len(pairs) - 1) // 2]
        return self._answered[sides]

    def faster(self, question: Question) -> bool | None:
        """Whether the fused kernels are faster than the parts; None if unknown, and the question is then in `asked`.

        Equal times count as faster, as there are fewer launches.
        """
        seconds = self.compare(question.fused, question.parts)
        return None if seconds is None else seconds[0] <= seconds[1]

    @property
    def asked(self) -> list[Question]:
        """Distinct questions without an answer."""
        return list(self._asked.values())

    @property
    def answered(self) -> list[tuple[float, float]]:
        """Answers to distinct questions: seconds of the fused kernels and of the parts."""
        return list(self._answered.values())

    def forget_questions(self) -> None:
        """Empty `asked` and `answered`, before the passes run again."""
        self._asked.clear()
        self._answered.clear()

    def add(self, func: tirx.PrimFunc, seconds: float, together: str = "") -> None:
        """Store a measurement as one line, which is on the disk when this returns.

        Parameters
        ----------
        seconds : float
            Median of one launch.
        together : str
            Name of the session: measurements taken in turns share it. A second measurement of a kernel in a session
            replaces the first.

        Raises
        ------
        UserError
            If the file cannot be written.
        ValueError
            If `seconds` is not a positive number.
        """
        if not _is_time(seconds):
            raise ValueError(f"a latency is a positive number of seconds, not {seconds}")
        session = together or os.urandom(8).hex()
        record = {"kernel": kernel_key(func), "seconds": float(f"{seconds:.4g}"), "together": session, **self._where}
        record["operands"] = " ".join(map(_operand, func.params))
        if self.path is not None:
            _append(self.path, json.dumps(record))
        self._take(record)

    def _take(self, record: dict) -> None:
        self._seconds[record["kernel"]][record["together"]] = record["seconds"]

    def _read(self) -> Iterator[dict]:
        """Yield the measurements of the file that were made in the same circumstances."""
        if self.path is None or not self.path.exists():
            return
        try:
            for number, line in enumerate(json_lines.lines(self.path), start=1):
                record = _record(line)
                if record is not None and all(record.get(key) == value for key, value in self._where.items()):
                    yield record
                elif record is None and line.strip():
                    self._note_damage(number, last=not line.endswith(b"\n"))
        except OSError as err:
            raise UserError(f"Profile store {self.path} cannot be read ({err.strerror}); give another file.") from err

    def _note_damage(self, number: int, last: bool) -> None:
        self.damaged += 1
        what = "was not written to its end" if last else "is no measurement"
        _logger.warning("%s: line %d %s and is skipped.", self.path, number, what)


def _operand(buffer: tirx.Buffer) -> str:
    """Return a readable operand for the file, for example ``float32[8,64,4]@texture``."""
    memory = buffer.scope().partition(".")[2]
    return f"{buffer.dtype}{list(map(int, buffer.shape))}".replace(", ", ",") + (f"@{memory}" if memory else "")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LONGEST


def _record(line: bytes) -> dict | None:
    """Return the measurement on a line, None if there is none; fields of later versions are ignored."""
    try:
        record = json_data.parse(line)
    except ValueError:  # UnicodeDecodeError is one too
        return None
    whole = isinstance(record, dict) and all(isinstance(record.get(key), str) for key in ("kernel", "together"))
    return record if whole and _is_time(record.get("seconds")) else None


def _append(path: Path, line: str) -> None:
    """Append one line to a file that other processes append to as well, also after a torn line."""
    handle = _open(path)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        os.lseek(handle, max(size - 1, 0), os.SEEK_SET)
        torn = size > 0 and os.read(handle, 1) != b"\n"
        data = ("\n" * torn + line + "\n").encode()
        if os.write(handle, data) != len(data):
            raise OSError(0, "the disk is full")
        os.fsync(handle)
    except OSError as err:
        raise _unwritable(path, err) from err
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    """Open a store for appending, created if necessary."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as err:
        raise _unwritable(path, err) from err


def _unwritable(path: Path, err: OSError) -> UserError:
    why = err.strerror or err
    return UserError(f"Profile store {path} cannot be written ({why}); give another file with --profiles.")

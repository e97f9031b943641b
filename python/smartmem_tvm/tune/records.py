# SPDX-License-Identifier: Apache-2.0
"""A file of tuning records as the database of MetaSchedule's strategies and passes (`record_lines` has the format)."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from .. import json_data
from ..errors import UserError, reason_of
from . import json_lines, record_lines
from .modelled import Modelled, OrderChange
from .module_text import module_text, workload_of
from .record_lines import candidate_key, judge_of, selected
from .strategy import FAILED, seconds_of

_logger = logging.getLogger(__name__)
_STEP = (str, list, list, [str])  # step of a trace: kind, inputs, attributes, names of outputs
_ARGUMENT = (str, str, [json_data.is_size])  # kind, type and shape
_NEVER = 10 * FAILED  # seconds that MetaSchedule writes for a failed candidate


def circumstances(target: Target, threads: int | None) -> dict:
    """See `record_lines.circumstances`."""
    return record_lines.circumstances(_plain(target.export()), threads)


def _plain(value: object) -> object:
    """Return a value of TVM's as plain Python data for JSON; TVM's own function does not support index maps."""
    if isinstance(value, tirx.IndexMap):
        return tvm.ir.save_json(value)
    if isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        return value.value
    if hasattr(value, "items"):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str):
        return str(value)
    return [_plain(each) for each in value] if hasattr(value, "__iter__") else value


def _written(record: ms.database.TuningRecord) -> tuple[object, object]:
    """Return the trace and the arguments of a record."""
    trace, _, _, arguments = packed(record)[1]
    return trace, arguments


def packed(record: ms.database.TuningRecord) -> tuple:
    """Return a record in a picklable form, for another process."""
    return record.workload.as_json(), _plain(tvm.get_global_func("s_tir.meta_schedule.TuningRecordAsJSON")(record))


def unpacked(content: tuple) -> ms.database.TuningRecord:
    """Return the record from the form of `packed`."""
    workload, fields = content
    return ms.database.TuningRecord.from_json(fields, ms.database.Workload.from_json(workload))


def workload_key(mod: tvm.IRModule) -> str:
    """Return the name-independent key of a kernel: its structural hash, in hexadecimal."""
    return f"{tvm_ffi.structural_hash(mod) & (2**64 - 1):016x}"


def record_key(record: ms.database.TuningRecord) -> str:
    """Return the key of a record's candidate."""
    return candidate_key(workload_key(record.workload.mod), _written(record)[0])


@derived_object
class Records(ms.database.PyDatabase):
    """The records of a file from the same circumstances, as a database that appends to the file.

    Wrong candidates are in it as failed ones. Lines that cannot be written are kept as `pending`; the caller should
    stop measuring until they are written.

    Parameters
    ----------
    path : Path
        The file, created by the first record. A torn last line is removed, with a warning.
    where : mapping
        `circumstances`. On a GPU the device counts too, as one target fits many devices.
    run : mapping
        Further facts about this run: ``date``, ``command``, ``device``, ``driver``, ``strategy``, and ``judge`` if a
        model prices the candidates: then its prices are the records, otherwise only measured times are.

    Raises
    ------
    UserError
        If the file cannot be read.
    """

    def __init__(self, path: Path, where: Mapping, run: Mapping):
        super().__init__()
        self.path, self.where = Path(path), dict(where)
        record_lines.check_is_records(self.path)
        torn = json_lines.mend_end(self.path)
        if torn:
            _logger.warning("%s: its last line was torn; the %d bytes of it were removed.", path, torn)
        lines, damaged = json_lines.read(self.path) if self.path.exists() else ([], [])
        for each in damaged:
            _logger.warning(
                "%s: line %d is damaged and is skipped; `smartmem records repair` removes it.", path, each.line
            )
        device = run.get("device") if where["threads"] is None else None
        self._known = selected(lines, where, device, judge_of(run))
        self._run = {"run": uuid.uuid4().hex[:12], **run, **where}
        # Lines that the lines of this run refer to, and the size of the file when it held them. Since then, the file
        # may have been pruned, or replaced by a checkout of another branch.
        self._context, self._size = [self._run], -1
        self._pending: list[dict] = []
        self._memory = database(self._known, where)
        self._by_workload: dict[str, list[ms.database.TuningRecord]] = {}
        for each in self._memory.get_all_tuning_records():
            self._by_workload.setdefault(workload_key(each.workload.mod), []).append(each)
        advice = record_lines.Selected() if judge_of(run) else record_lines.modelled(lines, where)
        self.modelled = Modelled(_by_keys(database(advice, where)))

    def order_change(self, workload: str) -> OrderChange | None:
        """Return how the order of a kernel's modelled candidates changed when they were measured."""
        times = {record_key(each): seconds_of(each) for each in self.of(workload)}
        return self.modelled.change(workload, {key: each for key, each in times.items() if each is not None})

    def first_generation(self, workload: str, count: int, ours: bool) -> list[ms.database.TuningRecord]:
        """Return the best modelled candidates of a kernel that were not measured yet (`Modelled.best`)."""
        return self.modelled.best(workload, count, ours, self._known.records.keys() | self.wrong)

    @property
    def judge(self) -> str | None:
        """The model that prices the candidates of this run; None if they are measured."""
        return judge_of(self._run)

    @property
    def winners(self) -> dict[str, dict]:
        """Key of a workload -> the line of its winner."""
        return self._known.winners

    @property
    def wrong(self) -> set[str]:
        """Keys of the candidates whose results differ from the untuned kernel's."""
        return self._known.wrong

    @property
    def pending(self) -> int:
        """Number of lines not yet in the file, for lack of room."""
        return len(self._pending)

    def is_settled(self, key: str) -> bool:
        """Whether the winner of a workload was chosen among all of its records."""
        return key in self._known.settled

    def flush(self) -> None:
        """Write the pending lines.

        Raises
        ------
        UserError
            If there is still no room; nothing is lost.
        """
        if self._pending:
            self._size = json_lines.append(self.path, self._pending, self._context, self._size)
            self._pending = []

    def has_workload(self, mod: tvm.IRModule) -> bool:
        """Whether a kernel was committed."""
        return self._memory.has_workload(mod)

    def commit_workload(self, mod: tvm.IRModule) -> ms.database.Workload:
        """Commit a kernel; it is written with its first record."""
        return self._memory.commit_workload(mod)

    def commit_tuning_record(self, record: ms.database.TuningRecord) -> None:
        """Write a record to the file."""
        key, (trace, arguments) = workload_key(record.workload.mod), _written(record)
        seconds = [float(each) for each in record.run_secs] if seconds_of(record) is not None else []
        line = {"record": candidate_key(key, trace), "workload": key, "run": self._run["run"], "seconds": seconds}
        line |= {"arguments": arguments, "trace": trace}
        if key not in self._known.workloads:
            self._known.workloads[key] = module_text(record.workload)
        self._write(line, {"workload": key, "module": self._known.workloads[key]})
        self._known.records[line["record"]] = line
        self._known.settled.discard(key)
        self._memory.commit_tuning_record(record)
        self._by_workload.setdefault(key, []).append(record)

    def commit_winner(self, record: ms.database.TuningRecord, seconds: float, untuned: float) -> None:
        """Write the fastest right candidate, with its seconds and the untuned kernel's, timed in turns."""
        line = {"winner": record_key(record), **self._about(record), "seconds": seconds, "untuned": untuned}
        self._write(line)
        self._known.winners[line["workload"]] = line
        self._known.settled.add(line["workload"])

    def commit_wrong(self, record: ms.database.TuningRecord, error: str) -> None:
        """Write that the results of a candidate differ from the untuned kernel's: it will not be tried again."""
        line = {"wrong": record_key(record), **self._about(record), "error": error}
        self._write(line)
        self._known.wrong.add(line["wrong"])
        if self._known.winners.get(line["workload"], {}).get("winner") == line["wrong"]:
            del self._known.winners[line["workload"]]

    def _about(self, record: ms.database.TuningRecord) -> dict:
        return {"workload": workload_key(record.workload.mod), "run": self._run["run"]}

    def _write(self, line: dict, kernel: dict | None = None) -> None:
        self._pending.append(line)
        if kernel is not None and kernel not in self._context:
            self._context.append(kernel)
            self._size = -1
        with contextlib.suppress(UserError):  # the caller flushes the pending lines, and gets the error
            self.flush()

    def get_all_tuning_records(self) -> list[ms.database.TuningRecord]:
        """Return all records, in the order of their commits."""
        return self._memory.get_all_tuning_records()

    def of(self, key: str) -> list[ms.database.TuningRecord]:
        """Return the records of a workload, in the order of their commits."""
        return self._by_workload.get(key, [])

    def get_top_k(self, workload: ms.database.Workload, top_k: int) -> list[ms.database.TuningRecord]:
        """Return the fastest records of a kernel."""
        return self._memory.get_top_k(workload, top_k)

    def query_tuning_record(self, mod: tvm.IRModule, target: Target, workload_name: str):
        """Return the fastest record of a kernel."""
        return self._memory.query_tuning_record(mod, target, workload_name)

    def query_schedule(self, mod: tvm.IRModule, target: Target, workload_name: str):
        """Return the schedule of the fastest record of a kernel."""
        return self._memory.query_schedule(mod, target, workload_name)

    def query_ir_module(self, mod: tvm.IRModule, target: Target, workload_name: str):
        """Return the module of the fastest record of a kernel."""
        return self._memory.query_ir_module(mod, target, workload_name)

    def __len__(self) -> int:
        return len(self._memory)


def _is_trace(trace: object) -> bool:
    """Whether TVM can read a trace: TVM does not check whether the name of a loop or block is there."""
    parts = json_data.fits(trace, [list]) and len(trace) == 2
    return parts and all(
        json_data.fits(step, list)
        and len(step) == len(_STEP)
        and all(map(json_data.fits, step, _STEP))
        and None not in step[1]
        for step in trace[0]
    )


def _is_argument(argument: object) -> bool:
    """Whether TVM can read an argument: TVM reads missing fields as a shape or a size."""
    tensor = json_data.fits(argument, list) and len(argument) == len(_ARGUMENT)
    return tensor and all(map(json_data.fits, argument, _ARGUMENT))


def database(known: record_lines.Selected, where: Mapping) -> ms.database.MemoryDatabase:
    """Return lines as a database of MetaSchedule's."""
    found = ms.database.MemoryDatabase()
    workloads: dict[str, ms.database.Workload] = {}
    for key, line in known.records.items():
        name = line["workload"]
        seconds = [] if key in known.wrong else line["seconds"]
        fields = [line["trace"], seconds or [_NEVER], where["target"], line["arguments"]]
        try:
            if not json_data.fits(line["trace"], _is_trace):
                raise ValueError("its trace is none of MetaSchedule's")
            if not json_data.fits(line["arguments"], [_is_argument]):
                raise ValueError("its arguments are none of MetaSchedule's")
            if name not in workloads:
                workloads[name] = found.commit_workload(workload_of(known.workloads[name]).mod)
            record = ms.database.TuningRecord.from_json(fields, workloads[name])
        except Exception as error:  # of many kinds, from TVM's readers
            _logger.warning("Record %s cannot be read (%s) and is skipped.", key, reason_of(error))
            continue
        found.commit_tuning_record(record)
    return found


def _by_keys(found: ms.database.MemoryDatabase) -> dict[str, dict[str, ms.database.TuningRecord]]:
    """Return key of a workload -> key of a candidate -> its record."""
    keyed: dict[str, dict[str, ms.database.TuningRecord]] = {}
    for each in found.get_all_tuning_records():
        key = workload_key(each.workload.mod)
        keyed.setdefault(key, {})[candidate_key(key, _written(each)[0])] = each
    return keyed


def lines_of(path: Path) -> list[dict]:
    """Return the lines of a file, which is only read; a torn or damaged line is skipped, with a warning.

    Raises
    ------
    UserError
        If the file cannot be read, or is no file of records.
    """
    lines, damaged = json_lines.read(path)
    if damaged:
        record_lines.check_is_records(path)
    for each in damaged:
        what = "was not written to its end" if each.torn else "is damaged"
        _logger.warning("%s: line %d %s and is skipped; `smartmem records repair` removes it.", path, each.line, what)
    return lines


def export(path: Path, folder: Path) -> int:
    """Write all measured records as MetaSchedule's own JSON database, and return their number.

    Modelled ones stay behind: MetaSchedule cannot tell a price from a time.

    Raises
    ------
    UserError
        If the file cannot be read, or the folder holds such a database already.
    """
    lines = lines_of(path)
    names = ("target", "threads", "tvm", "schedules")
    runs = [{name: line[name] for name in names} for line in lines if record_lines.kind_of(line) == "target"]
    if list(folder.glob("database_*.json")):
        raise UserError(f"Folder {folder} holds a database of MetaSchedule's already; name another.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise UserError(f"Folder {folder} cannot be made ({err.strerror}); name another.") from err
    written, count = ms.database.JSONDatabase(work_dir=str(folder)), 0
    for where in [run for number, run in enumerate(runs) if run not in runs[:number]]:
        for record in database(selected(lines, where), where).get_all_tuning_records():
            written.commit_workload(record.workload.mod)
            written.commit_tuning_record(record)
            count += 1
    return count

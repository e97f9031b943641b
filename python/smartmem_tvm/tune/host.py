# SPDX-License-Identifier: Apache-2.0
"""What latencies depend on in this machine; imports nothing of TVM before it is told to set its threads."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path

from ..errors import UserError

# What a container may have of the machine's memory, in the second and the first version of control groups.
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_CROWD = 4  # threads for each logical CPU, at most
STORE_VARIABLE = "SMARTMEM_PROFILES"
RECORDS_VARIABLE = "SMARTMEM_RECORDS"


@cache
def cpu_name() -> str:
    """The model of this machine's CPU in words, for example ``AMD EPYC 9B14``; its architecture where it has none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(\S.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine() or "unknown CPU"


def usable_cores(among: Collection[int] = ()) -> int:
    """Cores this process may use, or those among some; the hardware threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = {cpu: Path(siblings.format(cpu)) for cpu in among or os.sched_getaffinity(0)}
    return len({file.read_text() if file.exists() else cpu for cpu, file in files.items()})


def process_cpus() -> list[int]:
    """Logical CPUs that threads of this process run on: TVM ties the one that runs its kernels to some of them."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    found = set(os.sched_getaffinity(0))
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            found |= os.sched_getaffinity(int(task.name))
    return sorted(found)


def cores_to_measure(asked: Collection[int] | None) -> Collection[int]:
    """The cores asked for; empty if none were.

    Raises
    ------
    UserError
        If this process cannot run on one of them.
    """
    if not asked:
        return ()
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("Option --cores needs a system on which processes can be told their cores; leave it out.")
    before, allowed = os.sched_getaffinity(0), set()
    try:
        for core in asked:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, [core])
                allowed.add(core)
    finally:
        os.sched_setaffinity(0, before)
    for core in asked:
        if core not in allowed:
            raise UserError(f"Core {core} of --cores does not exist here, or may not be used; choose others.")
    return asked


def memory_bytes() -> int:
    """Memory of this machine, or of the container that this process is in."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for group in _GROUPS:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(Path(group).read_text()))
    return min(found)


def run_threads(among: Collection[int] = ()) -> int:
    """Threads that kernels run on unless told otherwise: TVM_NUM_THREADS, else one per core, or per core among some.

    Raises
    ------
    UserError
        If the variable holds something else.
    """
    told = os.environ.get("TVM_NUM_THREADS") or "0"
    if not told.isdecimal():
        raise UserError(f"TVM_NUM_THREADS is '{told}', which is no number of threads; correct it, or leave it out.")
    return int(told) or usable_cores(among)


def most_threads() -> int:
    """Threads with which a machine still gets on: TVM's do not sleep while they wait."""
    return _CROWD * (os.cpu_count() or 1)


def thread_count(wanted: int | None) -> int:
    """Threads of this machine's CPU that a command runs kernels on.

    Raises
    ------
    UserError
        If there are so many that they would bring the machine to a halt.
    """
    count, most = wanted or run_threads(), most_threads()
    if count > most:
        raise UserError(
            f"{count} threads (--threads, or TVM_NUM_THREADS) are too many for this machine's {os.cpu_count()} cores: "
            f"give at most {most}."
        )
    return count


def set_threads(wanted: int | None) -> int:
    """Let TVM run kernels on so many threads (`thread_count`); returns the number.

    To be called before the first kernel runs: TVM fixes the size of its pool then. Its own default is half the
    logical CPUs, which is wrong where cores have one thread each, as in most virtual machines.
    """
    count = thread_count(wanted)
    import tvm

    os.environ["TVM_NUM_THREADS"] = str(count)
    tvm.get_global_func("runtime.config_threadpool")(1, count)
    return tvm.runtime.num_threads()


def default_store(device: str | None = None) -> Path | None:
    """Where measurements on this machine are kept: $SMARTMEM_PROFILES, else ``tuning_logs/<device>.jsonl`` here.

    Parameters
    ----------
    device : str, optional
        Name of the GPU; without, the file is named after the CPU.

    Returns
    -------
    Path or None
        None if the variable is set and empty: no store.
    """
    return default_file(STORE_VARIABLE, device, ".jsonl")


def default_file(variable: str, device: str | None, ending: str) -> Path | None:
    """The file that an environment variable names, None if it is empty; not set: ``tuning_logs/<device><ending>``."""
    named = os.environ.get(variable)
    if named is not None:
        return Path(named) if named else None
    slug = re.sub(r"[^a-z0-9]+", "_", (device or cpu_name()).lower()).strip("_")
    return Path("tuning_logs") / f"{slug or 'cpu'}{ending}"

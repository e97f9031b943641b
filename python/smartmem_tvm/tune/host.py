# SPDX-License-Identifier: Apache-2.0
"""Properties of this machine that latencies depend on; TVM is imported only to set its threads."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path

from ..errors import UserError

# Files with the memory limit of a container, in the second and the first version of control groups.
_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_CROWD = 4  # most threads for each logical CPU
STORE_VARIABLE = "SMARTMEM_PROFILES"
RECORDS_VARIABLE = "SMARTMEM_RECORDS"


@cache
def cpu_name() -> str:
    """Return the model of this machine's CPU, for example ``AMD EPYC 9B14``, or its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(\S.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine() or "unknown CPU"


def usable_cores(among: Collection[int] = ()) -> int:
    """Count the cores that this process may use, or those of some CPUs; hardware threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = {cpu: Path(siblings.format(cpu)) for cpu in among or os.sched_getaffinity(0)}
    return len({file.read_text() if file.exists() else cpu for cpu, file in files.items()})


def process_cpus() -> list[int]:
    """Return the logical CPUs of all threads of this process: TVM binds the thread that runs kernels to some CPUs."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    found = set(os.sched_getaffinity(0))
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # the thread has ended
            found |= os.sched_getaffinity(int(task.name))
    return sorted(found)


def cores_to_measure(asked: Collection[int] | None) -> Collection[int]:
    """Return the requested cores; empty if none were requested.

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
    """Return the bytes of memory of this machine, or of this process's container."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for group in _GROUPS:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(Path(group).read_text()))
    return min(found)


def run_threads(among: Collection[int] = ()) -> int:
    """Return the default number of threads of kernels: TVM_NUM_THREADS, else one per core, of all or of some CPUs.

    Raises
    ------
    UserError
        If the variable is no number.
    """
    told = os.environ.get("TVM_NUM_THREADS") or "0"
    if not told.isdecimal():
        raise UserError(f"TVM_NUM_THREADS is '{told}', which is no number of threads; correct it, or leave it out.")
    return int(told) or usable_cores(among)


def most_threads() -> int:
    """Return the most threads that a machine can run: TVM's threads do not sleep while they wait."""
    return _CROWD * (os.cpu_count() or 1)


def thread_count(wanted: int | None) -> int:
    """Return the number of threads of this machine's CPU on which a command runs kernels.

    Raises
    ------
    UserError
        If there are more than `most_threads`.
    """
    count, most = wanted or run_threads(), most_threads()
    if count > most:
        raise UserError(
            f"{count} threads (--threads, or TVM_NUM_THREADS) are too many for this machine's {os.cpu_count()} cores: "
            f"give at most {most}."
        )
    return count


def set_threads(wanted: int | None) -> int:
    """Let TVM run kernels on a number of threads (`thread_count`), and return it.

    Call this before the first kernel runs, which fixes the size of TVM's pool. TVM's default is half the logical CPUs,
    which is wrong if cores have one thread each, as in most virtual machines.
    """
    count = thread_count(wanted)
    import tvm

    from ..thread_pool import use_own_threads

    os.environ["TVM_NUM_THREADS"] = str(count)
    if use_own_threads():
        # Threads of TVM's pool, which nothing uses then, would yield 300,000 times before they sleep: on a busy machine
        # a process that ends soon would wait for them for minutes.
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    tvm.get_global_func("runtime.config_threadpool")(1, count)
    return tvm.runtime.num_threads()


def default_store(device: str | None = None) -> Path | None:
    """Return the file of measurements on this machine: $SMARTMEM_PROFILES, else ``tuning_logs/<device>.jsonl`` here.

    Parameters
    ----------
    device : str, optional
        Name of the GPU; without it, the file is named after the CPU.

    Returns
    -------
    Path or None
        None, for no store, if the variable is set and empty.
    """
    return default_file(STORE_VARIABLE, device, ".jsonl")


def default_file(variable: str, device: str | None, ending: str) -> Path | None:
    """Return the file that a variable names, None if it is empty; if unset, ``tuning_logs/<device><ending>``."""
    named = os.environ.get(variable)
    if named is not None:
        return Path(named) if named else None
    slug = re.sub(r"[^a-z0-9]+", "_", (device or cpu_name()).lower()).strip("_")
    return Path("tuning_logs") / f"{slug or 'cpu'}{ending}"

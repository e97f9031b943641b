# SPDX-License-Identifier: Apache-2.0
"""The process that `fake_driver.run_child` starts, and the helpers of functions that run in it."""

import ctypes
import functools
import gc
import importlib.util
import json
import os
import sys
from pathlib import Path

import _smartmem_opencl


class Fake:
    """The fake driver's own functions."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["SMARTMEM_OPENCL_LIBRARY"])
        self.library.fake_live.restype = self.library.fake_calls.restype = ctypes.c_int64
        self.library.fake_report.restype = ctypes.c_char_p

    def live(self, kind: str) -> int:
        return self.library.fake_live(kind.encode())

    def calls(self, function: str) -> int:
        return self.library.fake_calls(function.encode())

    def report(self) -> dict:
        return json.loads(self.library.fake_report())

    def forget(self) -> None:
        """Reset the counts of calls and refusals."""
        self.library.fake_forget()

    def lose(self, device: int, after: int = 0) -> None:
        self.library.fake_lose(device, ctypes.c_int64(after))


@functools.cache
def fake() -> Fake:
    return Fake()


@functools.cache
def load():
    """Import TVM with OpenCL."""
    import tvm

    import smartmem_tvm  # noqa: F401  loads the library, unless there is one

    problem = tvm.get_global_func("smartmem.opencl.problem", allow_missing=True)
    assert problem is not None, "the OpenCL library was not built: pip install -e . with a C++ compiler"
    return tvm


def live() -> dict[str, int]:
    """Return the numbers of driver objects that the library reports, by kind."""
    gc.collect()
    counts = load().get_global_func("smartmem.opencl.live_objects")()
    return {str(kind): int(count) for kind, count in counts.items()}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def problem_of(action) -> str:
    """Return the message of the error that an action raises: its last line, without the type."""
    try:
        action()
    except Exception as error:
        return str(error)
    raise AssertionError("nothing was raised")


def sentence(message: str) -> str:
    """Return the message of an error, asserting that it is one line and ends like a sentence."""
    lines = [line for line in message.strip().splitlines() if line.strip()]
    assert len(lines) == 1, message
    assert lines[0].endswith("."), message
    return lines[0]


def choose_build() -> None:
    """Load the build of the device library that ``SMARTMEM_TEST_LIBRARY`` names, a sanitized one."""
    if path := os.environ.get("SMARTMEM_TEST_LIBRARY"):
        _smartmem_opencl.library_path = lambda: Path(path)
        assert _smartmem_opencl.load() == path


def main(file: str, function: str, arguments: str, result: str) -> None:
    choose_build()
    sys.path.insert(0, str(Path(__file__).parent))
    # The test module's functions import this file by its name, and there must be one copy of it only.
    sys.modules["opencl_child"] = sys.modules["__main__"]
    spec = importlib.util.spec_from_file_location("child_module", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["child_module"] = module
    spec.loader.exec_module(module)
    value = getattr(module, function)(*json.loads(arguments))
    Path(result).write_text(json.dumps(value), encoding="utf-8")


def serve() -> list[str]:
    """Fork for each request on stdin and report the child's exit; return in the children, with their arguments."""
    import smartmem_tvm  # noqa: F401  the slow import, which touches no driver

    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ.clear()
            os.environ.update(request["environment"])
            printed = os.open(request["printed"], os.O_WRONLY)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for to, taken in ((0, nothing), (1, printed), (2, printed)):
                os.dup2(taken, to)
            return request["arguments"]
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


if __name__ == "__main__":
    main(*(serve() if sys.argv[1:] == ["--serve"] else sys.argv[1:]))

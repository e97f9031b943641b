# SPDX-License-Identifier: Apache-2.0
"""The OpenCL library and the fake driver with GCC's address and undefined-behaviour sanitizers."""

import fcntl
import importlib.util
import os
import subprocess
import sys

import pytest

from fake_driver import ROOT, fake_library, run_child, run_with_pocl
from opencl_child import fake

sys.path.insert(0, str(ROOT / "tests" / "runtime"))

import test_opencl_choice as choice
import test_opencl_faults as faults
import test_opencl_health as health
import test_opencl_lost as lost
import test_opencl_threads as threads
import test_opencl_timer as timer

pytestmark = pytest.mark.slow

FLAGS = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
# The sanitizer sees things in the standard library's templates that are not there.
FAKE_FLAGS = (*FLAGS, "-Wno-maybe-uninitialized")


def load_build():
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sanitized() -> dict[str, str]:
    """Environment of a child with both libraries sanitized: a minute of compiling, for each change of the library."""
    folder = ROOT / "build" / "sanitized"
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("CXXFLAGS", " ".join(FLAGS))
        library = load_build().build(folder / "opencl.so", folder / "objects")
    # Python is not sanitized: the sanitizer's libraries come first, and the one whose exceptions it must see.
    names = ["libasan.so", "libubsan.so", "libstdc++.so"]
    preload = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]
    return {
        "LD_PRELOAD": os.pathsep.join(preload),
        # Python and TVM leave memory to the system at exit; driver objects are counted instead. PoCL's threads have a
        # signal stack of their own, which the sanitizer takes for its own.
        "ASAN_OPTIONS": "detect_leaks=0:use_sigaltstack=0",
        "SMARTMEM_OPENCL_LIBRARY": str(fake_library(*FAKE_FLAGS)),
        "SMARTMEM_TEST_LIBRARY": str(library),
    }


def overrun():
    fake().library.fake_overrun()


def test_the_sanitizer_is_awake(sanitized):
    with pytest.raises(AssertionError, match="heap-buffer-overflow"):
        run_child(overrun, env=sanitized)


CASES = [
    (health.tensors, ["global", 30], {}),
    (health.tensors, ["global.texture", 30], {}),
    (health.texture_plans, [64, 9], {"image_from_buffer": 1}),
    (health.texture_plans, [16, 9], {"defer": 1}),
    (health.streams, [9], {}),
    (threads.shared_kernel, [[0, 0, 1, 1], 20], {"devices": 2}),
    (threads.timed_beside_launches, [20], {"defer": 1}),
    (threads.first_uses, [8], {"build_ms": 20}),
    (health.between_devices, [], {"devices": 2}),
    (health.deferred, [], {"defer": 1}),
    (timer.nested_timers, [], {}),
    (choice.selections, [], {**choice.THREE}),
    (choice.without_devices, [], {"devices": 0}),
    (lost.lost_and_left, [2], {"devices": 2, "defer": 1}),
    (lost.lost_while_timed, [], {"devices": 2}),
    (lost.lost_beside_another, [], {"devices": 2}),
    (lost.lost_at_exit, [], {}),
    (faults.beyond_memory, [], {"memory": 1 << 24, "max_alloc": 1 << 23}),
    (faults.broken_and_left, [], {"build_fails": "broken_kernel"}),
    (faults.wrong_arguments, [], {"devices": 2}),
    (faults.group_of, [128], {"work_group": 64}),
]


@pytest.mark.parametrize(("function", "args", "settings"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_memory_is_used_as_it_should_be(sanitized, function, args, settings):
    chosen = {f"FAKE_OPENCL_{name.upper()}": str(value) for name, value in settings.items()}
    outcome = run_child(function, *args, env={**sanitized, **chosen})
    assert "Sanitizer" not in outcome.stderr
    assert "runtime error" not in outcome.stderr


def test_modules_use_memory_as_they_should(sanitized, tmp_path):
    assert run_child(health.modules, str(tmp_path), 9, env=sanitized).value[1]


@pytest.mark.parametrize(
    ("function", "args"),
    [(health.texture_plans, [64, 9]), (threads.shared_kernel, [[0, 0, 1, 1], 20]), (timer.nested_timers, [])],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_memory_is_used_as_it_should_be_on_a_real_driver(sanitized, function, args):
    environment = {name: value for name, value in sanitized.items() if name != "SMARTMEM_OPENCL_LIBRARY"}
    outcome = run_with_pocl(function, *args, devices="pthread pthread", env=environment)
    assert "Sanitizer" not in outcome.stderr

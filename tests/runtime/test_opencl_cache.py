# SPDX-License-Identifier: Apache-2.0
"""Compiled OpenCL kernels: built in parallel, kept on disk, never built twice, and errors that show the source."""

import os
import re
import resource
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fake_driver import run_child, run_with_fake, run_with_pocl
from opencl_child import fake, live, load, problem_of
from opencl_kernels import compile_kernel, elementwise, numbers, target

POCL = "Portable Computing Language"
ENTRIES = "*.clprogram"


def source(names: list[str], body: str = "") -> str:
    """OpenCL C as TVM writes it: every kernel is declared before each one."""
    declarations = "".join(f"__kernel void {name}(__global float* a);\n" for name in names)
    kernels = (f"__kernel void {name}(__global float* a) {{\n  a[0] = 1;{body}\n}}\n" for name in names)
    size = "// Work group 64 1 1, grid 16 1 1\n"
    return "".join(f"// Function: {n}\n{size}{declarations}{k}" for n, k in zip(names, kernels, strict=True))


def build(code: str, device: int = 0) -> int:
    """How many kernels were compiled; the others came from the cache."""
    create, build = (load().get_global_func(f) for f in ("ffi.Module.create.opencl", "smartmem.opencl.build"))
    return int(build(create(code.encode(), "cl", {}, {}), device))


def compiled(*names: str, body: str = "") -> int:
    return build(source(list(names), body))


def entries() -> list[Path]:
    return sorted(Path(os.environ["SMARTMEM_OPENCL_CACHE"]).glob(ENTRIES))


def cache(folder: Path, **more: str) -> dict[str, str]:
    return {"SMARTMEM_OPENCL_CACHE": str(folder), **more}


def seen_by_driver(*names: str) -> list[int]:
    return [compiled(*names), fake().calls("build from source"), fake().calls("build from binary")]


def test_another_process_compiles_nothing(tmp_path):
    env = cache(tmp_path / "new" / "folder")
    assert run_with_fake(seen_by_driver, "a", "b", "c", env=env).value == [3, 3, 0]
    assert run_with_fake(seen_by_driver, "a", "b", "c", env=env).value == [0, 0, 3]
    assert run_with_fake(seen_by_driver, "c", "d", env=env).value == [1, 1, 1], (
        "one kernel is known from the other module"
    )


@pytest.mark.parametrize(
    "other", [{"driver": "2.0"}, {"device_names": "Other GPU"}, {"platform_names": "Other"}], ids=str
)
def test_another_driver_or_device_compiles_anew(tmp_path, other):
    for settings, expected in ({}, 1), (other, 1), ({}, 0), (other, 0):
        assert run_with_fake(compiled, "a", env=cache(tmp_path), **settings).value == expected


def without_a_cache():
    return [compiled("a"), compiled("a"), str(load().get_global_func("smartmem.opencl.cache_folder")())]


def test_the_cache_can_be_turned_off():
    assert run_with_fake(without_a_cache, env={"SMARTMEM_OPENCL_CACHE": "0"}).value == [1, 1, ""]


def cache_folders() -> list[str]:
    folder = load().get_global_func("smartmem.opencl.cache_folder")
    found = []
    for variables in {"HOME": "/home/me"}, {"HOME": "/home/me", "XDG_CACHE_HOME": "/cache"}, {}, {"OURS": "/x"}:
        for name, key in ("HOME", "HOME"), ("XDG_CACHE_HOME", "XDG_CACHE_HOME"), ("SMARTMEM_OPENCL_CACHE", "OURS"):
            os.environ[name] = variables.get(key, "")
        found.append(str(folder()))
    return found


def test_the_folder_is_the_users_unless_one_is_named():
    expected = ["/home/me/.cache/smartmem_tvm/opencl", "/cache/smartmem_tvm/opencl", "", "/x"]
    assert run_with_fake(cache_folders).value == expected


def fnv(data: bytes) -> str:
    """FNV-1a of 128 bits, what an entry's file is named by and its binary checked with."""
    state = 0x6C62272E07BB014262B821756295C58D
    for byte in data:
        state = (state ^ byte) * 0x1000000000000000000013B % (1 << 128)
    return f"{state:032x}"


def refused(whole: bytes) -> bytes:
    """A whole entry with a binary that the driver does not know."""
    at, binary = whole.index(b"FAKE BINARY"), b"OTHER BINARY"
    changed = whole[:at].replace(fnv(whole[at:]).encode(), fnv(binary).encode())
    return changed.replace(struct.pack("<Q", len(whole) - at), struct.pack("<Q", len(binary))) + binary


def damaged(whole: bytes) -> dict[str, bytes]:
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    return {
        "empty": b"",
        "torn in the header": whole[:20],
        "torn": whole[:-5],
        "too long": whole + b"x",
        "a flipped bit": bytes(flipped),
        "foreign": b"something else\n" * 100,
        "of another source": whole.replace(b"a[0] = 1;", b"a[0] = 2;", 1),
        "refused by the driver": refused(whole),
    }


def damage_done() -> dict[str, list[int]]:
    """For each damage, what is compiled when it is found, and after that."""
    compiled("a")
    (path,) = entries()
    whole = path.read_bytes()
    counts = {}
    for name, content in damaged(whole).items():
        path.write_bytes(content)
        counts[name] = [compiled("a"), int(path.read_bytes() == whole), compiled("a")]
    return counts


def test_a_damaged_file_is_compiled_anew_and_replaced(tmp_path):
    counts = run_with_fake(damage_done, env=cache(tmp_path)).value
    assert len(counts) == 8
    assert {name: count for name, count in counts.items() if count != [1, 1, 0]} == {}


def test_without_a_writable_folder_there_is_one_warning_and_no_cache(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    outcome = run_with_fake(compiled, "a", "b", env=cache(tmp_path / "file"))
    assert outcome.value == 2
    assert outcome.stderr.count("compiled OpenCL kernels are not kept") == 1
    assert f"writing into {tmp_path / 'file'} failed" in outcome.stderr
    assert "set SMARTMEM_OPENCL_CACHE to another folder, or to 0 for none." in outcome.stderr


def full_disk() -> list[int]:
    compiled("a")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
    counts = [compiled("b"), compiled("c"), compiled("a")]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return counts


def test_a_full_disk_leaves_no_half_files(tmp_path):
    outcome = run_with_fake(full_disk, env=cache(tmp_path))
    assert outcome.value == [1, 1, 0]
    assert len(list(tmp_path.iterdir())) == 1
    assert outcome.stderr.count("are not kept") == 1 and "File too large" in outcome.stderr


def test_processes_share_the_folder(tmp_path):
    names = [f"k{i}" for i in range(12)]

    def process(_):
        return run_with_fake(compiled, *names, env=cache(tmp_path), build_ms=20).value

    with ThreadPoolExecutor(3) as pool:
        assert all(count in range(13) for count in pool.map(process, range(3)))
    assert len(list(tmp_path.iterdir())) == 12
    assert process(None) == 0


def fill(count: int) -> list[list[str]]:
    """Kernels of 200 KB, the first one used again and again: what is left of them, and of other files."""
    folder = Path(os.environ["SMARTMEM_OPENCL_CACHE"])
    folder.mkdir(exist_ok=True)
    old = time.time() - 7200
    for name in "notes.txt", "unfinished-abc123":
        (folder / name).write_text("x" * 500_000)
        os.utime(folder / name, (old, old))
    for i in range(count):
        compiled(f"k{i}", body="/*" + "x" * 200_000 + "*/")
        compiled("k0", body="/*" + "x" * 200_000 + "*/")
    kept = b"".join(path.read_bytes() for path in entries())
    left = [f"k{i}" for i in range(count) if f"void k{i}(".encode() in kept]
    return [left, sorted(path.name for path in folder.iterdir() if path.suffix != ".clprogram")]


def test_the_least_recently_used_go_when_the_folder_is_full(tmp_path):
    kernels, others = run_with_fake(fill, 9, env=cache(tmp_path, SMARTMEM_OPENCL_CACHE_MB="2")).value
    assert sum(path.stat().st_size for path in tmp_path.glob(ENTRIES)) <= 2 << 20
    assert kernels[0] == "k0" and kernels[-1] == "k8" and 3 <= len(kernels) < 9
    assert others == ["notes.txt"], "only our own files are deleted, abandoned ones too"


def most_builds_at_once() -> list[int]:
    names = [f"k{i}" for i in range(12)]
    compiled(*names)
    return [fake().report()["max_parallel_builds"], fake().calls("build from source")]


@pytest.mark.parametrize("jobs", [1, 6])
def test_as_many_kernels_are_built_at_a_time_as_jobs_are_set(jobs):
    assert run_with_fake(most_builds_at_once, build_ms=100, env={"SMARTMEM_OPENCL_JOBS": str(jobs)}).value == [jobs, 12]


def refused_settings() -> str:
    return problem_of(lambda: compiled("a"))


@pytest.mark.parametrize("value", ["0", "-1", "many", "2x"])
def test_a_wrong_number_of_jobs_is_an_error(value):
    problem = run_with_fake(refused_settings, env={"SMARTMEM_OPENCL_JOBS": value}).value
    assert f"SMARTMEM_OPENCL_JOBS is '{value}' and must be a whole number, at least 1." in problem


def build_failure(names: list[str], wrong: list[str], line: str) -> list:
    code = source(names)
    for name in wrong:
        code = code.replace(f"void {name}(__global float* a) {{\n", f"void {name}(__global float* a) {{\n  {line}\n")
    problem = problem_of(lambda: build(code))
    return [problem, live()["program"]]


def test_a_build_error_names_the_kernel_and_shows_the_lines():
    problem, programs = run_with_fake(build_failure, ["a", "b", "c", "d"], ["b", "d"], "FAKE_BUILD_FAILS").value
    assert problem.startswith("the OpenCL kernel b cannot be built for opencl:0 (")
    assert "CL_BUILD_PROGRAM_FAILURE. The driver says:\nkernel.cl:4:1: error: the marker is here" in problem
    assert "      3 | __kernel void b(" in problem
    assert "\n>     4 |   FAKE_BUILD_FAILS\n      5 |   a[0] = 1;\n" in problem
    assert "1 more of the module's kernels cannot be built either." in problem
    assert programs == 0


def test_the_error_shows_what_a_real_driver_says():
    problem, programs = run_with_pocl(build_failure, ["a", "b"], ["b"], "float x = no_such_thing;").value
    assert problem.startswith("the OpenCL kernel b cannot be built for opencl:0 (")
    assert "undeclared identifier 'no_such_thing'" in problem
    assert "\n>     4 |   float x = no_such_thing;\n" in problem
    assert "more of" not in problem and programs == 0


def launch_of_broken_code() -> str:
    import tvm_ffi

    @tvm_ffi.register_global_func("tvm_callback_opencl_postproc")
    def break_it(code, _target):
        return code.replace("{", "{ this is not C;", 1)

    run, device = compile_kernel(elementwise("broken", 64)), load().opencl(0)
    tensors = [load().runtime.tensor(numbers(64), device) for _ in range(2)]
    return problem_of(lambda: run(*tensors))


def test_an_error_reaches_the_caller_of_the_kernel():
    problem = run_with_pocl(launch_of_broken_code).value
    assert "the OpenCL kernel broken_kernel cannot be built" in problem and "this is not C" in problem


def no_kernels() -> str:
    return problem_of(lambda: build("__kernel void a(__global float* a) {}\n"))


def test_code_without_marks_is_an_error():
    assert 'has to begin with a line "// Function: NAME"' in run_with_fake(no_kernels).value


def seen_with_workers(names: list[str], body: str) -> list[int]:
    first = compiled(*names, body=body)
    calls = [fake().calls("build from source"), fake().calls("build from binary")]
    return [first, *calls, compiled(*names, body=body)]


def test_workers_compile_for_a_driver_that_compiles_at_the_launch(tmp_path):
    names = [f"k{i}" for i in range(20)]
    env = cache(tmp_path, SMARTMEM_OPENCL_JOBS="3")
    seen = run_with_fake(seen_with_workers, names, "", env=env, platform_names=POCL)
    assert seen.value == [20, 0, 20, 0], "compiled, but not in this process"
    assert len(list(tmp_path.iterdir())) == 20


def test_a_few_kernels_are_not_worth_a_worker(tmp_path):
    seen = run_with_fake(seen_with_workers, ["a", "b", "c"], "", env=cache(tmp_path), platform_names=POCL).value
    assert seen == [3, 3, 0, 3], "and what is compiled before PoCL's first launch is not worth keeping"


def test_what_a_worker_cannot_build_is_an_error_here(tmp_path):
    names = [f"k{i}" for i in range(5)]
    problem, programs = run_with_fake(
        build_failure, names, ["k3"], "FAKE_BUILD_FAILS", env=cache(tmp_path), platform_names=POCL
    ).value
    assert problem.startswith("the OpenCL kernel k3 cannot be built") and programs == 0
    assert len(list(tmp_path.iterdir())) == 4, "the others are kept"


def without_a_worker_command() -> list[int]:
    load().get_global_func("smartmem.opencl.worker")(["/no/such/python"])
    names = [f"k{i}" for i in range(5)]
    return [compiled(*names), fake().calls("build from source")]


def test_workers_that_do_not_start_are_done_without(tmp_path):
    assert run_with_fake(without_a_worker_command, env=cache(tmp_path), platform_names=POCL).value == [5, 5]


def slow_kernels(count: int) -> list:
    """Compile and launch kernels that take the driver long; seconds, how many were compiled, what they compute."""
    tvm = load()
    module = tvm.IRModule({f"k{i}": elementwise(f"k{i}", 128, addend=float(i)) for i in range(count)})

    import tvm_ffi

    @tvm_ffi.register_global_func("tvm_callback_opencl_postproc")
    def lengthen(code, _target):
        terms = "".join(f"  x = x * {1 + i / 1e6:.6f}f + sin(x + {i}.0f);\n" for i in range(60))
        longer = f"  float x = dst_ptr[0];\n{terms}  if (x == 0.1234f) dst_ptr[0] = x;\n}}\n"
        return re.sub(r"\}\s*$", longer, code)

    run, device = tvm.compile(module, target=target()), tvm.opencl(0)
    names = [f"k{i}" for i in range(count)]
    begin = time.perf_counter()
    made = int(tvm.get_global_func("smartmem.opencl.build")(opencl_module(run), 0))
    results = []
    for name in names:
        source, result = (tvm.runtime.tensor(numbers(128), device) for _ in range(2))
        run[name](source, result)
        results.append(float(result.numpy()[5]))
    return [time.perf_counter() - begin, made, results]


def opencl_module(executable):
    modules = [executable.mod]
    for module in modules:
        modules.extend(module.imports)
    return next(module for module in modules if module.kind == "opencl")


def test_the_second_process_on_pocl_is_ten_times_faster_without_pocls_own_cache(tmp_path):
    runs = []
    for i in range(2):
        env = cache(tmp_path / "ours", POCL_CACHE_DIR=str(tmp_path / f"pocl{i}"))
        runs.append(run_with_pocl(slow_kernels, 4, env=env).value)
    (first, made, results), (second, made_again, results_again) = runs
    assert (made, made_again) == (4, 0)
    assert results == results_again == [5.0 + i for i in range(4)]
    assert first > 10 * second, f"{first:.2f} s and {second:.2f} s"


def sources() -> list[str]:
    return [str(opencl_module(compile_kernel(elementwise("one", size))).inspect_source()) for size in (128, 1024)]


def test_source_says_how_its_kernels_are_launched():
    small, large = run_child(sources).value
    assert small.startswith("// Function: one_kernel\n// Work group 64 1 1, grid 2 1 1\n")
    assert large.startswith("// Function: one_kernel\n// Work group 64 1 1, grid 16 1 1\n")

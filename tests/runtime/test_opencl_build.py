# SPDX-License-Identifier: Apache-2.0
"""OpenCL kernels are built in parallel, by other processes where the driver needs that, and errors show the source."""

import os
import re
import sys
import time

import pytest

import _smartmem_opencl_workers
from fake_driver import run_child, run_with_fake, run_with_pocl
from opencl_child import fake, live, load, problem_of
from opencl_kernels import add_one, check_add_one, compile_kernel, elementwise, numbers, target
from opencl_sources import POCL, build, cache, compiled, opencl_module, seen_by_driver, source


def most_builds_at_once() -> list[int]:
    names = [f"k{i}" for i in range(12)]
    compiled(*names)
    return [fake().report()["max_parallel_builds"], fake().calls("build from source")]


@pytest.mark.parametrize("jobs", [1, 6])
def test_as_many_kernels_are_built_at_a_time_as_jobs_are_set(jobs):
    assert run_with_fake(most_builds_at_once, build_ms=100, env={"SMARTMEM_OPENCL_JOBS": str(jobs)}).value == [jobs, 12]


@pytest.mark.device
@pytest.mark.parametrize("value", ["0", "-1", "many", "2x"])
def test_a_wrong_number_of_jobs_is_an_error(value):
    problem = run_with_fake(refused_setting, env={"SMARTMEM_OPENCL_JOBS": value}).value
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


def refused_setting() -> str:
    return problem_of(lambda: compiled("a"))


def test_options_that_the_driver_does_not_know_are_named():
    problem = run_with_pocl(refused_setting, env={"SMARTMEM_OPENCL_OPTIONS": "-no-such-option"}).value
    assert "cannot be built for opencl:0 (" in problem
    assert "with SMARTMEM_OPENCL_OPTIONS '-no-such-option': CL_" in problem


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


def seen_with_workers(*names: str) -> list[int]:
    """What the driver sees in this process at the first build, and how many are compiled at the second."""
    return [*seen_by_driver(*names), compiled(*names)]


def test_workers_compile_for_a_driver_that_compiles_at_the_launch(tmp_path):
    names = [f"k{i}" for i in range(20)]
    env = cache(tmp_path, SMARTMEM_OPENCL_JOBS="3")
    seen = run_with_fake(seen_with_workers, *names, env=env, platform_names=POCL)
    assert seen.value == [20, 0, 20, 0], "compiled, but not in this process"
    assert len(list(tmp_path.iterdir())) == 20


def test_a_few_kernels_are_not_worth_a_worker(tmp_path):
    seen = run_with_fake(seen_with_workers, "a", "b", "c", env=cache(tmp_path), platform_names=POCL).value
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


def with_a_worker_that_starts_itself(log: str) -> list[int]:
    """As if the command were a program that compiles a module of its own at its start, and so starts workers."""
    program = f"open({log!r}, 'a').write('x'); import opencl_sources; opencl_sources.compiled(*'abcdef')"
    load().get_global_func("smartmem.opencl.worker")([sys.executable, "-c", program])
    return seen_by_driver(*"abcdef")


@pytest.mark.device
def test_workers_start_no_workers(tmp_path):
    log = tmp_path / "starts"
    env = cache(tmp_path / "cache", SMARTMEM_OPENCL_JOBS="2", PYTHONPATH=os.pathsep.join(sys.path))
    run_with_fake(with_a_worker_that_starts_itself, str(log), env=env, platform_names=POCL)
    assert 1 <= len(log.read_text()) <= 6, "one for each batch at most"


@pytest.mark.parametrize(
    ("executable", "frozen", "expected"),
    [
        ("/usr/bin/python3.12", False, True),
        ("/opt/app/tool", False, False),
        ("/opt/app/python", True, False),
        ("", False, False),
    ],
)
def test_a_program_that_is_no_interpreter_is_not_started(monkeypatch, executable, frozen, expected):
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    assert _smartmem_opencl_workers._is_interpreter() is expected


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


@pytest.mark.device
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


def sources_of_groups() -> list[str]:
    return [
        str(opencl_module(compile_kernel(elementwise("one", 1024, group))).inspect_source()) for group in (256, 512)
    ]


def test_large_work_groups_are_stated_to_the_driver():
    """NVIDIA's gives a kernel in float64 more registers than 1,024 work-items of it have, if it does not know."""
    small, large = run_child(sources_of_groups).value
    assert "reqd_work_group_size" not in small
    assert large.count("__kernel void __attribute__((reqd_work_group_size(512, 1, 1))) one_kernel(") == 1
    assert "__kernel void one_kernel(" in large, "the prototype stays as TVM prints it"


@pytest.mark.device
def test_a_large_work_group_runs():
    assert run_with_pocl(large_group).value


def large_group() -> bool:
    return check_add_one(add_one(1024, 512), load().opencl(0))

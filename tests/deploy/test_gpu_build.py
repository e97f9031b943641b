# SPDX-License-Identifier: Apache-2.0
"""Kernels for a GPU are lowered in parts, and those for CUDA compiled in parts, side by side, and once.

Neither a CUDA device nor NVIDIA's compiler is needed: an ``nvcc`` on the PATH notes when it worked on which kernels,
and a function stands for the one of TVM's that makes a module of the device.
"""

import json
import os
import re
import stat
import sys

import pytest
import tvm
import tvm_ffi

from helpers import module, op
from smartmem_tvm import UserError
from smartmem_tvm.deploy import build, gpu_build
from smartmem_tvm.deploy.cuda_compiler import CALLBACK, compiler
from smartmem_tvm.schedule.schedule_kernels import ScheduleKernels
from smartmem_tvm.target import parse_target

VULKAN = parse_target("vulkan")  # TVM's wheel knows the target, and generates no code for it
CREATE = "ffi.Module.create.cuda"
NVCC = """#!{python}
import json, os, sys, time
if "--version" in sys.argv:
    print("nvcc, version", os.environ.get("FAKE_VERSION", "1"))
    sys.exit()
began, source = time.time(), open(sys.argv[-1]).read()
if "does_not_compile" in source:
    sys.exit("error: no")
time.sleep(0.4)
with open(sys.argv[sys.argv.index("-o") + 1], "w") as out:
    out.write(source)
note = {{"began": began, "ended": time.time(), "options": sys.argv[1:], "source": source}}
with open(os.path.join({notes!r}, str(os.getpid())), "w") as out:
    json.dump(note, out)
"""


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    """An nvcc that returns its input; calling this tells what it was asked to do, and forgets it."""
    notes = tmp_path / "notes"
    notes.mkdir()
    program = tmp_path / "bin" / "nvcc"
    program.parent.mkdir()
    program.write_text(NVCC.format(python=sys.executable, notes=str(notes)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    monkeypatch.setenv("SMARTMEM_CUDA_CACHE", str(tmp_path / "cache"))

    def calls():
        files = list(notes.iterdir())
        found = [json.loads(path.read_text()) for path in files]
        for path in files:
            path.unlink()
        return found

    return calls


@pytest.fixture
def on_device():
    """Makes modules of what the compiler returned, as TVM does where there is a CUDA driver."""
    before = tvm.get_global_func(CREATE, allow_missing=True)

    def create(source, _format, _functions, _sources):
        binary = tvm.get_global_func(CALLBACK)(source.decode())
        return tvm.get_global_func("runtime.SourceModuleCreate")(bytes(binary).decode(), "cuda")

    tvm.register_global_func(CREATE, create, override=True)
    yield
    tvm_ffi.registry.remove_global_func(CREATE)
    if before is not None:
        tvm.register_global_func(CREATE, before)


def kernels(sizes=(64, 128, 192, 256)):
    """Scheduled element-wise kernels for CUDA, one for each size."""
    target = parse_target("cuda")

    def network(x):
        return [op.exp(op.strided_slice(x, [0], [0], [size])) for size in sizes]

    with target:
        graph = build.optimize(module(network, (max(sizes),)))
        mod = ScheduleKernels()(graph)
    functions = [(gvar.name_hint, func) for gvar, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]
    return tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in functions}), target


def names(source: str) -> set[str]:
    """Kernels that a source defines."""
    return set(re.findall(r"__launch_bounds__\(\d+\) (\w+)\([^)]*\) {", source))


def test_parts_are_compiled_side_by_side(nvcc, on_device, monkeypatch):
    monkeypatch.setattr(gpu_build, "_cores", lambda: 4)
    mod, target = kernels()
    library = gpu_build.build_kernels(mod, target)
    calls = nvcc()
    assert len(calls) == len(library.imports) == 4
    assert all(len(names(call["source"])) == 1 for call in calls)
    assert max(call["began"] for call in calls) < min(call["ended"] for call in calls), "one after the other"
    # What the compiler made is what the library holds, each kernel once.
    held = [names(each.inspect_source()) for each in library.imports]
    assert set.union(*held) == {f"{gvar.name_hint}_kernel" for gvar in mod.get_global_vars()}
    assert sum(map(len, held)) == 4


def test_the_architecture_is_the_targets(nvcc, on_device):
    mod, target = kernels((64,))
    gpu_build.build_kernels(mod, target)
    (call,) = nvcc()
    assert f"arch=compute_{target.attrs['arch'][3:]},code={target.attrs['arch']}" in call["options"]


def test_what_was_compiled_once_is_not_compiled_again(nvcc, on_device, monkeypatch):
    mod, target = kernels()
    first = gpu_build.build_kernels(mod, target)
    assert nvcc()
    second = gpu_build.build_kernels(mod, target)
    assert nvcc() == []
    sources = [sorted(each.inspect_source() for each in library.imports) for library in (first, second)]
    assert sources[0] == sources[1]
    # A compiler with other options makes something else.
    monkeypatch.setenv("TVM_CUDA_PTXAS_EXTRA_OPTS", "-O1")
    gpu_build.build_kernels(mod, target)
    assert nvcc()
    monkeypatch.setenv("SMARTMEM_CUDA_CACHE", "0")
    gpu_build.build_kernels(mod, target)
    gpu_build.build_kernels(mod, target)
    assert nvcc()


def test_what_does_not_compile_is_an_error_and_tvms_compiler_comes_back(nvcc, on_device, tmp_path):
    before = tvm.get_global_func(CALLBACK)
    mod, target = kernels((64,))
    ((_, func),) = mod.functions_items()
    broken = tvm.IRModule({"does_not_compile": func.with_attr("global_symbol", "does_not_compile")})
    with pytest.raises(RuntimeError, match="error: no"):
        gpu_build.build_kernels(broken, target)
    assert tvm.get_global_func(CALLBACK).same_as(before)
    assert not list((tmp_path / "cache").glob("*"))


def test_without_a_device_runtime_the_source_stays_whole(nvcc):
    mod, target = kernels()
    library = gpu_build.build_kernels(mod, target)
    assert nvcc() == []
    (kept,) = library.imports
    assert len(names(kept.inspect_source())) == 4


def test_a_whole_model_goes_that_way(nvcc, on_device, monkeypatch):
    monkeypatch.setattr(gpu_build, "_cores", lambda: 2)
    mod = module(lambda x: op.exp(op.nn.softmax(op.exp(x))) + op.nn.softmax(op.permute_dims(x)), (32, 32))
    compiled = build.compile(mod, parse_target("cuda"))
    assert len(nvcc()) == 2
    (host,) = compiled.executable.mod.imports
    assert len(host.imports) == 2


@pytest.mark.parametrize("parts", [1, 3, 7, 100])
def test_parts_hold_every_kernel_once_and_weigh_the_same(parts):
    mod, _ = kernels(tuple(range(64, 64 + 9 * 8, 8)))
    found = gpu_build.split(mod, parts)
    assert len(found) == min(parts, 9)
    everything = [gvar.name_hint for part in found for gvar in part.get_global_vars()]
    assert sorted(everything) == sorted(gvar.name_hint for gvar in mod.get_global_vars())
    counts = [len(part.functions) for part in found]
    assert max(counts) - min(counts) <= 1
    tvm.ir.assert_structural_equal(gpu_build.join(found), mod)


def test_functions_that_others_may_call_stay_with_them():
    mod, _ = kernels((64, 128))
    private = {gvar: func.without_attr("global_symbol") for gvar, func in mod.functions_items()}
    (whole,) = gpu_build.split(tvm.IRModule(private), 2)
    assert len(whole.functions) == 2


def test_many_threads_lower_as_one_does(monkeypatch):
    mod, target = kernels(tuple(range(64, 64 + 12 * 8, 8)))
    sources = []
    for cores in (1, 6, 12):
        monkeypatch.setattr(gpu_build, "_cores", lambda cores=cores: cores)
        library = gpu_build.build_kernels(mod, target)
        device, *callers = library.imports
        # Whoever launches a kernel looks for it in its own imports.
        assert len(callers) == 2 and all(each.imports[0].same_as(device) for each in callers)
        sources.append(set(device.inspect_source().split('extern "C"')))
    assert sources[0] == sources[1] == sources[2]
    assert len(names('extern "C"'.join(sources[0]))) == 12


def test_no_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("smartmem_tvm.deploy.cuda_compiler._has_nvrtc", lambda: False)
    with pytest.raises(UserError, match=r"neither: .*nvcc on the PATH.*cuda-bindings"):
        compiler()
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "clang")
    with pytest.raises(UserError, match=r"'clang' and must be 'nvcc' or 'nvrtc'"):
        compiler()


def test_the_compiler_is_the_one_that_is_there(monkeypatch, nvcc, tmp_path):
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE")
    monkeypatch.setattr("smartmem_tvm.deploy.cuda_compiler._has_nvrtc", lambda: True)
    assert compiler() == "nvcc"
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvrtc")
    assert compiler() == "nvrtc"
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler() == "nvrtc"


def test_a_target_without_a_code_generator_is_refused():
    with pytest.raises(UserError, match="no code generator for 'vulkan'"):
        build.compile(module(lambda x: op.nn.relu(x), (4, 4)), VULKAN)

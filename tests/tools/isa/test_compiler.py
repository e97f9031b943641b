# SPDX-License-Identifier: Apache-2.0
"""Run Mesa's compiler: refusals, what is kept, and the real one where it is set up."""

import pytest

from smartmem_tvm import mesa_folder
from smartmem_tvm.errors import UserError
from smartmem_tvm.tools.isa import compiler
from smartmem_tvm.tools.isa.compiler import Compiled, compile_all, prepared

SOURCE = """// Work group 8 4 1, grid 2 1 1
__kernel void other(__global float* x);
__kernel void scale(__global float* x);
__kernel void scale(__global float* x) {
  x[get_local_id(0)] *= 2.0f;
}
"""


@pytest.fixture
def mesa(tmp_path, monkeypatch):
    """A folder that looks like Mesa's, whose compiler answers from this process; returns the list of its runs."""
    runs = []

    def run(programs, gpu):
        runs.append((list(programs), gpu))
        for name in programs:
            yield name, Compiled(f"code of {name} for {gpu}", 64)

    program = tmp_path / "mesa" / mesa_folder.ROOT / mesa_folder.PROGRAM
    program.parent.mkdir(parents=True)
    program.touch()
    (tmp_path / "mesa" / mesa_folder.VERSION).write_text("26.2.6-1\n")
    monkeypatch.setenv(mesa_folder.FOLDER_VARIABLE, str(tmp_path / "mesa"))
    monkeypatch.setenv(compiler.FOLDER_VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(compiler, "mesa_problem", lambda *_: None)
    monkeypatch.setattr(compiler, "_run", run)
    return runs


def test_a_size_of_thread_block_is_stated_and_other_kernels_are_left_out():
    program = prepared(SOURCE)
    assert program.count("reqd_work_group_size(8, 4, 1)") == 1 == program.count("__kernel")
    assert "other" not in program and prepared(program) == program
    assert prepared("__kernel void a() {}\n") == "__kernel void a() {}\n"


def test_what_was_compiled_is_kept(mesa, tmp_path):
    first = compile_all({"a": SOURCE, "b": SOURCE + "// b\n"}, 740)
    assert mesa == [(["a", "b"], 740)] and first["b"].code == "code of b for 740"
    seen = []
    again = compile_all({"b": SOURCE + "// b\n", "c": SOURCE + "// c\n", "a": SOURCE}, 740, seen.append)
    assert mesa[1:] == [(["c"], 740)] and list(again) == ["b", "c", "a"] and again["a"] == first["a"]
    assert sorted(seen) == ["a", "b", "c"]
    compile_all({"a": SOURCE}, 660)
    assert mesa[2:] == [(["a"], 660)]
    (tmp_path / "mesa" / mesa_folder.VERSION).write_text("27.0.0-1\n")
    compile_all({"a": SOURCE}, 740)
    assert mesa[3:] == [(["a"], 740)]


def test_a_run_goes_on_behind_a_kernel_that_ends_the_compiler(mesa, monkeypatch, tmp_path):
    def run(programs, _gpu):
        for name in programs:
            yield name, Compiled(refused=compiler.ENDED) if name == "b" else Compiled("code", 64)
            if name == "b":
                return

    monkeypatch.setattr(compiler, "_run", run)
    found = compile_all({name: f"{SOURCE}// {name}\n" for name in "abc"}, 740)
    assert [found[name].refused for name in "abc"] == ["", compiler.ENDED, ""]
    compile_all({"b": f"{SOURCE}// b\n"}, 740)
    assert len(list((tmp_path / "kept").iterdir())) == 2  # a killed compiler is asked again


def test_a_compiler_that_does_nothing_is_an_error(mesa, monkeypatch):
    monkeypatch.setattr(compiler, "_run", lambda *_: iter(()))
    with pytest.raises(UserError, match="--setup"):
        compile_all({"a": SOURCE}, 740)


def test_a_folder_of_mesa_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv(mesa_folder.FOLDER_VARIABLE, str(tmp_path / "none"))
    monkeypatch.setenv(compiler.FOLDER_VARIABLE, "0")
    monkeypatch.setattr(compiler, "mesa_problem", lambda *_: None)
    monkeypatch.setattr(compiler, "mesa_version", lambda *_: "26.2.6-1")
    with pytest.raises(UserError, match=r"cannot be written.*set SMARTMEM_MESA to a folder of your own"):
        compile_all({"a": SOURCE}, 740)


@pytest.mark.parametrize(("gpu", "nearest"), [(650, 660), (540, 610), (640, 660), (999, 830)])
def test_an_adreno_that_mesa_does_not_take(gpu, nearest):
    with pytest.raises(UserError, match=f"Adreno {gpu}; give --gpu {nearest}"):
        compile_all({"a": SOURCE}, gpu)


def test_without_mesa_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(mesa_folder.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(mesa_folder, "machine_problem", lambda *_: None)
    with pytest.raises(UserError) as refused:
        compile_all({"a": SOURCE}, 740)
    assert str(refused.value) == f"Mesa's compiler for Adreno is not in {tmp_path}: run `smartmem isa --setup`."


@pytest.mark.device
def test_mesa_itself():
    if problem := mesa_folder.mesa_problem():
        pytest.skip(f"{problem}: no kernel was compiled")
    bad = "__kernel void bad(__global float* x) { x[0] = nonsense; }"
    found = compile_all({"scale": SOURCE, "bad": bad}, 660)
    assert "max_waves" in found["scale"].code and found["scale"].threads >= 32
    assert "nonsense" in found["bad"].refused

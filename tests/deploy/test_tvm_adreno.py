# SPDX-License-Identifier: Apache-2.0
"""TVM's own names for Adreno: a user's code that knows nothing of this package runs on an OpenCL device."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op
from tvm.relax.backend import adreno
from tvm.tirx import compilation_pipeline

import _smartmem_pipeline
from smartmem_tvm.deploy import textures
from smartmem_tvm.deploy.textures import TIR_PIPELINE
from smartmem_tvm.errors import UserError
from smartmem_tvm.transform.layout.check_textures import SCOPES, CheckTextures
from texture_modules import TARGET, Program, emitted, opencl, single_numbers, to_texels

ROOT = Path(__file__).parents[2]
SHAPES = [(1, 8, 6, 6), (8, 8, 3, 3), (4, 8, 1, 1)]
BUFFERS = tvm.target.Target("qcom/adreno-opencl").with_host("llvm")


def network(emit, x, w, v):
    return emit(op.nn.relu(emit(op.nn.conv2d(emit(op.nn.conv2d(x, w, padding=1)), v))))


@pytest.fixture(scope="module")
def expected():
    """The inputs, and what LLVM makes of them."""
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, shape).astype("float32") for shape in SHAPES]
    machine = relax.VirtualMachine(tvm.compile(emitted(network, SHAPES), "llvm"), tvm.cpu())
    return inputs, machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


def in_two_steps(mod, target):
    """As TVM's own tests do: what the default pipeline lowered goes through it once more in ``tvm.compile``."""
    lowered = relax.get_default_pipeline(target)(mod)
    return tvm.compile(lowered, target, tir_pipeline=tvm.tirx.get_default_tir_pipeline(target))


def by_names(mod, target):
    return tvm.compile(mod, target, relax_pipeline=relax.get_default_pipeline(target), tir_pipeline="adreno")


def ours_by_name(mod, target):
    return tvm.compile(mod, target, relax_pipeline="smartmem", tir_pipeline="adreno")


@pytest.mark.device
@pytest.mark.parametrize("target", [TARGET, BUFFERS], ids=["textures", "buffers"])
@pytest.mark.parametrize("flow", [in_two_steps, by_names, ours_by_name])
def test_right(flow, target, expected):
    inputs, result = expected
    device = opencl()
    machine = relax.VirtualMachine(flow(emitted(network, SHAPES), target), [device] * (1 + len(SCOPES)))
    found = machine["main"](*[tvm.runtime.tensor(x, device) for x in inputs]).numpy()
    np.testing.assert_allclose(found, result, rtol=1e-4, atol=1e-4)


def test_the_module_of_the_caller_is_not_changed():
    """Its inputs and weights had TVM's memory scopes afterwards, and the next compilation did not know these."""
    weight = relax.const(np.ones((8, 8, 3, 3), "float32"))
    mod = emitted(lambda emit, x: emit(op.nn.conv2d(x, weight)), SHAPES[:1])
    before = mod.script(show_meta=True)
    for _ in range(2):
        assert "vdevice" in relax.get_default_pipeline(TARGET)(mod).global_infos
    assert mod.script(show_meta=True) == before
    assert tvm_ffi.structural_equal(mod, emitted(lambda emit, x: emit(op.nn.conv2d(x, weight)), SHAPES[:1]))


def single_numbers_of_texels():
    """A kernel that writes a texture number by number, which no schedule of ours can mend as it has been lowered."""
    program = Program()
    program.kernel(to_texels((8, 8, 4)), program.input((256,)), scope="global.texture", schedule=single_numbers)
    return program.module(program.calls[0][0])


def test_a_kernel_of_tvm_that_breaks_a_rule_of_textures_is_named_and_not_refused(caplog):
    mod = single_numbers_of_texels()
    with pytest.raises(UserError, match="texel by texel"):
        CheckTextures()(mod)
    assert tvm_ffi.structural_equal(CheckTextures(refuse=False)(mod), mod)
    (said,) = caplog.messages
    assert "kernel 'kernel_t0' does not write texture 'texels' texel by texel" in said


def test_the_pipeline_of_tvms_name_builds_it(caplog, monkeypatch):
    """`ScheduleTexels` would mend this one first."""
    monkeypatch.setattr(textures, "ScheduleTexels", lambda: tvm.transform.Sequential([]))
    mod = tvm.IRModule({"main": single_numbers_of_texels()["kernel_t0"].with_attr("global_symbol", "main")})
    tvm.tirx.build(mod, TARGET, pipeline="adreno")
    assert [said for said in caplog.messages if "texel by texel" in said]
    with pytest.raises(UserError, match="texel by texel"):
        tvm.tirx.build(mod, TARGET, pipeline=TIR_PIPELINE)


def test_pipelines_of_others_stay(monkeypatch):
    def others(*_):
        return None

    monkeypatch.setattr(adreno, "get_default_pipeline", others)
    monkeypatch.setitem(compilation_pipeline.PIPELINE_MAP, "adreno", others)
    _smartmem_pipeline.autoload()
    assert adreno.get_default_pipeline is others and compilation_pipeline.PIPELINE_MAP["adreno"] is others


def test_element_types_are_types_of_numpy():
    """TVM's own tests make their inputs so."""
    for name in ("float32", "float16", "int64", "bool", "uint8"):
        assert np.zeros(2, relax.TensorType((2,), name).dtype).dtype == name


SCRIPT = ROOT / "scripts" / "tvm_adreno_tests.py"
TVMS_TEST = """
import sys
import pytest

@pytest.mark.gpu
def test_imported():
    assert "smartmem_tvm" in sys.modules

@pytest.mark.skip(reason="Known failure: numerical mismatch")
def test_skipped():
    pass
"""


WITH_SKIPPED = pytest.param(("--skipped",), "2 passed", marks=pytest.mark.device)


@pytest.mark.parametrize("options, counts", [((), "1 passed, 1 skipped"), WITH_SKIPPED])
def test_the_script_that_runs_tests_of_a_checkout(tmp_path, options, counts):
    folder = tmp_path / "tests/python/relax/backend/adreno"
    folder.mkdir(parents=True)
    (folder / "test_texture_ops.py").write_text(TVMS_TEST)
    (folder / "test_clml_ops.py").write_text("raise RuntimeError")
    command = [sys.executable, str(SCRIPT), str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and counts in done.stdout, done.stdout + done.stderr


def test_the_script_says_what_is_no_checkout(tmp_path):
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "name a checkout of TVM's source" in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""build_textures and texture_machine: the ways in, a target without textures of its own, and a library on disk."""

import numpy as np
import pytest
import tvm
from tvm import relax, te

from smartmem_tvm.deploy.textures import TIR_PIPELINE, build_textures, texture_machine
from smartmem_tvm.errors import UserError
from texture_modules import TARGET, Program, from_texels, opencl, sources, to_texels

ARRAY = np.random.default_rng(0).uniform(-1, 1, (7, 13)).astype("float32")


def doubled(shape=(4, 6, 4), scope="global.texture"):
    program = Program()
    t = program.kernel(to_texels(shape), program.input(ARRAY.shape), scope=scope)
    return program.module(program.kernel(from_texels(ARRAY.shape, value=lambda v: v + v), t))


def run(code):
    device = opencl()
    return texture_machine(code, device)["main"](tvm.runtime.tensor(ARRAY, device)).numpy()


def lowered_by_tvm(mod):
    passes = relax.backend.gpu_generic.dataflow_lower_passes(TARGET) + relax.backend.gpu_generic.finalize_passes(TARGET)
    return tvm.transform.Sequential(passes)(mod)


def test_a_module_of_scheduled_kernels():
    assert np.array_equal(run(build_textures(doubled(), TARGET)), 2 * ARRAY)


def test_a_module_lowered_by_tvm():
    assert np.array_equal(run(build_textures(lowered_by_tvm(doubled()), TARGET)), 2 * ARRAY)


def test_through_tvm_compile():
    executable = tvm.compile(lowered_by_tvm(doubled()), TARGET, relax_pipeline=None, tir_pipeline=TIR_PIPELINE)
    assert "image2d_array_t" in "".join(sources(executable).values())
    assert np.array_equal(run(executable), 2 * ARRAY)


def test_a_plain_opencl_target():
    """The kernels are what they are; the target's keys only decide about TVM's own schedules."""
    plain = tvm.target.Target("opencl", host="llvm")
    assert np.array_equal(run(build_textures(doubled(), plain)), 2 * ARRAY)


def test_from_a_library(tmp_path):
    path = tmp_path / "textures.so"
    build_textures(doubled(), TARGET).export_library(str(path))
    assert np.array_equal(run(tvm.runtime.load_module(str(path))), 2 * ARRAY)


def test_modules_without_textures():
    program = Program()
    x = program.input(ARRAY.shape)
    mod = program.module(program.kernel(lambda a: te.compute(a.shape, lambda *i: a(*i) * 2.0), x))
    assert np.array_equal(run(build_textures(mod, TARGET)), 2 * ARRAY)


def test_an_error_is_the_users_wherever_it_comes_from():
    bad = doubled((4, 3, 8))
    with pytest.raises(UserError) as ours:
        build_textures(bad, TARGET)
    with pytest.raises(UserError) as tvms:
        tvm.compile(lowered_by_tvm(bad), TARGET, relax_pipeline=None, tir_pipeline=TIR_PIPELINE)
    assert str(ours.value) == str(tvms.value)

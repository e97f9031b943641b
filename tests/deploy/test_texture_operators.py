# SPDX-License-Identifier: Apache-2.0
"""Every operator with its tensors in textures: between kernels that write and read them, on an OpenCL device."""

import re

import numpy as np
import pytest

from helpers import graph, legalize, module, random, run
from opencl_parser import parse_kernels, sources
from opencl_rules import check_opencl
from smartmem_tvm.deploy.build import compile
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.tvm_mends.check_images import planned_memory
from texture_modules import TARGET
from texture_operators import CASES, TEXELS


@pytest.mark.device
@pytest.mark.parametrize("name", CASES)
def test_an_operator_with_textures(name):
    build_it, shape, options = CASES[name]
    mod, arrays = module(build_it, shape), random(shape)
    made = compile(mod, TARGET, options)
    for found, expected in zip(made.run(*arrays), run(legalize(mod), *arrays), strict=True):
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    assert_everything_in_textures(made)
    assert_images_are_used(made)
    if name in TEXELS:
        operator, texel = TEXELS[name]
        assert placed(made)[read_by(made, operator)]["texel"] == texel


def placed(made):
    """Where each tensor between two kernels, and the result, has gone."""
    log = [entry for entry in read_log(made.graph) if entry["pass"] == "PlaceTextures"]
    return {entry["tensor"]: entry for entry in log if entry["kind"] == "tensor"}


def assert_everything_in_textures(made):
    reasons = [entry["reason"] for entry in placed(made).values() if entry["memory"] == "buffer"]
    assert reasons == ["it is a result of the function"] and len(placed(made)) > 1


def assert_images_are_used(made):
    """Each tensor that is planned as a texture is an image to its kernels, which read or write it as one."""
    kernels = [kernel for source in sources(made.executable) for kernel in parse_kernels(source)]
    assert made.texel_reads.keys() == {kernel.name for kernel in kernels}  # all of them were checked
    memory = planned_memory(made.graph)
    assert check_opencl(made.executable, memory) == made.texel_reads
    for function, planned in memory.items():
        mine = [kernel for kernel in kernels if re.fullmatch(rf"{function}_kernel(_\d+)?", kernel.name)]
        images = {use.image for kernel in mine for use in kernel.uses if use.reads or use.writes}
        assert planned.textures.keys() <= {re.sub(r"_ptr(_\d+)?$", "", image) for image in images}
    assert sum(each.whole + sum(each.partial.values()) for each in made.texel_reads.values()) > 0


def read_by(made, operator):
    """The name of the first tensor that the kernel of an operator reads."""
    calls = [node.value for node in graph(made.graph) if node.kernel is not None]
    (call,) = (call for call in calls if re.fullmatch(rf"{operator}\d*", call.args[0].name_hint))
    return call.args[1][0].name

# SPDX-License-Identifier: Apache-2.0
"""TVM's own pipelines are right on an OpenCL device; each mend of the one with textures is still needed for that."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from smartmem_tvm.deploy import tvm_pipelines
from smartmem_tvm.deploy.tvm_pipelines import PIPELINES, compile_tvm, schedule_tvm
from smartmem_tvm.errors import UserError
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform.layout.check_textures import CheckTextures
from texture_modules import TARGET, emitted, opencl

IMAGE, POINTS = (1, 16, 12, 10), (16, 16, 1, 1)


def depthwise(emit, x, w, v):
    x = emit(op.nn.conv2d(x, w))
    return emit(op.nn.conv2d(x, v, groups=16, padding=(1, 0), strides=(2, 1), dilation=(1, 2)))


def pairs(emit, x, w, v):
    x = emit(op.nn.conv2d(x, w))
    return emit(op.nn.relu(emit(op.nn.conv2d(x, v, groups=8, padding=1))))


def residuals(emit, x, w, matrix):
    """Blocks of a convolution and a matmul: the same sum is read by a convolution, and is the result."""
    x = emit(op.nn.conv2d(x, w))
    for _ in range(2):
        y = emit(op.permute_dims(emit(op.nn.conv2d(x, w)), [0, 2, 3, 1]))
        y = emit(op.permute_dims(emit(op.matmul(y, matrix)), [0, 3, 1, 2]))
        x = emit(op.add(x, y))
    return x


NETWORKS = {
    "depthwise": (depthwise, [IMAGE, POINTS, (16, 1, 3, 3)]),
    "pairs": (pairs, [IMAGE, POINTS, (16, 2, 3, 3)]),
    "residuals": (residuals, [IMAGE, POINTS, (16, 16)]),
}


def network(name):
    function, shapes = NETWORKS[name]
    return emitted(function, shapes), shapes


@pytest.mark.device
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_right(name, pipeline):
    mod, shapes = network(name)
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes]
    reference = relax.VirtualMachine(relax.build(mod, "llvm"), tvm.cpu())
    expected = reference["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    opencl()  # says what is missing
    target = parse_target("opencl") if pipeline == "default" else TARGET
    (found,) = compile_tvm(mod, target, pipeline).run(*inputs)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def scopes(mod):
    """The memory of the parameters of each kernel as the kernel has it, and as its caller."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call.args[0], tvm.ir.GlobalVar):
                tys = [*(each.ty for each in call.args[1].fields), binding.var.ty]
                kernel = [param.scope() or "global" for param in mod[call.args[0]].params]
                yield kernel, [str(ty.vdevice.memory_scope) for ty in tys]


def without(name, *left_out):
    """The network's kernels as the pipeline makes them without some of its passes."""
    with TARGET:
        passes = tvm_pipelines._passes(TARGET, "textures")
        kept = [each for at, each in enumerate(passes) if each.info.name not in left_out and at not in left_out]
        assert len(kept) < len(passes)
        return tvm.transform.Sequential(kept)(network(name)[0])


def test_kernels_have_the_memory_that_their_callers_have():
    found = list(scopes(schedule_tvm(network("residuals")[0], TARGET, "textures")))
    assert all(kernel == caller for kernel, caller in found)
    assert any("texture" in scope for kernel, _ in found for scope in kernel)
    # The sum and the convolution, each with its result in a texture and in a buffer.
    assert any(kernel != caller for kernel, caller in scopes(without("residuals", "smartmem.SplitByScope")))


@pytest.mark.parametrize("name", ["depthwise", "pairs"])
def test_tvm_divides_by_zero_where_groups_are_narrow(name):
    with TARGET:
        names = [each.info.name for each in tvm_pipelines._passes(TARGET, "textures")]
    ours = [at for at, each in enumerate(names) if each == "LegalizeOps"][-2]
    with pytest.raises(tvm.error.InternalError, match="Divide by zero"):
        without(name, ours)


def test_tvm_writes_single_numbers_of_texels():
    with TARGET:
        names = [each.info.name for each in tvm_pipelines._passes(TARGET, "textures")]
    ours = [at for at, each in enumerate(names) if each == "ApplyDefaultSchedule"][-2]
    with pytest.raises(UserError, match="texel by texel"):
        CheckTextures()(without("residuals", ours))
    CheckTextures()(schedule_tvm(network("residuals")[0], TARGET, "textures"))


def test_what_is_refused():
    mod, _ = network("pairs")
    with pytest.raises(UserError, match="use one of default, textures"):
        schedule_tvm(mod, TARGET, "texture")
    for target in ("opencl", "mali-g57"):
        with pytest.raises(UserError, match="adreno-740"):
            schedule_tvm(mod, parse_target(target), "textures")

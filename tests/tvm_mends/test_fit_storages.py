# SPDX-License-Identifier: Apache-2.0
"""FitStorages: no storage is larger than its largest tensor needs, and none is smaller than the device wants."""

import numpy as np
import pytest
import tvm
from tvm import relax

from fake_driver import run_with_fake
from helpers import constant, module, op
from opencl_child import fake, load
from smartmem_tvm.deploy.build import compile
from smartmem_tvm.pipeline import Options
from smartmem_tvm.target import parse_target
from smartmem_tvm.tvm_mends.fit_storages import FitStorages, bytes_on_device, row_bytes

PAGE = 4096  # what storages are rounded to by the OpenCL library
TEXTURES = ("global.texture", "global.texture-weight", "global.texture-nhwc")


def adreno(alignment=1024):
    facts = {"kind": "opencl", "keys": ["adreno", "opencl", "gpu", "texture"]}
    return tvm.target.Target({**facts, "image_base_address_alignment": alignment}, host="llvm")


def tensor(*shape, dtype="float32", scope="global", alignment=1024):
    return relax.TensorType(shape, dtype, vdevice=relax.VDevice(adreno(alignment), 0, scope))


@pytest.mark.parametrize(
    ("texels", "number", "alignment", "expected"),
    [
        (64, 4, 1024, 1024),
        (65, 4, 1024, 2048),
        (1, 4, 1024, 1024),
        (1, 2, 1024, 512),  # a pitch of 64 texels, which are of half the size
        (65, 2, 1024, 1024),
        (1, 1, 1024, 256),
        (1, 4, 64, 64),
        (1, 2, 64, 64),  # TVM's runtime on a phone
        (5, 4, 16, 128),
    ],
)
def test_rows_begin_at_multiples_of_the_pitch(texels, number, alignment, expected):
    assert row_bytes(texels, number, alignment) == expected


@pytest.mark.parametrize(
    ("ty", "expected"),
    [
        (tensor(3, 5, 7, 4), 420 * 4),
        (tensor(3, 5, 7, 4, dtype="bool"), 420),
        (tensor(3, 5, 7, 4, scope="global.texture"), 3 * 5 * 1024),
        (tensor(3, 5, 7, 4, scope="global.texture", dtype="float16"), 3 * 5 * 512),
        (tensor(3, 5, 70, 4, scope="global.texture"), 3 * 5 * 2048),
        (tensor(3, 5, 7, 4, scope="global.texture-weight"), 3 * 1024),  # 35 texels in a row
        (tensor(3, 5, 7, 4, scope="global.texture-nhwc"), 3 * 5 * 1024),
        (tensor(3, 2, 5, 7, 4, scope="global.texture-nhwc"), 3 * 2 * 1024),
        (tensor(3, 2, 5, 7, 4, scope="global.texture"), 3 * 2 * 5 * 1024),
        (tensor(3, 5, 7, 4, scope="global.texture", alignment=64), 3 * 5 * 128),
    ],
)
def test_the_memory_of_a_tensor(ty, expected):
    assert bytes_on_device(ty) == expected


def planned(size, *held):
    """A function with one storage of `size` bytes and tensors of these types in it."""
    memory, storage = relax.op.memory, relax.Var("storage", relax.AnyType())
    bindings = [relax.VarBinding(storage, memory.alloc_storage(relax.ShapeExpr([size]), 0, "global", "uint8"))]
    for number, ty in enumerate(held):
        call = memory.alloc_tensor(storage, 0, ty.shape, str(ty.dtype))
        bindings.append(relax.VarBinding(relax.Var(f"t{number}", ty), call))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], bindings[-1].var)
    return tvm.IRModule({"main": relax.Function([], body, held[-1], is_pure=False).with_attr("global_symbol", "main")})


def storage_bytes(mod):
    (size,) = mod["main"].body.blocks[0].bindings[0].value.args[0].values
    return int(size)


@pytest.mark.parametrize("texture", TEXTURES)
def test_the_largest_tensor_counts(texture):
    small, large = tensor(2, 3, 4, scope=texture), tensor(6, 7, 80, 4, scope=texture)
    for held in ((small, large), (large, small)):
        assert storage_bytes(FitStorages()(planned(123, *held))) == bytes_on_device(large)


def test_a_storage_of_textures_and_buffers_holds_both():
    texture, buffer = tensor(2, 3, 4, scope=TEXTURES[0]), tensor(1000, 4)
    assert storage_bytes(FitStorages()(planned(10**6, texture, buffer))) == bytes_on_device(buffer) == 16000


def test_storages_without_textures_and_of_unknown_shapes_stay():
    unknown = tensor(tvm.tirx.Var("n", "int64"), 3, 4, scope=TEXTURES[0])
    for held in ((tensor(1000, 4),), (tensor(2, 3, 4, scope=TEXTURES[0]), unknown)):
        assert storage_bytes(FitStorages()(planned(10**6, *held))) == 10**6


def network():
    """Three convolutions with textures of 8 * 14 and 4 * 14 rows of 14 texels between them."""
    first, second, third = constant(32, 8, 3, 3), constant(16, 32, 3, 3), constant(8, 16, 3, 3)

    def build(x):
        hidden = op.nn.conv2d(op.nn.conv2d(x, first, padding=1), second, padding=1)
        return op.nn.conv2d(op.nn.relu(hidden), third)

    return module(build, (1, 8, 14, 14))


@pytest.mark.parametrize(("precision", "texel"), [("float32", 16), ("half-storage", 8)])
def test_the_plan_of_a_network_for_a_phone(precision, texel):
    """A phone's rows begin at every 64th texel. TVM plans four times that for float32, and twice for halves."""
    plan = compile(network(), parse_target("adreno-740"), Options(precision=precision)).memory
    assert [each["shape"] for each in plan["tensors"][:2]] == [[1, 8, 14, 14, 4], [1, 4, 14, 14, 4]]
    sizes = [storage["bytes"] for storage in plan["storages"]]
    assert sizes[:2] == [8 * 14 * 64 * texel, 4 * 14 * 64 * texel]
    assert all(each["bytes"] <= sizes[each["storage"]] for each in plan["tensors"])


def bytes_on_a_device():
    """Bytes that the driver holds after an inference, what the plan and the weights come to, and the images made."""
    compiled = compile(network(), parse_target("opencl-texture"))
    compiled.run(np.zeros((1, 8, 14, 14), "float32"))
    results = [each for each in compiled.memory["tensors"] if each["storage"] is None]  # each in a buffer of its own
    rounded = [-(-each["bytes"] // PAGE) * PAGE for each in [*compiled.memory["storages"], *results]]
    textures = [each["bytes"] for each in compiled.memory["tensors"] if len(each["shape"]) == 5]
    report = fake().report()
    load().get_global_func("vm.builtin.memory_manager.clear")()
    weights = sum(weight.nbytes for weight in compiled.weights)
    return [report["used_bytes"][0], sum(rounded) + weights, sum(textures), report["calls"]["clCreateImage"]]


@pytest.mark.device
@pytest.mark.parametrize("pitch", [1, 16, 64, 256])
def test_images_fit_into_their_storages_whatever_the_pitch_of_the_device(pitch):
    """An image that did not would get memory of its own, and the driver hold more than was planned."""
    held, expected, _, images = run_with_fake(bytes_on_a_device, image_from_buffer=1, pitch=pitch).value
    assert images == 5  # two tensors, three weights
    assert held == expected


def test_a_device_without_images_over_buffers_holds_them_beside_the_storages():
    held, expected, textures, images = run_with_fake(bytes_on_a_device, image_from_buffer=0).value
    assert (held, images) == (expected + textures, 5)

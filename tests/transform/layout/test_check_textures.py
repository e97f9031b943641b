# SPDX-License-Identifier: Apache-2.0
"""CheckTextures: what is refused, in which words, and what is not."""

import numpy as np
import pytest
import tvm
from tvm import relax, te

from smartmem_tvm.deploy.textures import build_textures, texture_machine
from smartmem_tvm.errors import UserError
from smartmem_tvm.transform import CheckTextures
from smartmem_tvm.transform.layout.check_textures import CHANNELS, SCOPES
from texture_modules import TARGET, VDEVICES, Program, opencl, single_numbers, to_texels


def copy(shape, dtype="float32", scope="global.texture"):
    program = Program()
    return program.module(
        program.kernel(lambda a: te.compute(a.shape, lambda *i: a(*i)), program.input(shape, dtype), scope=scope)
    )


def refused(*args, **options):
    """The message, which is the same from the pass and from what runs it."""
    mod = copy(*args, **options)
    with pytest.raises(UserError) as error:
        CheckTextures()(mod)
    message = str(error.value)
    assert message.startswith("kernel 'kernel_t0'") and message.endswith(".") and "texture 'compute'" in message
    with pytest.raises(UserError) as again:
        build_textures(mod, TARGET)
    assert str(again.value) == message
    return message


@pytest.mark.parametrize("dtype", CHANNELS)
@pytest.mark.parametrize("scope", SCOPES)
def test_every_scope_and_type_is_allowed(scope, dtype):
    mod = copy((3, 5, 4), dtype, scope)
    assert CheckTextures()(mod).same_as(mod)


@pytest.mark.parametrize("shape", [(8, 8, 3), (8, 8, 8), (8, 8, 1)], ids=str)
def test_another_innermost_dimension(shape):
    message = refused(shape)
    assert f"({', '.join(map(str, shape))})" in message and "split a dimension by 4" in message


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
def test_a_type_that_no_image_has(dtype):
    message = refused((8, 8, 4), dtype)
    assert f"elements of type {dtype}" in message and "or a buffer" in message


@pytest.mark.parametrize("scope", ["global.texture", "global.texture-nhwc"])
def test_too_few_dimensions(scope):
    assert f"2 dimensions, and scope {scope} needs 3" in refused((8, 4), scope=scope)


def test_a_reshaped_texture():
    texture = relax.TensorType((4, 8, 4), "float32", vdevice=VDEVICES["global.texture"])
    builder, x = relax.BlockBuilder(), relax.Var("x", texture)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.reshape(x, (8, 4, 4)))
        builder.emit_func_output(y)
    with pytest.raises(UserError, match=r"texture of shape \(4, 8, 4\) is reshaped, .* in a buffer\."):
        CheckTextures()(builder.finalize())


def test_an_unknown_scope():
    func = te.create_prim_func([te.placeholder((8, 4), name="a")])
    odd = tvm.tirx.decl_buffer((8, 4), "float32", "a", scope="global.texture-3d")
    with pytest.raises(UserError, match=r"memory scope 'global\.texture-3d', which TVM does not know: use one of"):
        CheckTextures()(tvm.IRModule({"main": tvm.tirx.PrimFunc([odd], func.body)}))


def test_a_texture_inside_a_kernel():
    """What a schedule's cache_read to a texture makes."""
    a = te.placeholder((64, 4), name="a")
    sch = tvm.s_tir.Schedule(te.create_prim_func([a, te.compute(a.shape, lambda *i: a(*i) + 1.0, name="b")]))
    sch.cache_read(sch.get_sblock("b"), 0, "global.texture-weight")
    with pytest.raises(UserError, match=r"kernel 'main' allocates texture 'a_global\.texture-weight' for itself"):
        CheckTextures()(sch.mod)


def refused_kernel(schedule):
    program = Program()
    t = program.kernel(to_texels((64, 8, 4)), program.input((2048,)), scope="global.texture", schedule=schedule)
    array = np.arange(2048, dtype="float32")
    with pytest.raises(UserError, match=r"^kernel 'kernel_t0' does not write texture 'texels' texel by texel.*\.$"):
        CheckTextures()(program.module(t))
    # To be run, it is scheduled anew.
    device = opencl()
    machine = texture_machine(build_textures(program.module(t), TARGET), device)
    assert np.array_equal(machine["main"](tvm.runtime.tensor(array, device)).numpy().ravel(), array)


def test_a_texel_written_number_by_number():
    refused_kernel(single_numbers)


@pytest.mark.parametrize("vectorized", ["another dimension", "half a texel"])
def test_a_vectorized_loop_that_is_no_texel(vectorized):
    def schedule(func):
        sch = tvm.s_tir.Schedule(func)
        i, j, v = sch.get_loops(sch.get_sblock("texels"))
        if vectorized == "half a texel":
            _, vector = sch.split(v, [None, 2])
        else:
            _, vector = sch.split(j, [None, 4])
            sch.reorder(v, vector)
        sch.bind(i, "blockIdx.x")
        sch.vectorize(vector)
        return sch.mod["main"]

    refused_kernel(schedule)


def test_a_texel_in_a_loop_that_was_split_and_fused():
    """The innermost dimension as a schedule for a layout transformation makes it: a digit of a longer loop."""
    program = Program()
    a = program.input((64, 8, 4))

    def compute(x):
        return te.compute(x.shape, lambda i, j, v: x(i, 7 - j, v), name="flipped")

    def schedule(func):
        sch = tvm.s_tir.Schedule(func)
        i, j, v = sch.get_loops(sch.get_sblock("flipped"))
        rest, vector = sch.split(sch.fuse(j, v), [None, 4])
        sch.bind(i, "blockIdx.x")
        sch.bind(rest, "threadIdx.x")
        sch.vectorize(vector)
        return sch.mod["main"]

    build_textures(program.module(program.kernel(compute, a, scope="global.texture", schedule=schedule)), TARGET)

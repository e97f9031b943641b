# SPDX-License-Identifier: Apache-2.0
"""Textures on an OpenCL device: copies, kernels through the Relax VM, limits, and what is refused."""

import math
import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from smartmem_tvm.deploy.textures import build_textures, texture_machine
from smartmem_tvm.transform.layout.check_textures import CHANNELS, SCOPES
from texture_modules import TARGET, Program, body, from_texels, opencl, rounded_alike, sources, to_texels

# For each scope shapes with 1, with primes and with several dimensions of each of depth, height and width.
SHAPES = {
    "global.texture": [(1, 1, 4), (3, 7, 4), (2, 3, 5, 4), (2, 1, 3, 7, 4)],
    "global.texture-weight": [(1, 4), (5, 4), (3, 7, 4), (2, 3, 5, 4), (7, 1, 3, 2, 4)],
    "global.texture-nhwc": [(1, 1, 4), (2, 3, 4), (2, 3, 5, 4), (2, 3, 2, 5, 4)],
}
INTEGERS = [dtype for dtype in CHANNELS if not dtype.startswith("float")]


@pytest.fixture(scope="module")
def device():
    return opencl()


@pytest.fixture(scope="module")
def limits(device):
    return tvm.get_global_func("smartmem.opencl.devices")()[0]


def compiled(module):
    return build_textures(module, TARGET)


def run(module, device, *inputs):
    """Outputs as arrays; inputs are arrays, put into buffers, or tensors."""
    machine = texture_machine(compiled(module), device)
    result = machine["main"](*[x if hasattr(x, "copyto") else tvm.runtime.tensor(x, device) for x in inputs])
    return result.numpy() if hasattr(result, "numpy") else [each.numpy() for each in result]


def any_bits(shape, dtype):
    """Every bit pattern may occur, NaN too: a copy changes none."""
    count = math.prod(shape) * np.dtype(dtype).itemsize
    return np.random.default_rng(count).integers(0, 256, count, "uint8").view(dtype).reshape(shape)


def numbers(shape, dtype="float32"):
    rng = np.random.default_rng(math.prod(shape))
    if np.dtype(dtype).kind == "f":
        return rng.uniform(-2, 2, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def texture(array, scope, device):
    return tvm.runtime.empty(array.shape, str(array.dtype), device, mem_scope=scope).copyfrom(array)


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


class TestCopies:
    @pytest.mark.each_value
    @pytest.mark.parametrize("dtype", CHANNELS)
    @pytest.mark.parametrize("scope", SCOPES)
    def test_host_to_texture_to_host(self, scope, dtype, device):
        for shape in SHAPES[scope]:
            array = any_bits(shape, dtype)
            assert same_bits(texture(array, scope, device).numpy(), array), shape

    @pytest.mark.each_value
    @pytest.mark.parametrize("dtype", CHANNELS)
    @pytest.mark.parametrize("scope", SCOPES)
    def test_texture_to_buffer_to_texture(self, scope, dtype, device):
        for shape in SHAPES[scope]:
            array = any_bits(shape, dtype)
            buffer = tvm.runtime.empty(shape, dtype, device)
            again = tvm.runtime.empty(shape, dtype, device, mem_scope=scope)
            texture(array, scope, device).copyto(buffer)
            assert same_bits(buffer.numpy(), array), shape
            buffer.copyto(again)
            assert same_bits(again.numpy(), array), shape

    @pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
    def test_between_scopes(self, dtype, device):
        array = any_bits((2, 3, 5, 4), dtype)
        there = tvm.runtime.empty(array.shape, dtype, device, mem_scope="global.texture-weight")
        texture(array, "global.texture-nhwc", device).copyto(there)
        assert same_bits(there.numpy(), array)

    @pytest.mark.parametrize(
        ("shape", "axis"), [((1, -1, 4), "width"), ((-1, 1, 4), "height"), ((-1, 1, 1, 4), "depth")], ids=str
    )
    def test_up_to_the_limit_and_one_past_it(self, shape, axis, device, limits):
        limit = limits["image_array_depth" if axis == "depth" else f"image2d_{axis}"]
        array = any_bits(tuple(limit if n < 0 else n for n in shape), "float32")
        assert same_bits(texture(array, "global.texture", device).numpy(), array)
        past = tuple(limit + 1 if n < 0 else n for n in shape)
        with pytest.raises(ValueError, match=rf"{axis} {limit + 1}.*{limit}"):
            tvm.runtime.empty(past, "float32", device, mem_scope="global.texture")

    @pytest.mark.parametrize("shape", [(4, 4, 3), (4, 4, 8), (4, 4, 1), (4,), (4, 4)], ids=str)
    def test_other_innermost_dimensions_are_refused(self, shape, device):
        with pytest.raises(ValueError, match="innermost dimension of a texture is the texel of 4"):
            tvm.runtime.empty(shape, "float32", device, mem_scope="global.texture")

    @pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
    def test_other_types_are_refused(self, dtype, device):
        with pytest.raises(TypeError, match=f"cannot hold the tensor .*{dtype}"):
            tvm.runtime.empty((4, 4, 4), dtype, device, mem_scope="global.texture")

    def test_other_scopes_are_refused(self, device):
        with pytest.raises(ValueError, match=r"'global\.texture-3d' is none that OpenCL has"):
            tvm.runtime.empty((4, 4, 4), "float32", device, mem_scope="global.texture-3d")

    def test_a_part_of_a_texture_is_not_copied_as_the_whole(self, device):
        whole = texture(numbers((8, 8, 4)), "global.texture", device)
        part, buffer = whole._create_view((1, 2, 4), "float32"), tvm.runtime.tensor(numbers((1, 2, 4)), device)
        copies = [part.numpy, lambda: part.copyfrom(numbers((1, 2, 4))), lambda: part.copyto(buffer)]
        for copy in [*copies, lambda: buffer.copyto(part)]:
            with pytest.raises(ValueError, match=r"view of 32 bytes .* of a texture of 1024 bytes .* whole texture"):
                copy()
        assert same_bits(whole._create_view((4, 16, 4), "float32").numpy().reshape(8, 8, 4), numbers((8, 8, 4)))

    @pytest.mark.parametrize("scope", ["global.textur", "shared"])
    def test_a_scope_that_there_is_not_is_no_buffer(self, scope, device):
        with pytest.raises(ValueError, match=f"memory scope '{scope}' is none that OpenCL has"):
            tvm.runtime.empty((3, 3, 4), "float32", device, mem_scope=scope)


class TestKernels:
    @pytest.mark.device
    @pytest.mark.parametrize(
        "shape", [(1,), (4,), (5,), (7, 13), (64, 128), (1, 1, 1), (31, 37), (2, 3, 5, 7)], ids=str
    )
    def test_shapes_that_are_not_multiples_of_the_texel(self, shape, device):
        texels = -(-math.prod(shape) // 4)
        rows = next(n for n in (8, 3, 1) if texels >= n)
        program = Program()
        x = program.input(shape)
        t = program.kernel(to_texels((rows, -(-texels // rows), 4)), x, scope="global.texture")
        y = program.kernel(from_texels(shape, value=lambda v: v * tirx.const(2, "float32")), t)
        array = numbers(shape)
        assert np.array_equal(run(program.module(t, y), device, array)[1], 2 * array)

    @pytest.mark.device
    @pytest.mark.parametrize("scope", SCOPES)
    def test_scopes_and_ranks(self, scope, device):
        for shape in SHAPES[scope]:
            program = Program()
            x = program.input(shape)
            t = program.kernel(to_texels(shape), x, scope=scope)
            # Read it as a kernel sees it, and as a copy sees it: both must know which axis lies where.
            y = program.kernel(from_texels(shape), t)
            array = any_bits(shape, "float32")
            result = run(program.module(t, y), device, np.nan_to_num(array, posinf=1, neginf=1))
            assert all(np.array_equal(each, np.nan_to_num(array, posinf=1, neginf=1)) for each in result), shape

    @pytest.mark.device
    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_integers(self, dtype, device):
        shape = (3, 5, 7, 4)
        program = Program()
        x = program.input(shape, dtype)
        t = program.kernel(to_texels(shape), x, scope="global.texture")
        whole = program.kernel(from_texels(shape, value=lambda v: tirx.const(7, dtype) - v), t)
        single = program.kernel(from_texels((3 * 5 * 7 * 4,)), t)
        array = numbers(shape, dtype)
        outputs = run(program.module(t, whole, single), device, array)
        assert np.array_equal(outputs[0], array)
        with np.errstate(over="ignore"):
            assert np.array_equal(outputs[1], np.array(7, dtype) - array)
        assert np.array_equal(outputs[2], array.ravel())

    @pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
    def test_inputs_and_outputs_are_textures(self, dtype, device):
        shape = (6, 5, 4)
        program = Program()
        x = program.input(shape, dtype, "global.texture")
        y = program.kernel(lambda a: te.compute(a.shape, lambda i, j, k: a(5 - i, j, 3 - k)), x, scope="global.texture")
        array = any_bits(shape, dtype) if dtype == "int8" else numbers(shape, dtype)
        module = program.module(y)
        assert np.array_equal(run(module, device, texture(array, "global.texture", device)), array[::-1, :, ::-1])

    @pytest.mark.parametrize(("wanted", "given"), [("texture", "buffer"), ("buffer", "texture")])
    def test_a_tensor_in_the_wrong_place(self, wanted, given, device):
        """TVM compares shapes and types only, and a driver crashes."""
        scopes = {"texture": "global.texture", "buffer": "global"}
        program = Program()
        y = program.kernel(from_texels((6, 5, 4)), program.input((6, 5, 4), "float32", scopes[wanted]))
        tensor = texture(numbers((6, 5, 4)), scopes[given], device)
        with pytest.raises(TypeError, match=rf"kernel_t0_kernel takes a {wanted} .* got a tensor in a {given}"):
            run(program.module(y), device, tensor)

    @pytest.mark.device
    def test_several_readers(self, device):
        program = Program()
        x = program.input((16, 32))
        t = program.kernel(to_texels((16, 8, 4)), x, scope="global.texture")
        readers = [
            program.kernel(from_texels((16, 32), value=lambda v, k=k: v + tirx.const(k, "float32")), t)
            for k in range(4)
        ]
        both = program.kernel(lambda a, b: te.compute(a.shape, lambda *i: a(*i) * b(*i)), t, t, scope="global.texture")
        array = numbers((16, 32))
        *sums, product = run(program.module(*readers, both), device, array)
        assert all(np.array_equal(each, array + np.float32(k)) for k, each in enumerate(sums))
        assert np.array_equal(product.reshape(16, 32), array * array)

    @pytest.mark.device
    def test_the_planner_reuses_storage_as_buffer_and_as_image(self, device):
        """A chain of forms; TVM's planner puts its tensors into a few allocations."""
        forms = [((12, 20, 4), "global.texture"), ((960,), "global"), ((5, 6, 8, 4), "global.texture-nhwc")]
        forms += [((24, 40), "global"), ((10, 24, 4), "global.texture-weight"), ((4, 6, 10, 4), "global.texture")]
        forms *= 2
        program = Program()
        x = program.input((960,))
        for step, (shape, scope) in enumerate(forms):
            one = tirx.const(step, "float32")
            x = program.kernel(from_texels(shape, value=lambda v, one=one: v + one), x, scope=scope)
        executable = compiled(program.module(program.kernel(from_texels((960,)), x)))
        code = executable.as_python()
        assert code.count("vm.builtin.alloc_storage") <= 5 < code.count("vm.builtin.alloc_tensor")
        machine = texture_machine(executable, device)
        for turn in range(3):  # the machine keeps its allocations
            array = expected = numbers((960,)) + np.float32(turn)
            for step in range(len(forms)):
                expected = expected + np.float32(step)
            assert np.array_equal(machine["main"](tvm.runtime.tensor(array, device)).numpy(), expected)

    @pytest.mark.parametrize(("shape", "axis"), [((2, -1, 4), "width"), ((-1, 2, 4), "height")], ids=str)
    def test_up_to_the_limit_and_one_past_it(self, shape, axis, device, limits):
        limit = limits[f"image2d_{axis}"]

        def double(extent):
            full = tuple(extent if n < 0 else n for n in shape)
            program = Program()
            t = program.kernel(to_texels(full), program.input((math.prod(full),)), scope="global.texture")
            y = program.kernel(from_texels((math.prod(full),), value=lambda v: v + v), t)
            array = numbers((math.prod(full),))
            return run(program.module(y), device, array), 2 * array

        assert np.array_equal(*double(limit))
        with pytest.raises(ValueError, match=rf"{axis} {limit + 1}.*{limit}"):
            double(limit + 1)


class TestHalf:
    """Devices without half arithmetic store halves all the same."""

    def program(self, dtype="float32"):
        program = Program()
        x = program.input((30, 13), dtype)
        t = program.kernel(to_texels((5, 20, 4), "float16"), x, scope="global.texture")
        # One reader takes whole texels, one single numbers; 400 > 390, so the last texels are padding.
        u = program.kernel(from_texels((5, 20, 4), "float32", lambda v: v + v), t)
        y = program.kernel(from_texels((30, 13), dtype), t)
        return program.module(u, y)

    def test_storage_is_half_and_arithmetic_is_float(self, device):
        array = numbers((30, 13))
        twice, again = run(self.program(), device, array)
        assert rounded_alike(again.astype("float16"), array.astype("float16"))
        assert same_bits(again, again.astype("float16").astype("float32"))
        assert np.array_equal(twice.ravel()[:390], 2 * again.ravel())
        assert 1e-5 < np.abs(again - array).max() < 2e-3  # rounded, and rounded once

    def test_buffers_of_halves(self, device):
        array = numbers((30, 13), "float16")
        twice, again = run(self.program("float16"), device, array)
        assert same_bits(again, array)
        assert np.array_equal(twice.ravel()[:390], 2 * array.ravel().astype("float32"))

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_no_type_or_extension_is_needed(self, dtype):
        for name, code in sources(compiled(self.program(dtype))).items():
            without = re.sub(r"\(__global half\*\)|v(load|store)_half", "", body(code))
            assert "half" not in without and "IMAGEH" not in without and "fp16" not in code, name

    def test_functions_that_do_not_round_work_on_textures_of_halves(self, device):
        """A maximum or a copy of halves is the same in float: no conversion has to be written."""
        shape = (3, 5, 4)
        program = Program()
        x = program.input(shape, "float16", "global.texture")
        zero = tirx.const(0, "float16")
        y = program.kernel(lambda a: te.compute(a.shape, lambda *i: tirx.max(a(*i), zero)), x, scope="global.texture")
        array = numbers(shape, "float16")
        assert np.array_equal(
            run(program.module(y), device, texture(array, "global.texture", device)), np.maximum(array, 0)
        )

    def test_arithmetic_of_halves_needs_no_extension(self, device):
        program = Program()
        x = program.input((3, 5, 4), "float16", "global.texture")
        y = program.kernel(lambda a: te.compute(a.shape, lambda *i: a(*i) * a(*i)), x, scope="global.texture")
        array = numbers((3, 5, 4), "float16")
        assert np.array_equal(run(program.module(y), device, texture(array, "global.texture", device)), array * array)


class TestSource:
    def code(self, dtype="float32"):
        program = Program()
        x = program.input((24, 32), dtype)
        t = program.kernel(to_texels((24, 8, 4)), x, scope="global.texture")
        y = program.kernel(from_texels((24, 8, 4), value=lambda v: v + v), t, scope="global.texture-nhwc")
        z = program.kernel(from_texels((24, 32)), y)
        return [body(code) for _, code in sorted(sources(compiled(program.module(z))).items())]

    @pytest.mark.parametrize(("dtype", "suffix"), [("float32", "f"), ("int32", "i"), ("uint8", "ui"), ("int16", "i")])
    def test_a_planned_texture_is_an_image(self, dtype, suffix):
        first, second, third = self.code(dtype)
        read = "READ_IMAGEF" if suffix == "f" else f"read_image{suffix}"
        assert "__write_only image2d_array_t" in first and "__read_only" not in first
        assert "__write_only image2d_array_t" in second and "__read_only image2d_array_t" in second
        assert "__read_only image2d_array_t" in third and "__write_only" not in third
        assert read not in first and second.count(f"{read}(") >= 1 and third.count(f"{read}(") == 1

    @pytest.mark.parametrize(("dtype", "suffix"), [("float32", "f"), ("int32", "i"), ("uint8", "ui"), ("int16", "i")])
    def test_a_texel_is_written_once(self, dtype, suffix):
        first, second, _ = self.code(dtype)
        for code in (first, second):
            assert code.count(f"write_image{suffix}(") == 1
            assert "for (" not in code

    def test_padding_is_put_together_before_the_write(self):
        program = Program()
        t = program.kernel(to_texels((5, 5, 4)), program.input((97,)), scope="global.texture")
        code = body(sources(compiled(program.module(t)))["kernel_t0"])
        assert code.count("write_imagef(") == 1
        loop, write = code.split("write_imagef(")[0].split("for (")[1:][-1], code.index("write_imagef(")
        assert "condval" in loop and "\n  }" in loop  # closed before the write
        assert "vload4(0, numbers" in code[:write]

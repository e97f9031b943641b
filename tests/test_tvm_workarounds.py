# SPDX-License-Identifier: Apache-2.0
"""Each work-around of `_tvm` and `tvm_mends`, and each pass for a gap of TVM, is still needed and sufficient.

The first of two tests runs TVM without the work-around, and fails once TVM is right; the second runs TVM with it.
"""

import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx
from tvm.relax import op
from tvm.s_tir.backend.adreno import pipeline as adreno_pipeline
from tvm.support import cc
from tvm.tirx import compilation_pipeline
from tvm_ffi import structural

from smartmem_tvm import _tvm
from smartmem_tvm.deploy.textures import TIR_PIPELINE, build_textures, texture_machine
from smartmem_tvm.errors import UserError
from smartmem_tvm.tvm_mends import array_iteration, intrinsics, lowering
from texture_modules import (
    TARGET,
    Program,
    body,
    emitted,
    from_texels,
    long,
    opencl,
    single_numbers,
    sources,
    to_texels,
)


def without(*names):
    """Return the name of this package's TIR pipeline without the passes of these names."""
    lower, host, device = compilation_pipeline.get_tir_pipeline(TIR_PIPELINE)

    def rest(passes):
        left = [each for each in passes if each.info.name not in {f"smartmem.{name}" for name in names}]
        assert len(left) == len(passes) or names
        return tvm.transform.Sequential(left)

    found = {each.info.name for each in [*lower.passes, *device().passes]}
    assert {f"smartmem.{name}" for name in names} <= found
    return register("-".join(["without", *names]), lambda: (rest(lower.passes), host, lambda: rest(device().passes)))


def register(name, factory):
    compilation_pipeline.register_tir_pipeline(f"test-{name}", factory)
    return f"test-{name}"


def kernel(compute, *inputs, **options):
    """Return the scheduled PrimFunc of a module with one kernel."""
    program = Program()
    var = program.kernel(compute, *[program.input(*each) for each in inputs], **options)
    (func,) = [f for f in program.module(var).functions.values() if isinstance(f, tirx.PrimFunc)]
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def code(mod, pipeline):
    return body(sources(tvm.tirx.build(mod, TARGET, pipeline=pipeline))["main"])


def write(dtype="float32", number=to_texels):
    return kernel(number((8, 8, 4)), ((256,), dtype), scope="global.texture")


def read(dtype="float32", value=lambda x: x + x):
    return kernel(from_texels((8, 8, 4), value=value), ((8, 8, 4), dtype, "global.texture"))


def unnecessary(what):
    return f"TVM is right by now: remove {what}"


class TestPipeline:
    """`texture_tir_pipeline` returns the three values that ``tirx.build`` wants."""

    def test_tvm_registers_a_pass_where_it_wants_three(self):
        with pytest.raises((TypeError, ValueError), match="unpack"):
            tvm.tirx.build(write(), TARGET, pipeline=register("tvms", adreno_pipeline.default_tir_pipeline))
            pytest.fail(unnecessary("texture_tir_pipeline, but for its passes"))

    def test_tvm_indexes_an_image_like_a_buffer_in_its_plain_pipeline(self):
        assert "write_image" not in code(write(), "s_tir"), unnecessary("the pipeline of our own")

    def test_with_it(self):
        assert "write_imagef" in code(write(), register("bare", lowering.texture_tir_pipeline))


def functions_of_vectors(names, dtype):
    """Return a kernel with one result for each function, of numbers between 0 and 1, plus 1 for acosh."""
    x = te.placeholder((32,), dtype, name="x")
    one = tirx.const(1, dtype)
    arguments = {"acosh": lambda v: (v + one,), "atan2": lambda v: (v, one), "hypot": lambda v: (v, one)}
    arguments["copysign"] = lambda v: (v, -one)

    def result(name):
        function, operands = getattr(tirx, name), arguments.get(name, lambda v: (v,))
        return te.compute((32,), lambda i: function(*operands(x[i])), name=name)

    kernel = s_tir.Schedule(te.create_prim_func([x, *map(result, names)]))
    for name in names:
        kernel.vectorize(kernel.split(kernel.get_loops(kernel.get_sblock(name))[0], [None, 8])[1])
    return kernel.mod


class TestWalk:
    """`walk` and `mapped`: tvm_ffi looks up the node kinds in each call, which takes longer than a short walk."""

    def test_tvm_ffi_looks_them_up_each_time(self, monkeypatch):
        asked, look_up = [], structural._callback_type_to_type_index
        counted = lambda kind, **names: asked.append(kind) or look_up(kind, **names)  # noqa: E731
        monkeypatch.setattr(structural, "_callback_type_to_type_index", counted)
        for _ in range(3):
            tvm_ffi.structural_walk(tirx.IntImm("int32", 1), (tirx.Add, print))
        assert len(asked) == 3, unnecessary("_tvm.walk")

    @pytest.mark.parametrize("order", ["pre", "post"])
    def test_with_it(self, order):
        x, y = tirx.Var("x", "int32"), tirx.Var("y", "int32")
        root, found, expected = (x + y) * (x - y), [], []
        for walk, into in ((_tvm.walk, found), (_theirs, expected)):
            walk(root, ((tirx.Add, tirx.Sub), into.append), (tirx.Mul, into.append), order=order)
        assert len(found) == 3 and all(mine.same_as(other) for mine, other in zip(found, expected, strict=True))

    def test_a_map(self):
        x, y = tirx.Var("x", "int32"), tirx.Var("y", "int32")
        rules = ((tirx.Add, lambda each: each.a - each.b), ((tirx.Mul, tirx.FloorDiv), lambda each: each.a))
        root = tirx.Max((x + y) * y, tirx.floordiv(y, x) + x)
        tvm.ir.assert_structural_equal(_tvm.mapped(root, *rules), tirx.Max(x - y, y - x))
        tvm.ir.assert_structural_equal(_tvm.mapped(root, *rules), tvm_ffi.structural_map(root, rules))


def _theirs(root, *callbacks, order):
    tvm_ffi.structural_walk(root, callbacks, order=order)


class TestWriteLibrary:
    """`write_library`: the objects of a library, one by one."""

    @pytest.fixture(scope="class")
    def code(self):
        def kernel(number):
            x = te.placeholder((4,), name="x")
            func = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + float(number))])
            return tirx.build(func.with_attr("global_symbol", f"k{number}"), "llvm")

        first, second = map(kernel, (0, 1))
        first.import_module(second)
        return first

    def test_tvm_makes_them_in_one_thread(self, code, tmp_path, monkeypatch):
        threads, write = [], tvm.runtime.Module.write_to_file
        noted = lambda mod, path: threads.append(threading.get_ident()) or write(mod, path)  # noqa: E731
        monkeypatch.setattr(tvm.runtime.Module, "write_to_file", noted)
        code.export_library(str(tmp_path / "k.so"))
        assert set(threads) == {threading.get_ident()} and len(threads) >= 2, unnecessary("write_library")

    def test_with_it(self, code, tmp_path, monkeypatch):
        both, write = threading.Barrier(2, timeout=20), tvm.runtime.Module.write_to_file

        def together(mod, path):
            if Path(path).name != "devc.o":
                both.wait()
            write(mod, path)

        monkeypatch.setattr(tvm.runtime.Module, "write_to_file", together)
        _tvm.write_library(code, str(tmp_path / "k.so"), cc.create_shared, threads=2)
        library = tvm.runtime.load_module(str(tmp_path / "k.so"))
        x, y = tvm.runtime.tensor(np.ones(4, "float32")), tvm.runtime.empty((4,), "float32")
        for number in (0, 1):
            library[f"k{number}"](x, y)
            np.testing.assert_array_equal(y.numpy(), np.ones(4) + number)


class TestFunctionsOnCPUs:
    """`_in_single`, `_lane_by_lane`: functions that LLVM has for float32 only, or for scalars only."""

    @pytest.mark.parametrize("dtype, function", [("float16", "atan"), ("float32x4", "sinh")])
    def test_tvm_does_not_know_them(self, dtype, function):
        program = (
            f"import tvm; from tvm import te, tirx; x = te.placeholder((4,), '{dtype}'); "
            f"tvm.compile(te.create_prim_func([x, te.compute((4,), lambda i: tirx.{function}(x[i]))]), 'llvm')"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "unknown intrinsic" in done.stderr, unnecessary(f"the rule for {function}")

    @pytest.mark.parametrize("dtype, tolerance", [("float16", 1e-3), ("float32", 1e-6), ("float64", 1e-12)])
    def test_with_it(self, dtype, tolerance):
        names = intrinsics.SINGLE_FUNCTIONS
        x = np.linspace(0, 0.96875, 32).astype(dtype)
        results = [tvm.runtime.empty((32,), dtype) for _ in names]
        tvm.compile(functions_of_vectors(names, dtype), "llvm")["main"](tvm.runtime.tensor(x), *results)
        wide = x.astype("float64")
        exact = {"acosh": np.arccosh(wide + 1), "atan2": np.arctan2(wide, 1), "hypot": np.hypot(wide, 1)}
        exact |= {"copysign": -wide, "erf": np.vectorize(math.erf)(wide), "log1p": np.log1p(wide)}
        others = {"acos": "arccos", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan"}
        for name, result in zip(names, results, strict=True):
            expected = exact[name] if name in exact else getattr(np, others.get(name, name))(wide)
            np.testing.assert_allclose(result.numpy(), expected, rtol=tolerance, atol=tolerance, err_msg=name)


def loads_vectors(text: str) -> bool:
    return "vload4" in text or "float4*)" in text


class TestTextureStore:
    def test_tvm_writes_one_number_four_times(self):
        text = code(write(), without("FixTextureStore"))
        assert "for (" in text and not loads_vectors(text), unnecessary("tvm_mends.textures.FixTextureStore")

    def test_with_it(self):
        text = code(write(), TIR_PIPELINE)
        assert "for (" not in text and loads_vectors(text) and text.count("write_imagef") == 1


class TestIntegerTextures:
    def test_tvm_reads_and_writes_integers_as_floats(self):
        pipeline = without("FixIntegerTextures")
        assert "READ_IMAGEF" in code(read("int32"), pipeline), unnecessary("tvm_mends.textures.FixIntegerTextures")
        assert "write_imagef" in code(write("int32"), pipeline), unnecessary("tvm_mends.textures.FixIntegerTextures")
        assert "READ_IMAGEH" in code(read("uint16"), pipeline), unnecessary("tvm_mends.textures.FixIntegerTextures")

    def test_tvm_refuses_eight_bits(self):
        with pytest.raises(tvm.error.InternalError, match="Unsupported Channel Size"):
            code(read("int8"), without("FixIntegerTextures"))
            pytest.fail(unnecessary("tvm_mends.textures.FixIntegerTextures"))

    @pytest.mark.parametrize(
        ("dtype", "function"), [("int32", "imagei"), ("int8", "imagei"), ("uint16", "imageui"), ("uint8", "imageui")]
    )
    def test_with_it(self, dtype, function):
        assert f"read_{function}(" in code(read(dtype), TIR_PIPELINE)
        assert f"write_{function}(" in code(write(dtype), TIR_PIPELINE)


class TestTexelLanes:
    """A number of a texel that the thread chooses, or that is behind a branch: its address is private memory."""

    @staticmethod
    def mod(dtype, lane):
        def numbers(a):
            return te.compute(long((256,)), lambda i: a[i // 32, i // 4 % 8, lane(i)], name="numbers")

        return kernel(numbers, ((8, 8, 4), dtype, "global.texture"), schedule=single_numbers)

    @pytest.mark.parametrize("lane", [lambda i: i % 4, lambda i: tirx.const(2, "int64")])
    def test_tvm_takes_the_address_of_a_texel(self, lane):
        text = code(self.mod("float32", lane), without("FixTexelLanes"))
        assert "*)&v_)[" in text, unnecessary("tvm_mends.textures.FixTexelLanes")

    @pytest.mark.parametrize("dtype", ["float32", "int32"])
    @pytest.mark.parametrize("lane", [lambda i: i % 4, lambda i: (i * 3 + 2) % 4, lambda i: tirx.const(2, "int64")])
    def test_with_it(self, dtype, lane):
        mod, device = self.mod(dtype, lane), opencl()
        assert "*)&v_)[" not in code(mod, TIR_PIPELINE)
        built = Program()
        image = built.kernel(to_texels((8, 8, 4)), built.input((256,), dtype), scope="global.texture")

        def numbers(a):
            return te.compute(long((256,)), lambda i: a[i // 32, i // 4 % 8, lane(i)], name="numbers")

        out = built.kernel(numbers, image, schedule=single_numbers)
        machine = texture_machine(build_textures(built.module(out), TARGET), device)
        x = np.random.default_rng(0).integers(-1000, 1000, 256).astype(dtype)
        got = machine["main"](tvm.runtime.tensor(x, device)).numpy()
        at = np.array([int(tvm.sym.Analyzer().simplify(lane(tirx.const(i, "int64")))) for i in range(256)])
        np.testing.assert_array_equal(got, x.reshape(64, 4)[np.arange(256) // 4, at])


class TestFallingTexels:
    """A decreasing coordinate, for which NVIDIA's compiler reads the border; the generated source does not show it."""

    @pytest.mark.parametrize(
        ("x", "y", "times"),
        [
            (lambda i: 7 - i, lambda i: i, 1),
            (lambda i: i, lambda i: 7 - i, 1),
            (lambda i: i * -1 + 7, lambda i: 7 - i, 2),
            (lambda i: i, lambda i: i - 1 + 1, 0),
        ],
    )
    def test_with_it(self, x, y, times):
        def backwards(a):
            return te.compute(long((8, 8, 4)), lambda i, j, k: a[0, y(i), x(j), k], name="numbers")

        text = code(kernel(backwards, ((1, 8, 8, 4), "float32", "global.texture")), TIR_PIPELINE)
        (read,) = [line for line in text.splitlines() if "READ_IMAGEF(a" in line]
        assert read.count("| (convert_int(get_global_offset(0)))") == times


class TestVectorizedNests:
    """A maximum over rows in a local variable, in a vectorized loop around everything, as TVM schedules a pool."""

    def nest(self):
        a = te.placeholder((6, 8, 4), name="a")
        r = te.reduce_axis((0, 6), name="r")
        sch = s_tir.Schedule(te.create_prim_func([a, te.compute((8, 4), lambda i, v: te.max(a[r, i, v], r), name="b")]))
        block = sch.get_sblock("b")
        local = sch.cache_write(block, 0, "local")
        i, v = sch.get_loops(local)
        sch.bind(i, "threadIdx.x")
        sch.vectorize(v)
        sch.compute_at(block, v)
        return sch.mod

    def run(self, pipeline):
        device = opencl()
        array = np.random.default_rng(0).uniform(-1, 1, (6, 8, 4)).astype("float32")
        out = tvm.runtime.empty((8, 4), "float32", device)
        tvm.tirx.build(self.nest(), TARGET, pipeline=pipeline)["main"](tvm.runtime.tensor(array, device), out)
        return np.array_equal(out.numpy(), array.max(0))

    def test_tvm_lets_four_lanes_share_one_variable(self):
        assert not self.run(without("FixVectorizedNests")), unnecessary("tvm_mends.textures.FixVectorizedNests")

    def test_with_it(self):
        assert self.run(TIR_PIPELINE)


class TestStageTexels:
    def padded(self):
        return kernel(to_texels((8, 8, 4)), ((251,),), scope="global.texture")

    def reversed_lanes(self):
        return kernel(
            lambda a: te.compute(a.shape, lambda i, j, v: a[i, j, 3 - v]), ((8, 8, 4), "float32", "global.texture")
        )

    def test_tvm_cannot_vectorize_a_branch_for_a_texture(self):
        with pytest.raises(tvm.error.InternalError, match="Texture Store length"):
            code(self.padded(), without("StageTexels"))
            pytest.fail(unnecessary("the branches from StageTexels"))

    def test_tvm_cannot_read_lanes_in_another_order(self):
        with pytest.raises(tvm.error.InternalError, match="Unsupported Texture Load Args"):
            code(self.reversed_lanes(), without("StageTexels"))
            pytest.fail(unnecessary("the reads from StageTexels"))

    def test_with_it(self):
        assert code(self.padded(), TIR_PIPELINE).count("write_imagef") == 1
        assert "READ_IMAGEF" in code(self.reversed_lanes(), TIR_PIPELINE)


class TestHalfStorage:
    def mods(self):
        return [
            kernel(to_texels((8, 8, 4), "float16"), ((256,),), scope="global.texture"),
            kernel(from_texels((8, 8, 4), "float32"), ((8, 8, 4), "float16", "global.texture")),
        ]

    def test_tvm_needs_half_arithmetic_to_convert(self):
        for mod in self.mods():
            assert "half4" in code(mod, without("HalfStorage")), unnecessary("HalfStorage")

    def test_with_it(self):
        for mod in self.mods():
            assert "half4" not in code(mod, TIR_PIPELINE) and "IMAGEH" not in code(mod, TIR_PIPELINE)


class TestWholeTexels:
    def single(self):
        return kernel(to_texels((8, 8, 4)), ((256,),), scope="global.texture", schedule=single_numbers)

    def test_tvm_prints_a_single_number_for_a_texel(self):
        text = code(self.single(), without("ScheduleTexels", "CheckTextures"))
        assert "write_imagef" in text and not loads_vectors(text), unnecessary("ScheduleTexels and the check of stores")

    def test_with_the_check(self):
        with pytest.raises(UserError, match="does not write texture 'texels' texel by texel"):
            code(self.single(), without("ScheduleTexels"))

    def test_with_it(self):
        text = code(self.single(), TIR_PIPELINE)
        assert text.count("write_imagef") == 1 and loads_vectors(text)


class TestTexturesInsideKernels:
    def staged(self):
        a = te.placeholder((64, 8, 4), name="a")
        sch = s_tir.Schedule(te.create_prim_func([a, te.compute(a.shape, lambda *i: a(*i) + 1.0, name="b")]))
        copy = sch.cache_read(sch.get_sblock("b"), 0, "global.texture")
        for block in (copy, sch.get_sblock("b")):
            i, j, v = sch.get_loops(block)
            sch.bind(i, "blockIdx.x")
            sch.bind(j, "threadIdx.x")
            sch.vectorize(v)
        return sch.mod

    def test_tvm_cannot_lower_them(self):
        with pytest.raises(tvm.error.InternalError):
            tvm.tirx.build(self.staged(), TARGET, pipeline=without("CheckTextures"))
            pytest.fail(unnecessary("the check for textures inside kernels from CheckTextures"))

    def test_they_are_refused(self):
        with pytest.raises(UserError, match=r"allocates texture 'a_global\.texture' for itself"):
            tvm.tirx.build(self.staged(), TARGET, pipeline=TIR_PIPELINE)


IMAGE, FILTER = (2, 16, 28, 28), (4, 16, 3, 3)


def conv(emit, x, w, **attrs):
    return emit(op.nn.conv2d(x, w, **attrs))


def residual(emit, x, w1, w2):
    y = emit(op.nn.relu(conv(emit, x, w1, padding=1)))
    return emit(op.nn.relu(emit(op.add(conv(emit, y, w2, padding=1), x))))


def concat_split(emit, x, w):
    y = conv(emit, x, w)
    both = emit(op.split(emit(op.concat([y, emit(op.nn.relu(y))], axis=1)), 2, axis=1))
    parts = [emit(op.permute_dims(emit(relax.TupleGetItem(both, i)), [3, 2, 1, 0])) for i in range(2)]
    return emit(op.concat(parts, axis=2))


def half_storage(emit, x, w1, w2):
    """Two convolutions whose inputs are halves and whose sums are floats; the first one pads into a temporary."""
    x, w1, w2 = (emit(op.astype(each, "float16")) for each in (x, w1, w2))
    y = emit(op.nn.relu(conv(emit, x, w1, padding=1, out_dtype="float32")))
    return conv(emit, emit(op.astype(y, "float16")), w2, out_dtype="float32")


# name -> the function of a network, the shapes of its inputs, how many kernels write a texture at least.
NETWORKS = {
    "conv": (lambda e, x, w: conv(e, x, w), [IMAGE, FILTER], 1),
    "strides_and_padding": (lambda e, x, w: conv(e, x, w, strides=2, padding=1), [IMAGE, FILTER], 1),
    "relu_conv_tanh": (lambda e, x, w: e(op.tanh(conv(e, e(op.nn.relu(x)), w))), [IMAGE, FILTER], 1),
    "bias": (lambda e, x, w, b: e(op.add(conv(e, x, w), b)), [IMAGE, FILTER, (1, 4, 1, 1)], 2),
    "two_convs": (lambda e, x, w, v: conv(e, conv(e, x, w), v), [IMAGE, (8, 16, 3, 3), (12, 8, 1, 1)], 2),
    "residual": (residual, [IMAGE, (16, 16, 3, 3), (16, 16, 3, 3)], 2),
    "concat_split": (concat_split, [IMAGE, FILTER], 2),
    "max_pool": (
        lambda e, x, w: e(op.nn.max_pool2d(conv(e, x, w), pool_size=(2, 2), strides=(2, 2))),
        [IMAGE, FILTER],
        2,
    ),
    "global_pool": (lambda e, x, w: e(op.nn.adaptive_avg_pool2d(conv(e, x, w), (1, 1))), [IMAGE, FILTER], 2),
    "mean": (lambda e, x, w: e(op.mean(conv(e, x, w), axis=[2, 3])), [IMAGE, FILTER], 1),
    "softmax": (lambda e, x, w: e(op.nn.softmax(conv(e, x, w), axis=1)), [IMAGE, FILTER], 1),
    "layer_norm": (
        lambda e, x, w, g, b: e(op.nn.layer_norm(conv(e, x, w), g, b, axes=[-1])),
        [IMAGE, FILTER, (26,), (26,)],
        1,
    ),
    "slice": (
        lambda e, x, w: e(op.strided_slice(conv(e, x, w), axes=[1, 2], begin=[0, 3], end=[4, 20], strides=[2, 3])),
        [IMAGE, FILTER],
        1,
    ),
    "half_storage": (half_storage, [IMAGE, (8, 16, 3, 3), (4, 8, 1, 1)], 2),
    # Too few channels for NCHW4c: TVM plans no texture, and the pipeline has to handle buffers too.
    "three_channels": (lambda e, x, w: e(op.nn.relu(conv(e, x, w))), [(1, 3, 17, 13), (7, 3, 3, 3)], 0),
}


@pytest.mark.device
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_run_through_tvms_own_adreno_pipeline(name):
    function, shapes, textures = NETWORKS[name]
    mod = emitted(function, shapes)
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes]

    reference = relax.VirtualMachine(relax.build(mod, "llvm"), tvm.cpu())
    expected = reference["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    executable = build_textures(relax.get_default_pipeline(TARGET)(mod), TARGET)
    device = opencl()
    machine = texture_machine(executable, device)
    found = machine["main"](*[tvm.runtime.tensor(x, device) for x in inputs]).numpy()

    # Between the two convolutions a device may round halves to nearest or towards zero.
    tolerance = 2e-3 if name == "half_storage" else 1e-5
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
    written = [name for name, text in sources(executable).items() if "write_image" in body(text)]
    assert len(written) >= textures if textures else not written


class TestVectorBooleans:
    """`FixVectorBooleans`: true converts to 1, and has all bits set in a select."""

    def mask(self):
        return read(value=lambda x: tirx.Cast("float32", x < tirx.const(0, "float32")) * x)

    def test_tvm_converts_all_bits(self):
        without_it = code(self.mask(), without("FixVectorBooleans"))
        assert "convert_float4" in without_it, unnecessary("FixVectorBooleans")

    def test_with_it(self):
        found = code(self.mask(), TIR_PIPELINE)
        assert "convert_float4" not in found and "select(" in found


SCATTER = """
import sys
import numpy as np
from tvm import relax
{before}
builder = relax.BlockBuilder()
x, i, u = (relax.Var(n, relax.TensorType([3, 4], d)) for n, d in (("x", "float32"), ("i", "int64"), ("u", "float32")))
with builder.function("main", [x, i, u]):
    with builder.dataflow():
        result = builder.emit_output(builder.emit(relax.op.scatter_elements(x, i, u, axis=1)))
    builder.emit_func_output(result)
relax.build(builder.get(), "llvm")
"""
TAKE = """
from tvm import relax
{before}
builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType([3, 4, 5], "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        result = builder.emit_output(relax.op.take(x, relax.const([[0, 3], [1, 2]], "int64"), axis=1))
    builder.emit_func_output(result)
relax.transform.LegalizeOps()(builder.get())
"""
OPEN_BLOCK = """
from tvm import relax
{before}
builder = relax.BlockBuilder()
builder._begin_binding_block()
{after}
"""


def said(code):
    """Return the stderr of a process of its own, warnings of TVM's C++ code included."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr


def test_tvm_prints_a_line_for_each_scatter():
    assert "Unknown pragma" in said(SCATTER.format(before=""))


def test_scatters_are_silent():
    assert "pragma" not in said(SCATTER.format(before="from smartmem_tvm import _tvm"))


def test_tvm_prints_a_line_for_each_take_by_constants():
    assert "Fast mode segfaults" in said(TAKE.format(before=""))


def test_takes_by_constants_are_silent():
    assert said(TAKE.format(before="from smartmem_tvm import _tvm")) == ""


def test_tvm_prints_a_line_for_each_builder_with_an_open_block():
    assert "remaining blocks" in said(OPEN_BLOCK.format(before="", after=""))


def test_builders_whose_blocks_are_ended_are_silent():
    before, after = "from smartmem_tvm._tvm import end_blocks", "end_blocks(builder)"
    assert "remaining blocks" not in said(OPEN_BLOCK.format(before=before, after=after))


def asked_for(iterate, monkeypatch) -> int:
    """Count the lookups by index while an array of three elements is iterated."""
    array, asked, own = tvm_ffi.Array([1, 2, 3]), [], tvm_ffi.Array.__getitem__
    monkeypatch.setattr(tvm_ffi.Array, "__getitem__", lambda self, at: asked.append(at) or own(self, at))
    assert list(iterate(array)) == [1, 2, 3]
    return len(asked)


def test_tvm_looks_at_the_number_of_each_element_of_an_array(monkeypatch):
    assert asked_for(array_iteration.ELEMENTS, monkeypatch) == 3


def test_elements_of_an_array_are_taken_as_they_come(monkeypatch):
    assert asked_for(iter, monkeypatch) == 0
    assert list(iter(tvm_ffi.Array([]))) == []

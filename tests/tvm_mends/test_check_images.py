# SPDX-License-Identifier: Apache-2.0
"""CheckImages: lowered kernels that break a rule are refused, in which words, and others are not."""

import re
from collections import Counter

import pytest
import tvm
from tvm import tirx

import smartmem_tvm as sm
from helpers import module, op
from lowered_kernels import ITEM, image, kernel, load, read_integers, store, write_integers
from smartmem_tvm.analysis.texel_reads import TexelReads, summed
from smartmem_tvm.deploy import gpu_build
from smartmem_tvm.deploy.kernel_code import kernel_code
from smartmem_tvm.errors import UserError
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.target import parse_target
from smartmem_tvm.tvm_mends.check_images import RULES, CheckImages, Planned, planned_memory
from texture_modules import TARGET, Program, from_texels, to_texels

A, B, C = image("A", "float32"), image("B", "float32"), tirx.decl_buffer((64,), "float32", "C")
N, K = image("A", "int8"), image("B", "int8")
PLAN = Planned({"A": ["float32"], "B": ["float32"]}, Counter({"C": 1}))
OF_INTEGERS = Planned({"A": ["int8"], "B": ["int8"]}, Counter())
COPY = store(B, load(A, 0))
LANES = 2


def put(value, at=0):
    return tirx.BufferStore(C, value, [at])


def check(stmts, params=(A, B, C), plan=PLAN):
    mod = tvm.IRModule({"copy_kernel": kernel(list(params), stmts)})
    assert CheckImages({"copy": plan} if plan else {})(mod).same_as(mod)


def declared(texture):
    """A buffer over a texture, as TVM's lowering leaves it, indexed like memory."""
    alias = tirx.decl_buffer((64,), "float32", "A", texture, scope="global.texture")
    return [tirx.DeclBuffer(alias, data=texture), put(alias[ITEM])]


IMAGES, ACCESS = "a planned texture is an image, and nothing else is one", "no pointer arithmetic on images"
FUNCTIONS, WHOLE = "an image is read or written, by the functions for its type", "a texel is written as a whole"
WIDTHS = "vectors have widths that OpenCL has"
BUFFER_A = tirx.decl_buffer((64,), "float32", "A")
IMAGE_C = image("C", "float32")
# Rule, what is done -> statements, parameters, plan, and what is said.
BROKEN = {
    (IMAGES, "a texture that became a buffer"): (
        [put(BUFFER_A[0])], (BUFFER_A, C), PLAN, "'A' was planned as a texture and is a buffer"
    ),
    (IMAGES, "a buffer that became a texture"): (
        [COPY, store(IMAGE_C, load(A, 0))], (A, B, IMAGE_C), PLAN, "'C' was planned as a buffer and is an image"
    ),
    (ACCESS, "indexed like a buffer"): ([COPY, *declared(A)], (A, B, C), PLAN, "image 'A_ptr' is used otherwise than"),
    (ACCESS, "given to another function"): (
        [COPY, put(tirx.call_pure_extern("float32", "vload4", 0, A))], (A, B, C), PLAN, "'A_ptr' is used otherwise"
    ),
    (ACCESS, "another function, beside an integer that is read"): (
        [write_integers(K, read_integers(N)), tirx.Evaluate(tirx.call_extern("int32", "prefetch", N))],
        (N, K), OF_INTEGERS, "image 'A_ptr' is used otherwise",
    ),
    (FUNCTIONS, "unused"): ([store(B, load(B, 0))], (A, B, C), PLAN, "'A_ptr' is neither read nor written"),
    (FUNCTIONS, "both"): ([COPY, store(A, load(B, 0))], (A, B, C), PLAN, "'A_ptr' is both read and written"),
    (FUNCTIONS, "those for integers"): (
        [store(B, tirx.Cast("float32x4", read_integers(A)))], (A, B, C), PLAN,
        "'A_ptr' of float32 is accessed as one of int",
    ),
    (FUNCTIONS, "those without a sign"): (
        [write_integers(K, read_integers(N), "write_imageui")], (N, K), OF_INTEGERS,
        "'B_ptr' of int8 is accessed as one of uint",
    ),
    (WHOLE, "a number"): ([store(B, load(A, 0, 2))], (A, B, C), PLAN, "'B_ptr' is written with 1 of the 4 numbers"),
    (WHOLE, "half a texel"): (
        [store(B, tirx.Broadcast(load(A, 0, 2), LANES))], (A, B, C), PLAN, "is written with 2 of the 4 numbers"
    ),
    (WHOLE, "an integer"): (
        [write_integers(K, read_integers(N, 1))], (N, K), OF_INTEGERS, "'B_ptr' is written with 1 of the 4 numbers"
    ),
    (WIDTHS, "an access"): (
        [COPY, tirx.BufferStore(C, tirx.Broadcast(tirx.const(0.0, "float32"), 6), [tirx.Ramp(0, 1, 6)])],
        (A, B, C), PLAN, "vectors of 6 numbers, and those of OpenCL have 2, 3, 4, 8 or 16",
    ),
    (WIDTHS, "memory of its own"): (
        [COPY, tirx.AllocBuffer(tirx.decl_buffer((4,), "float32x5", "own", scope="local"))],
        (A, B, C), PLAN, "vectors of 5 numbers",
    ),
}  # fmt: skip


def test_each_rule_is_broken_by_a_test():
    assert {rule for rule, _ in BROKEN} == RULES.keys()


@pytest.mark.parametrize("case", BROKEN, ids=": ".join)
def test_a_kernel_that_breaks_a_rule(case):
    (rule, _), (stmts, params, plan, said) = case, BROKEN[case]
    with pytest.raises(UserError) as error:
        check(stmts, params, plan)
    assert str(error.value).startswith(f"OpenCL kernel 'copy_kernel' breaks the rule '{rule}': ")
    assert said in str(error.value)
    assert str(error.value).endswith("; compile with --no-textures (Options(textures=False)), and report the model.")


ALLOWED = {
    "a copy": ([COPY], (A, B, C), PLAN),
    "integers": ([write_integers(K, read_integers(N))], (N, K), OF_INTEGERS),
    "halves that are read as floats": ([COPY], (A, B), Planned({"A": ["float16"], "B": ["float16"]}, Counter())),
    "a number for all four": ([store(B, tirx.Broadcast(load(A, 0, 2), 4))], (A, B), PLAN),
    "a repeated write, which is only slow": ([COPY, COPY], (A, B), PLAN),
    "vectors": ([COPY, tirx.BufferStore(C, tirx.Broadcast(load(A, 0, 1), 16), [tirx.Ramp(0, 1, 16)])], (A, B, C), PLAN),
    "buffers only": ([put(C[1])], (C,), PLAN),
    "nothing planned": ([COPY], (A, B), None),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed(name):
    check(*ALLOWED[name])


def test_a_second_kernel_of_a_function_is_checked_too():
    mod = tvm.IRModule({"copy_kernel_1": kernel([BUFFER_A, C], [put(BUFFER_A[0])])})
    with pytest.raises(UserError, match=r"'copy_kernel_1' breaks the rule .* was planned as a texture"):
        CheckImages({"copy": PLAN})(mod)


def chain():
    program = Program()
    t = program.kernel(to_texels((4, 6, 4)), program.input((7, 13)), scope="global.texture")
    return program.module(program.kernel(from_texels((7, 13), value=lambda v: v + v), t))


def test_what_is_planned_is_read_from_the_scopes_of_buffers():
    planned = planned_memory(chain())
    assert planned["kernel_t0"] == Planned({"texels": ["float32"]}, {"a0": 1})
    assert planned["kernel_t1"] == Planned({"a0": ["float32"]}, {"numbers": 1})


@pytest.fixture
def forgetful(monkeypatch):
    """The lowering without textures, which indexes them as if they were buffers."""
    lower = gpu_build._lower

    def forget():
        monkeypatch.setattr(gpu_build, "_lower", lambda mod, target, pipeline: lower(mod, target, "default"))

    return forget


def test_compile_does_without_textures_where_a_kernel_breaks_a_rule(forgetful):
    mod = module(lambda x: op.matmul(op.exp(x), x), (8, 8))
    assert summed(sm.compile(mod, TARGET).texel_reads.values()) == TexelReads(whole=1)
    forgetful()
    made = sm.compile(mod, TARGET)
    assert summed(made.texel_reads.values()) == TexelReads()
    placed = [entry for entry in read_log(made.graph) if entry["pass"] == "PlaceTextures"]
    assert {entry["memory"] for entry in placed} == {"buffer"}
    reason = (
        r"lv cannot be compiled with textures: OpenCL kernel '.*' breaks the rule 'no pointer arithmetic on images'"
    )
    assert re.match(reason, placed[0]["reason"])


def test_so_does_what_compiles_single_kernels(forgetful):
    kernels = [(each.name_hint, func) for each, func in chain().functions_items() if isinstance(func, tirx.PrimFunc)]
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in kernels})
    assert kernel_code(mod, TARGET) is not None
    forgetful()
    with pytest.raises(UserError, match="breaks the rule 'no pointer arithmetic on images'"):
        kernel_code(mod, TARGET)


def test_other_targets_have_none():
    compiled = sm.compile(module(lambda x: op.exp(x), (4, 8)))
    assert compiled.texel_reads == {}
    buffers = sm.compile(module(lambda x: op.exp(x), (4, 8)), parse_target("opencl"))
    assert list(buffers.texel_reads.values()) == [TexelReads()]

# SPDX-License-Identifier: Apache-2.0
"""The rules of generated OpenCL: sources that break one are found, and those of our kernels keep all of them."""

from collections import Counter
from pathlib import Path

import pytest

import smartmem_tvm as sm
from helpers import module, op
from opencl_rules import RULES, check_opencl, check_source
from smartmem_tvm.analysis.texel_reads import PARTIAL, TexelReads, summed
from smartmem_tvm.deploy.textures import build_textures
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.target import parse_target
from smartmem_tvm.tvm_mends.check_images import Planned, planned_memory
from texture_modules import TARGET, Program, from_texels, to_texels

MODELS = Path(__file__).parents[2] / "models"
ARGUMENTS = (
    "__read_only image2d_array_t A_ptr, __write_only image2d_array_t B_ptr, __global const float* restrict C_ptr"
)
SAMPLER = "const sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;"
PLAN = Planned({"A": ["float32"], "B": ["float32"]}, Counter({"C": 1}))


def read(row="get_group_id(0)"):
    return f"float4 v = as_float4(READ_IMAGEF(A_ptr, nearest, (int4)(get_local_id(0), {row}, 0, 0)));"


def write(value="v", row="get_group_id(0)", image="B_ptr"):
    return f"write_imagef({image}, (int4)(get_local_id(0), {row}, 0, 0), {value});"


def loop(*lines, extent=4):
    return " ".join([f"for (int i = 0; i < {extent}; ++i) {{", *lines, "}"])


def kernel(*lines, arguments=ARGUMENTS):
    return "\n".join([f"__kernel void copy_kernel({arguments}) {{", SAMPLER, *lines, "}"])


def declared(old, new, *lines):
    """A kernel with other arguments."""
    return kernel(*(lines or (read(), write())), arguments=ARGUMENTS.replace(old, new))


def check(source, plan=PLAN):
    return check_source(source, {"copy": plan})["copy_kernel"]


def test_a_kernel_that_keeps_all_rules():
    assert check(kernel(read(), write())) == TexelReads(whole=1)


def test_declarations_and_comments_are_no_kernels():
    prototype = f"__kernel void copy_kernel({ARGUMENTS});\n"
    assert check(prototype + kernel("// A_ptr + 1, write_imagef(B_ptr, x, 1.0f)", read(), "/* float7 */", write()))


IMAGES, ACCESS = "a planned texture is an image, and nothing else is one", "no pointer arithmetic on images"
FUNCTIONS, LOOPS = "an image is read or written, by the functions for its type", "no loop around the write of a texel"
WHOLE, CHANGED = "a texel is written as a whole", "no texel is read, changed and written back"
AGAIN, TWICE = "a texel is not read again for each of its numbers", "no double qualifiers"
WIDTHS = "vectors have widths that OpenCL has"
QUARTER, SIXTEENTH = "((get_group_id(0) * 4) + i) >> 2", "(((get_group_id(0) * 16) + i) + 4) / 64"
COPY = "((float*)&w)[i] = ((float*)&v)[i];"
# Rule, what is done -> a source that does it, and what is said of it.
BROKEN = {
    (IMAGES, "a texture that became a buffer"): (
        kernel("C_ptr[0] = A_ptr[0];", arguments="__global float* A_ptr, __global float* C_ptr"),
        "'A' was planned as a texture and is a buffer",
    ),
    (IMAGES, "a buffer that became a texture"): (
        kernel(write(image="C_ptr"), arguments="__write_only image2d_array_t C_ptr"),
        "'C' was planned as a buffer and is an image",
    ),
    (IMAGES, "no layers"): (declared("image2d_array_t A", "image2d_t A"), "'A_ptr' is no image2d_array_t"),
    (ACCESS, "a subscript"): (kernel(read(), write(), "C_ptr[0] = A_ptr[3];"), "'A_ptr' stands outside of"),
    (ACCESS, "a sum"): (kernel(read(), write(), "v = vload4(0, A_ptr + 4);"), "in '= vload4(0, A_ptr + 4);'"),
    (ACCESS, "a cast"): (kernel(read(), write(), "v = *((float4*)B_ptr);"), "'B_ptr' stands outside of"),
    (FUNCTIONS, "unused"): (kernel("float4 v = (float4)(1, 2, 3, 4);", write()), "'A_ptr' is neither read nor written"),
    (FUNCTIONS, "both"): (
        declared("read_only", "read_write", read(), write(), write(image="A_ptr")),
        "'A_ptr' is both read and written",
    ),
    (FUNCTIONS, "declared to be written"): (
        declared("read_only", "write_only"),
        "'A_ptr' is read and declared '__write_only image2d_array_t'",
    ),
    (FUNCTIONS, "those for integers"): (
        kernel(read().replace("READ_IMAGEF(A_ptr, nearest,", "read_imagei(A_ptr,"), write()),
        "'A_ptr' of float32 is accessed by read_imagei",
    ),
    (LOOPS, "a number each"): (
        kernel(loop(read(), write())),
        "a loop over 'i' writes one texel of 'B_ptr' again and again",
    ),
    (LOOPS, "a place that looks as if it moved"): (kernel(loop(read(), write(row=QUARTER))), "a loop over 'i' writes"),
    (LOOPS, "no braces"): (kernel(read(), "for (int i = 0; i < 4; ++i)", write()), "a loop over 'i' writes"),
    (LOOPS, "a condition"): (
        kernel(read(), "int i = 9; while (i > 2) {", write(), "i = i - 1; }"),
        "a loop over 'i' writes",
    ),
    (WHOLE, "a number"): (kernel(read(), write("C_ptr[0]")), "'B_ptr' is written with a single number, 'C_ptr[0]'"),
    (WHOLE, "a lane"): (kernel(read(), write("((float*)&v)[2]")), "is written with a single number"),
    (WHOLE, "a number in the place of four"): (kernel(read(), write("(float4)(C_ptr[0])")), "with a single number"),
    (WHOLE, "a variable"): (kernel(read(), "float w = C_ptr[1];", write("w")), "with a single number, 'w'"),
    (CHANGED, "by its place"): (
        kernel(read(), "((float*)&v)[get_local_id(0) & 3] = 0.0f;", write()),
        "'v' is read from an image, changed in one lane, and written to 'B_ptr'",
    ),
    (CHANGED, "by its name"): (kernel(read(), "v.s2 = C_ptr[0];", write()), "'v' is read from an image, changed"),
    (AGAIN, "plainly"): (
        kernel("float4 w;", loop(read(), COPY), write("w")),
        "a loop over 'i' reads one texel of 'A_ptr' again",
    ),
    (AGAIN, "a place that looks as if it moved"): (
        kernel("float4 w;", loop(read(SIXTEENTH), COPY), write("w")),
        "a loop over 'i' reads one texel of 'A_ptr' again",
    ),
    (TWICE, "of an argument"): (declared("const", "const const"), "'__global const const float'"),
    (TWICE, "of a variable"): (
        kernel(read(), write(), "__local volatile __local float* p;"),
        "'__local volatile __local float'",
    ),
    (TWICE, "two address spaces"): (
        kernel(read(), write(), "C_ptr[0] = *((__global __local float*)C_ptr);"),
        "'__global __local float'",
    ),
    (WIDTHS, "a type"): (kernel(read(), write(), "float6 w;"), "'float6' is no vector"),
    (WIDTHS, "a load"): (kernel(read(), write(), "float w = vload5(0, C_ptr).s0;"), "'vload5' is no vector"),
    (WIDTHS, "a conversion"): (kernel(read(), write(), "convert_int32(v);"), "'convert_int32' is no vector"),
}


def test_each_rule_is_broken_by_a_test():
    assert {rule for rule, _ in BROKEN} == RULES.keys()


@pytest.mark.parametrize("case", BROKEN, ids=": ".join)
def test_a_source_that_breaks_a_rule(case):
    (rule, _), (source, said) = case, BROKEN[case]
    with pytest.raises(AssertionError) as error:
        check(source)
    assert str(error.value).startswith(f"OpenCL kernel 'copy_kernel' breaks the rule '{rule}': ")
    assert said in str(error.value)


NUMBERS = "float n[4];"
# What resembles a broken rule.
ALLOWED = {
    "a loop over texels": kernel(loop(read("i"), write(row="i"), extent=3)),
    "a place that is computed": kernel(loop("int row = C_ptr[i] > 0.0f;", read(), write(row="row"))),
    "a texel put together": kernel(read(), NUMBERS, loop("n[i] = ((float*)&v)[3 - i];"), write("vload4(0, n)")),
    "a sum of texels": kernel(read(), write("(v * ((float4)(2.0f, 2.0f, 2.0f, 2.0f)))")),
    "a diagonal": kernel(NUMBERS, loop(read("i"), "n[i] = ((float*)&v)[i];"), write("vload4(0, n)")),
    "a constant pointer to constants": kernel(read(), write(), "__global const float* const p = C_ptr;"),
    "the size of an image": kernel(read(), write(), "int n = get_image_width(A_ptr);"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed(name):
    assert check(ALLOWED[name])


def test_a_kernel_that_nothing_was_planned_for():
    assert check_source(kernel(read(), write()), {}) == {"copy_kernel": TexelReads(whole=1)}


def chain():
    program = Program()
    t = program.kernel(to_texels((4, 6, 4)), program.input((7, 13)), scope="global.texture")
    return program.module(program.kernel(from_texels((7, 13), value=lambda v: v + v), t))


def test_compiled_code_against_another_plan():
    code = build_textures(chain(), TARGET)
    planned = planned_memory(chain())
    assert check_opencl(code, planned).keys() == {"kernel_t0_kernel", "kernel_t1_kernel"}
    with pytest.raises(AssertionError, match=r"'kernel_t1_kernel' breaks the rule .* 'a0' was planned as a buffer"):
        check_opencl(code, planned | {"kernel_t1": Planned({}, {"a0": 1, "numbers": 1})})


def test_code_without_opencl():
    compiled = sm.compile(module(lambda x: op.exp(x), (4, 8)))
    assert compiled.texel_reads == {} == check_opencl(compiled.executable)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_t", "vit_b16", "convnext_t", "resnext50", "bert_base"])
def test_every_kernel_of_a_network(name):
    compiled = sm.compile(from_onnx(MODELS / f"{name}.onnx"), parse_target("adreno-740"))
    kernels = compiled.texel_reads
    assert check_opencl(compiled.executable, planned_memory(compiled.graph)) == kernels
    functions = {kernel.rpartition("_kernel")[0] for kernel in kernels}
    assert functions == set(compiled.rules)
    total = summed(kernels.values())
    assert total.whole > sum(total.partial.values()) and total.partial.keys() <= PARTIAL.keys()

# SPDX-License-Identifier: Apache-2.0
"""Generated OpenCL C as a list of kernels."""

from helpers import module, op
from opencl_parser import Argument, parse_kernels, sources, split_arguments
from smartmem_tvm.deploy.build import compile
from texture_modules import TARGET

SOURCE = """
#define READ_IMAGEF(image, sampler, coord) read_imagef(image, sampler, coord)
__kernel void first_kernel(__global float* restrict A, __read_only image2d_array_t B, int n);
// __kernel void commented(__global float* A) { }
__kernel void first_kernel(__global float* restrict A, __read_only  image2d_array_t B, int n) {
  for (int i = 0; i < 8; ++i) {
    for (int j = n; j < 9; ++j) A[j] = 0;
    while (A[i] > n) { A[i] /= 2; }
  }
  if (n) { vstore4(READ_IMAGEF(B, s, (int4)(n, max(n, 1), 0, 0)), 0, A); }
}
__kernel void __attribute__((reqd_work_group_size(64, 1, 1))) second_kernel_1() { /* } */ }
"""


def test_kernels_and_arguments():
    first, second = parse_kernels(SOURCE)
    assert (first.name, second.name) == ("first_kernel", "second_kernel_1")
    assert first.arguments == (
        Argument("A", "__global float* restrict"), Argument("B", "__read_only image2d_array_t"), Argument("n", "int")
    )  # fmt: skip
    assert [argument.image for argument in first.arguments] == [False, True, False]
    assert second.arguments == () and second.body.split() == []


def test_loops():
    first, _ = parse_kernels(SOURCE)
    assert [(sorted(loop.variables), loop.extent) for loop in first.loops] == [
        (["i"], 8), (["j"], None), (["A", "i", "n"], None)
    ]  # fmt: skip
    around = {text: first.loops_around(first.body.index(text)) for text in ("A[j] = 0", "A[i] /=", "vstore4")}
    assert [[sorted(loop.variables) for loop in loops] for loops in around.values()] == [
        [["i"], ["j"]], [["i"], ["A", "i", "n"]], []
    ]  # fmt: skip


def test_uses_of_images():
    (use,) = parse_kernels(SOURCE)[0].uses
    assert (use.image, use.function, use.reads, use.writes) == ("B", "READ_IMAGEF", True, False)
    assert use.arguments == ("B", "s", "(int4)(n, max(n, 1), 0, 0)") and use.coordinate == use.arguments[2]


def test_arguments_with_commas_inside():
    assert split_arguments("a, f(b, c), d[e, g], {h, i}") == ["a", "f(b, c)", "d[e, g]", "{h, i}"]


def test_sources_of_compiled_code():
    made = compile(module(lambda x: op.matmul(op.exp(x), x), (8, 8)), TARGET)
    kernels = [kernel for source in sources(made.executable) for kernel in parse_kernels(source)]
    assert {kernel.name.removesuffix("_kernel") for kernel in kernels} == set(made.rules)

# SPDX-License-Identifier: Apache-2.0
"""Vector accesses in OpenCL source become aligned ones where that is certain, and only there."""

import pytest

from _smartmem_opencl_vectors import align_vectors

ARGUMENTS = {"x": "float", "y": "float", "h": "half", "n": "int", "d": "double", "c": "uchar"}
HEAD = ", ".join(f"__global {kind}* restrict {name}" for name, kind in ARGUMENTS.items())


def rewritten(line: str, before: str = "") -> str:
    """The line, as it is in a kernel after the rewrite."""
    code = align_vectors(f"// Function: f\n__kernel void f({HEAD}, int m) {{\n{before}  {line}\n}}\n")
    return code.splitlines()[-2].strip()


@pytest.mark.parametrize(
    "load, aligned",
    [
        ("vload4(0, x + 0)", "(*((const __global float4*)(x + 0)))"),
        ("vload2(0, x + (i * 2))", "(*((const __global float2*)(x + (i * 2))))"),
        ("vload4(0, n + ((i * 12) + 8))", "(*((const __global int4*)(n + ((i * 12) + 8))))"),
        ("vload8(0, h + (i * 8))", "(*((const __global half8*)(h + (i * 8))))"),
        ("vload16(0, c + (i * 16))", "(*((const __global uchar16*)(c + (i * 16))))"),
        ("vload2(0, d + (i * 2))", "(*((const __global double2*)(d + (i * 2))))"),
        (
            "vload4(0, x + ((((convert_int(get_local_id(0))) >> 6) * 8) + ((i % 36) * 4)))",
            "(*((const __global float4*)(x + ((((convert_int(get_local_id(0))) >> 6) * 8) + ((i % 36) * 4)))))",
        ),
        ("vload4(0, x + (((long)(i * 4)) - 8))", "(*((const __global float4*)(x + (((long)(i * 4)) - 8))))"),
    ],
)
def test_a_load_at_a_multiple_of_its_lanes_is_aligned(load, aligned):
    assert rewritten(f"float4 v = {load};") == f"float4 v = {aligned};"


@pytest.mark.parametrize(
    "line",
    [
        "v = vload4(0, x + (i * 2));",
        "v = vload4(0, x + ((i * 4) + 1));",
        "v = vload4(0, x + ((i * 8) / 2));",
        "v = vload4(0, x + (m));",
        "v = vload4(0, x + ((i * 4) + m));",
        "v = vload4(0, x + (i % 4 * m));",
        "v = vload4(0, x + (i ? 4 : 1));",
        "v = vload4(0, x + (min((i * 4), 3)));",
        "v = vload4(0, x + n[4]);",
        "v = vload8(0, x + (i * 8));",  # wider than any GPU moves
        "v = vload4(1, x + (i * 4));",
        "v = vload4(0, other + (i * 4));",
        "v = vload4(0, ((__global int*)x) + (i * 4));",
        "v = vload_half4(0, h + (i * 4));",
        "vstore4(v, 0, x + ((i * 4) + 2));",
    ],
)
def test_what_is_not_certain_stays(line):
    assert rewritten(line) == line


def test_a_store_is_an_assignment_and_what_it_stores_is_rewritten_too():
    line = "vstore4((vload4(0, x + (i * 4)) + vload4(0, y + i)), 0, y + ((i * 4) + 400));"
    value = "((*((const __global float4*)(x + (i * 4)))) + vload4(0, y + i))"
    assert rewritten(line) == f"*((__global float4*)(y + ((i * 4) + 400))) = {value};"


def test_loads_in_an_access_that_stays_are_rewritten():
    line = "vstore4(vload4(0, x + (i * 4)), 0, mine + 0);"
    assert rewritten(line) == "vstore4((*((const __global float4*)(x + (i * 4)))), 0, mine + 0);"


def test_a_variable_is_what_every_assignment_says():
    line = "v = vload4(0, x + (a + 8));"
    assert "const __global" in rewritten(line, "  int b = (i * 4);\n  int a = (b + 4);\n")
    assert rewritten(line, "  int a = (i * 4);\n  if (i) {\n    a = (i * 2);\n  }\n") == line
    assert rewritten(line, "  for (int a = 0; a < 4; ++a) {\n") == line


def test_local_arrays_are_declared_aligned():
    code = "// Function: f\n__kernel void f() {\n  __local float s[64];\n  vstore4(v, 0, s + (i * 4));\n}\n"
    mended = align_vectors(code)
    assert "  __local float s[64] __attribute__((aligned(16)));\n" in mended
    assert "  *((__local float4*)(s + (i * 4))) = v;\n" in mended


def test_names_are_those_of_their_kernel():
    first = "// Function: f\n__kernel void f(__global float* restrict p) {\n}\n"
    second = "// Function: g\n__kernel void g() {\n  float p[4];\n  v = vload4(0, p + 0);\n}\n"
    assert align_vectors(first + second) == first + second


def test_a_kernel_is_looked_at_once_alone_and_with_others(monkeypatch):
    first = "// Function: f\n__kernel void f() {\n  __local float s[64];\n}\n"
    second = "// Function: g\n__kernel void g() {\n  __local float s[32];\n}\n"
    known: dict[str, str] = {}
    whole = align_vectors(first + second, known)
    monkeypatch.setattr("_smartmem_opencl_vectors._Kernel", lambda code: pytest.fail(f"it is looked at again: {code}"))
    assert align_vectors(first, known) + align_vectors(second, known) == whole

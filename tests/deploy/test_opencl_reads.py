# SPDX-License-Identifier: Apache-2.0
"""Which numbers of the texels that it reads a kernel uses."""

import pytest

from opencl_parser import parse_kernels
from opencl_reads import count_reads, texel_reads
from smartmem_tvm.analysis.texel_reads import CONSTANT, LOOP, MEMORY, THREAD, TexelReads

READ = "as_float4(READ_IMAGEF(A, nearest, ((int4)(get_local_id(0), row, 0, 0))))"
HELD = f"float4 v_ = {READ};"
CHOSEN = "select(select(texel.s2, texel.s3, lane == 3), select(texel.s0, texel.s1, lane == 1), lane < 2)"
INTEGERS = "read_imagei(A, (int4)(get_local_id(0), row, 0, 0))"
WHOLE = {
    "used as it is": f"{HELD} vstore4(v_, 0, B);",
    "used as it is and by its numbers": f"{HELD} vstore4(v_ * v_, 0, B); B[0] = ((float*)&v_)[1];",
    "each number": f"{HELD} " + " ".join(f"B[{i}] = ((float*)&v_)[{i}];" for i in (2, 0, 3, 1)),
    "each number by its name": f"{HELD} B[0] = v_.x + v_.yz.x; B[1] = v_.w + v_.s2;",
    "a loop over the numbers": f"{HELD} for (int j = 0; j < 4; ++j) {{ B[j] = ((float*)&v_)[j]; }}",
    "in the middle of an expression": f"vstore4({READ} + 1.0f, 0, B);",
    "integers": f"vstore4({INTEGERS}, 0, B);",
    "converted integers": f"vstore4(convert_uchar4({INTEGERS}), 0, B);",
}
PARTIAL = {
    "one number": (f"{HELD} B[0] = ((float*)&v_)[2];", CONSTANT),
    "one number by its name": (f"{HELD} B[0] = v_.s2;", CONSTANT),
    "three numbers": (f"{HELD} B[0] = v_.x + v_.y; B[1] = ((float*)&v_)[2];", CONSTANT),
    "a number at once": (f"B[0] = ({READ}).x;", CONSTANT),
    "a number of the thread": (f"{HELD} B[0] = ((float*)&v_)[((convert_int(get_local_id(0))) & 3)];", THREAD),
    "a number of a pass": (f"for (int j = 0; j < 9; ++j) {{ {HELD} B[j] = ((float*)&v_)[j & 3]; }}", LOOP),
    "some passes": (f"{HELD} for (int j = 0; j < 3; ++j) {{ B[j] = ((float*)&v_)[j]; }}", THREAD),
    "a gather": (f"{HELD} B[0] = ((float*)&v_)[index[row] & 3];", MEMORY),
    "a number that is chosen": (f"{HELD} float4 texel = v_; int lane = (row & 3); B[0] = {CHOSEN};", THREAD),
    "an integer": (f"B[0] = ({INTEGERS}).s1;", CONSTANT),
    "an integer of the thread": (f"int4 texel = {INTEGERS}; int lane = (row & 3); B[0] = {CHOSEN};", THREAD),
    "in a block of its own": (f"{{ {HELD} B[0] = v_.x; }} float4 v_; vstore4(v_, 0, B);", CONSTANT),
}


def counted(line):
    (kernel,) = parse_kernels(f"__kernel void k(__read_only image2d_array_t A, __global float* B) {{ {line} }}")
    return count_reads(kernel, texel_reads(kernel))


@pytest.mark.parametrize("name", WHOLE)
def test_whole_texels(name):
    assert counted(WHOLE[name]) == TexelReads(whole=1)


@pytest.mark.parametrize("name", PARTIAL)
def test_parts_of_texels(name):
    line, reason = PARTIAL[name]
    assert counted(line) == TexelReads(partial={reason: 1})

# SPDX-License-Identifier: Apache-2.0
"""What Mesa's compiler for Mali prints, from records of real runs: Mesa 26.2.6 on ``samples/mali.cl``."""

from pathlib import Path

import pytest

from smartmem_tvm.target import parse_target, target_row
from smartmem_tvm.tools.isa import bifrost
from smartmem_tvm.tools.isa.compiler import Compiled, mali_of, read
from smartmem_tvm.tools.isa.kernels import DEVICE, REGISTERS, KernelCode, MaliCode

SAMPLES = Path(__file__).with_name("samples")
ROW = target_row(parse_target("mali-g57"))


def recorded(gpu: str) -> MaliCode:
    """Return the kernel of a record."""
    with (SAMPLES / f"mali_{gpu}.txt").open(encoding="utf-8") as lines:
        ((name, made),) = read(lines, {"/w/b.cl": "loop"})
    return KernelCode.of(name, (SAMPLES / "mali.cl").read_text(encoding="utf-8"), made)


@pytest.mark.parametrize(("gpu", "instructions", "registers"), [("g57", 106, 23), ("g76", 91, 19)])
def test_a_kernel_of_each_generation(gpu, instructions, registers):
    data = recorded(gpu).as_dict(ROW)
    classes, inner = data["classes"], data["inner_loop"]["classes"]
    assert data["instructions"] == instructions == sum(classes.values()) - (classes["nops"] if gpu == "g76" else 0)
    assert data["registers"] == registers and data["threads_held"] == "full" and data["limited_by"] == DEVICE
    assert (classes["float16"], inner["float16"], inner["local"], inner["texels"]) == (2, 2, 2, 1)
    # four products, and half a texel added to two coordinates; behind the loop one sum
    assert (inner["float32"], classes["float32"], inner["functions"], classes["comparisons"]) == (6, 7, 0, 1)
    assert classes["global"] == inner["global"] + 1 == 4 and classes["scratch"] == 0
    assert data["threads"] == [64, 1, 1] and data["local_bytes"] == 256 and data["issue_seconds"] is None


def test_spills_and_half_of_the_threads():
    statistics = (
        "MESA_SHADER_KERNEL shader: 3 instrs, 128 code size, 1 threads, 0 loops, 1:2 spills:fills, 40 registers used"
    )
    code = (
        "block0 {\n        STORE.i32.tl r1, tls_ptr, tls_ptr[1], byte_offset:4\n        r0 = LOAD.i32.tl tls_ptr\n}\n"
    )
    data = KernelCode.of("a", "", Compiled(f"{statistics}\n{code}", 64)).as_dict(ROW)
    assert (data["threads_held"], data["limited_by"], data["spills"], data["fills"]) == ("half", REGISTERS, 1, 2)
    assert data["scratch"] == 2 and data["inner_loop"] is None


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("FMA.f32", "float32"),
        ("FMA.v2f16", "float16"),
        ("FMA_RSCALE.f32", "functions"),
        ("FADD.f32.clamp_0_inf", "float32"),
        ("IADD_IMM.i32", "integers"),
        ("F16_TO_F32", "conversions"),
        ("ST_CVT.auto.v4", "texels"),
        ("LOAD.i128.wls", "local"),
        ("LOAD.i32", "global"),
        ("BRANCHZ.i16.flow10.eq", "flow"),
        ("NOP.end", "nops"),
    ],
)
def test_classes(op, kind):
    assert bifrost.kind(op, "r0, r1") == kind
    assert bifrost.kind("IADD_IMM.i32", "u256, index:7") == "moves"  # a constant


def test_text_that_is_no_code():
    with pytest.raises(ValueError, match="no machine code of Mali"):
        bifrost.parse("MESA_SHADER_KERNEL shader: 3 instrs\n")


def test_a_program_that_mesa_found_compiled_is_asked_again():
    lines = ["@@FILE /w/b.cl Mali\n", "@@KERNEL a threads=64 local=0 private=0\n", "@@END\n"]
    assert list(read(lines, {"/w/b.cl": "a"})) == [("a", None)]


def test_names():
    assert mali_of(ROW) == "G57" and mali_of(target_row(parse_target("adreno-740"))) is None

# SPDX-License-Identifier: Apache-2.0
"""What ir3 prints, from records of real runs: ``samples/adreno740.txt`` is Mesa 26.2.6 on the programs beside it."""

import math
from pathlib import Path

import pytest

from smartmem_tvm.target import parse_target, target_row
from smartmem_tvm.tools.isa.compiler import Compiled, read
from smartmem_tvm.tools.isa.ir3 import CLASSES, FLOAT16, NOPS, kind, parse, share
from smartmem_tvm.tools.isa.kernels import DEVICE, LOCAL_MEMORY, REGISTERS, KernelCode

SAMPLES = Path(__file__).with_name("samples")
NAMES = {f"/w/x/{number}.cl": name for number, name in enumerate(("half_product", "lane", "nested", "refused"))}
ROW = target_row(parse_target("adreno-740"))


@pytest.fixture(scope="module")
def printed() -> dict[str, Compiled]:
    """What the compiler printed of each program."""
    with (SAMPLES / "adreno740.txt").open(encoding="utf-8") as lines:
        return dict(read(lines, NAMES))


def kernel(printed: dict[str, Compiled], name: str) -> KernelCode:
    return KernelCode.of(name, (SAMPLES / f"{name}.cl").read_text(encoding="utf-8"), printed[name])


def test_a_loop_of_halves(printed):
    found = kernel(printed, "half_product")
    loop = found.code.inner_loop
    assert found.code.loops == (loop,) and loop.trips == 1000
    counts = found.code.counts_of(loop)
    assert list(counts) == list(CLASSES) and counts["float16"] == 4 and counts["global"] == 2
    assert counts["float32"] == counts["scratch"] == counts["moves"] == 0
    assert share(counts) == pytest.approx(4 / sum(count for name, count in counts.items() if name != NOPS))
    assert found.code.counts["conversions"] == 4  # the sums, behind the loop
    assert (found.registers, found.waves, found.limited_by) == (4, 16, DEVICE)


def test_issue_time_counts_trips_and_whole_waves(printed):
    found = kernel(printed, "half_product")
    assert found.code.counts_of(found.code.inner_loop)[NOPS] > 0  # other waves run in them
    whole, trip = (sum(each.values()) - each[NOPS] - each[FLOAT16] / 2 for each in _counts(found))
    assert found.code.issued({FLOAT16: 0.5, NOPS: 0.0}) == pytest.approx(whole + 999 * trip)
    assert found.issue_seconds(ROW) == pytest.approx((whole + 999 * trip) * 64 * 4 / ROW.peak)
    lane = kernel(printed, "lane")
    issued = sum(count for name, count in lane.code.counts.items() if name != NOPS)
    assert lane.issue_seconds(ROW) == pytest.approx(issued * 64 / ROW.peak)  # of 32 threads


def _counts(found: KernelCode) -> tuple[dict, dict]:
    return found.code.counts, found.code.counts_of(found.code.inner_loop)


def test_loops_within_loops(printed):
    found = kernel(printed, "nested")
    inner, outer = sorted(found.code.loops, key=lambda loop: loop.end - loop.first)
    assert outer.holds(inner) and not inner.holds(outer) and found.code.inner_loop == inner
    assert (inner.trips, outer.trips) == (120, 200)  # 480 in steps of 4
    counts = found.code.counts_of(inner)
    assert counts["local"] == 2 and counts["float32"] == 1 and found.code.counts["functions"] == 1
    once = dict.fromkeys(CLASSES, 0.0) | {"local": 1.0}
    outside = found.code.counts["local"] - counts["local"]
    assert found.code.issued(once) == 200 * (120 * 2 + outside)


def test_local_memory_limits_waves(printed):
    found = kernel(printed, "nested")
    assert (found.compiled.local_bytes, found.waves, found.limited_by) == (8192, 16, LOCAL_MEMORY)


def test_registers_limit_waves(printed):
    compiled = printed["half_product"]
    text = compiled.code.replace("16 max_waves", "4 max_waves").replace("4 full", "46 full")
    found = KernelCode.of("many", "", Compiled(text, threads=267))  # 96 registers for 128 threads: 96 * 128 / 46
    assert (found.registers, found.waves, found.limited_by) == (46, 4, REGISTERS)


def test_a_lane_chosen_by_the_thread_goes_through_scratch(printed):
    found = kernel(printed, "lane")
    assert found.code.counts["scratch"] == 2 and found.code.inner_loop is None
    data = found.as_dict(ROW)
    assert data["scratch"] == 2 and data["inner_loop"] is None and data["threads"] == [32, 1, 1]


def test_a_program_that_is_refused_has_the_reason(printed):
    found = kernel(printed, "refused")
    assert found.code is None and "use of undeclared identifier 'nonsense'" in found.as_dict(ROW)["refused"]


def test_a_compiler_that_ends_leaves_the_kernel_refused():
    lines = (SAMPLES / "adreno740.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    cut = next(number for number, line in enumerate(lines) if line.startswith("@@FILE /w/x/2.cl")) + 20
    found = dict(read(lines[:cut], NAMES))
    assert list(found) == ["half_product", "lane", "nested"]
    assert found["nested"].refused and not found["lane"].refused


def test_the_listing_has_basic_blocks(printed):
    code = kernel(printed, "nested").code
    lines = list(code.listing(code.inner_loop))
    assert lines[0].startswith("l") and lines[0].endswith(":")
    assert any("mad.f32" in line for line in lines) and len(lines) < len(list(code.listing()))


def test_nothing_follows_the_end(printed):
    code = kernel(printed, "lane").code
    assert code.instructions[-1].op == "end"


def test_text_without_code_is_no_code():
    with pytest.raises(ValueError, match="no machine code"):
        parse("Native code for nothing\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mad.f16 hr1.z, hr3.x, (r)hr4.x, (r)(last)hr1.z", "float16"),
        ("mad.f32 r1.z, r3.x, (r)r4.x, (r)(last)r1.z", "float32"),
        ("add.f hr36.w, (last)hr36.w, (last)hr16.z", "float16"),
        ("add.f r5.x, (last)r5.x, (last)(neg)r6.x", "float32"),
        ("cmps.f.lt hr20.w, r2.y, c4.z", "comparisons"),
        ("max.f hr3.w, (last)hr5.z, h(0.0)", "comparisons"),
        ("cmps.s.ge up0.x, r53.x, 16", "integers"),
        ("rcp r9.y, (last)r9.y", "functions"),
        ("cov.f32f16 (even)hr25.w, r22.y", "conversions"),
        ("mov.u32u32 r33.w, 0", "moves"),
        ("alias.tex.b32.1 r37.z, r17.w", "moves"),
        ("isam.a.1d (f16)(xyzw)hr38.x, r38.x, s#0, t#1", "texels"),
        ("stib.b.typed.3d.f16.4.imm.base0 hr3.x, r26.y, 32", "texels"),
        ("ldl.u16 r0.z, l[r38.y], 4", "local"),
        ("stg.a.u32 g[c1.x+r0.x+0], r2.z, 4", "global"),
        ("stp.u32 p[r1.x], r2.z, 4", "scratch"),
        ("ldp.u32 r3.z, p[r1.y], 1", "scratch"),
        ("br p0.x, #l24", "flow"),
        ("bar.g", "flow"),
        ("nop", "nops"),
        ("sel.b32 r3.x, c4.x, r3.x, c4.w", "comparisons"),
    ],
)
def test_classes(line, expected):
    op, _, operands = line.partition(" ")
    assert kind(op, operands) == expected


COUNTING = """Native code for a loop
@const(c4.x)	0x00000014, 0xfffffff6, 0x00000000, 0x00000000
{start}
l2:
{body}
br p0.x, #l9
jump #l2
l9:
end
; CL: outputs:
; CL prog 1/1: 9 instr, 0 nops, 9 non-nops, 1 mov, 0 cov, 16 dwords
; CL prog 1/1: 0 half, 4 full, 4 constlen
; CL prog 1/1: 16 max_waves, 0 double_threadsize
"""
STEP, COMPARE = "add.u r1.x, (last)r1.x, 3", "cmps.s.ge up0.x, r1.x, c4.x"
BACK = "mov.u32u32 r3.x, (last)r1.x"


@pytest.mark.parametrize(
    ("start", "body", "trips"),
    [
        ("mov.u32u32 r1.x, 0", f"{STEP}\n{COMPARE}", math.ceil(20 / 3)),
        ("mov.u32u32 r1.x, 2", f"{STEP}\n{COMPARE}", 6),
        ("mov.u32u32 r1.x, c4.y", f"{STEP}\n{COMPARE}", 10),  # from -10
        ("(rpt3)mov.u32u32 r0.z, 0", f"{STEP}\n{COMPARE}", 7),  # one of four registers
        ("mov.u32u32 r1.x, 0", f"{STEP}\ncmps.s.gt up0.x, r1.x, 18", 7),
        ("mov.u32u32 r1.x, 0", f"{COMPARE}\n{STEP}", 8),  # compared before it counts on
        ("mov.u32u32 r1.x, 0", f"{STEP}\nmov.u32u32 r2.x, r1.x\ncmps.s.ge up0.x, r2.x, 20", 7),
        ("mov.u32u32 r1.x, r7.x", f"{STEP}\n{COMPARE}", None),  # begins anywhere
        ("mov.u32u32 r1.x, 0", f"{STEP}\ncmps.s.ge up0.x, r1.x, r8.x", None),  # ends anywhere
        ("mov.u32u32 r1.x, 0", f"{STEP}\n{STEP}\n{COMPARE}", None),
        ("mov.u32u32 r1.x, 0", COMPARE, None),
        (
            "mov.u32u32 r3.x, 0",
            f"add.u r1.x, r3.x, 3\n{COMPARE}\n{BACK}",
            7,
        ),  # the next value, in a register of its own
        ("mov.u32u32 r3.x, 2", f"add.u r1.x, 3, (last)r3.x\n{COMPARE}\n{BACK}", 6),
        ("mov.u32u32 r3.x, 0", f"add.u r1.x, r3.x, 3\n{COMPARE}", None),  # never handed back
        ("mov.u32u32 r3.x, 0", f"add.u r1.x, r3.x, r9.x\n{COMPARE}\n{BACK}", None),
        ("mov.u32u32 r3.x, 0", f"mul.u r1.x, r3.x, 3\n{COMPARE}\n{BACK}", None),
    ],
)
def test_trips(start, body, trips):
    code = parse(COUNTING.format(start=start, body=body))
    assert [loop.trips for loop in code.loops] == [trips]
    assert (code.issued({}) is None) == (trips is None)


def test_a_loop_that_is_left_behind_a_branch():
    """As where registers are spilled: another trip jumps past the stores and the way out."""
    text = COUNTING.replace(
        "br p0.x, #l9\njump #l2\n", "br !p0.x, #l5\nstp.u32 p[r2.x], r3.x, 1\njump #l9\nl5:\njump #l2\n"
    )
    code = parse(text.format(start="mov.u32u32 r1.x, 0", body=f"{STEP}\n{COMPARE}"))
    assert [loop.trips for loop in code.loops] == [7]
    within = parse(text.replace("jump #l9\n", "").format(start="mov.u32u32 r1.x, 0", body=f"{STEP}\n{COMPARE}"))
    assert [loop.trips for loop in within.loops] == [None]  # the branch is inside of the loop

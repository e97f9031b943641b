# SPDX-License-Identifier: Apache-2.0
"""Read what Mesa's compiler for Mali (Bifrost and Valhall) prints: instructions by class, loops, registers, spills.

It is read in the form that both generations share, the compiler's own at its end: one operation a line, in blocks that
name those that follow. Operations of Bifrost are in pairs, of which one may be empty (``NOP``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .ir3 import (
    COMPARISONS,
    CONVERSIONS,
    FLOAT16,
    FLOAT32,
    FLOW,
    FUNCTIONS,
    GLOBAL,
    INTEGERS,
    LOCAL,
    MOVES,
    NOPS,
    SCRATCH,
    TEXELS,
    Code,
    Instruction,
    Loop,
)

MOST_REGISTERS = 64
"""Registers of a thread, of 32 bits each (Mesa, panfrost/compiler/bifrost: bi_ra.c)."""
FULL_REGISTERS = 32
"""Most registers with which a core holds all its threads; with more of them it holds half (Mesa, pan_props.c)."""
_CALCULATE = ("FMA.", "FMA_IMM", "FADD", "FMUL", "FADD_IMM", "FADD_LSCALE")
_PREFIXES = (
    (("FMAX", "FMIN", "FCMP", "FROUND", "FCLAMP", "CSEL.f", "CSEL.v2f", "FSGN"), COMPARISONS),
    # Reciprocals, roots, exponentials, logarithms and sines, and the steps that only they have.
    (("FRCP", "FRSQ", "FSQRT", "FEXP", "FLOG", "FLOGD", "FSIN", "FCOS", "FPCLASS", "FMA_RSCALE", "FREXP"), FUNCTIONS),
    (("LDEXP", "FADD_RSCALE", "FPOW_SC_APPLY", "FATAN"), FUNCTIONS),
    (("F16_TO", "F32_TO", "S32_TO", "U32_TO", "S16_TO", "U16_TO", "S8_TO", "U8_TO", "V2"), CONVERSIONS),
    (("MOV", "MKVEC", "SWZ", "COLLECT", "SPLIT", "IADD_IMM.i32 u256", "CLPER"), MOVES),
    (("TEX", "LD_CVT", "ST_CVT", "LEA_TEX", "LEA_IMAGE", "LD_TEX", "ST_TEX", "LD_ATTR", "LEA_ATTR", "VAR_TEX"), TEXELS),
    (("TEXC", "TEXS"), TEXELS),
    (("ATOM", "AXCHG", "ACMPXCHG", "LD_BUFFER", "LEA_BUFFER"), GLOBAL),
    (("BRANCH", "JUMP", "BARRIER", "DISCARD", "END"), FLOW),
)
_LINE = re.compile(r"^\s*(?:[*+]\s+)?(?:[\w:.^, ]+? = )?([A-Z][A-Z0-9_]+[\w.]*)(.*)$")
_BLOCK = re.compile(r"^block(\d+) \{")
_FOLLOWS = re.compile(r"^\} -> ((?:block\d+ ?)+)")
_FACTS = {
    "instr": r"(\d+) instrs",
    "registers": r"(\d+) registers used",
    "threads": r"(\d+) threads",
    "spills": r"(\d+):\d+ spills:fills",
    "fills": r"\d+:(\d+) spills:fills",
    "bytes": r"(\d+) code size",
    "loops": r"(\d+) loops",
}


def parse(text: str) -> Code:
    """Read the statistics and the code of a kernel (`compiler.Compiled.code`).

    Its facts are ``instr``, ``registers``, ``threads`` (2 if a core holds all its threads, 1 if it holds half),
    ``spills`` and ``fills`` (accesses of scratch memory that the compiler made), ``bytes`` of machine code and
    ``loops``. Trips of loops are not known.

    Raises
    ------
    ValueError
        If there is no code in the text, or none of its statistics.
    """
    statistics, _, code = text.partition("\n")
    found = {name: re.search(pattern, statistics) for name, pattern in _FACTS.items()}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    follows: dict[str, list[str]] = {}
    block = ""
    for line in code.splitlines():
        if begins := _BLOCK.match(line):
            block = f"block{begins[1]}"
            labels[block] = len(instructions)
        elif ends := _FOLLOWS.match(line):
            follows[block] = ends[1].split()
            labels[f"{block} end"] = len(instructions)
        elif operation := _LINE.match(line):
            op, operands = operation[1], operation[2].strip()
            instructions.append(Instruction(line.strip(), op, operands, kind(op, operands), 1, 0))
    if not instructions or None in found.values():
        raise ValueError("no machine code of Mali")
    loops = tuple(_loops(labels, follows))
    blocks = {name: place for name, place in labels.items() if not name.endswith("end")}
    return Code(tuple(instructions), blocks, {}, {name: int(each[1]) for name, each in found.items()}, loops)


def _loops(labels: dict[str, int], follows: dict[str, list[str]]) -> Iterator[Loop]:
    """Yield the loops: a block that goes back to an earlier one closes one, the last of those to one block."""
    ends: dict[int, int] = {}
    for block, nexts in follows.items():
        for name in nexts:
            if name in labels and labels[name] <= labels[block] and _number(name) <= _number(block):
                ends[labels[name]] = max(ends.get(labels[name], 0), labels[f"{block} end"])
    for first, end in ends.items():
        yield Loop(first, end)


def _number(block: str) -> int:
    return int(block.removeprefix("block"))


def kind(op: str, operands: str) -> str:
    """Return the class of an operation."""
    if op.startswith("NOP"):
        return NOPS
    if op.startswith(("LOAD", "STORE")):
        return SCRATCH if ".tl" in op else LOCAL if ".wls" in op else GLOBAL
    if op.startswith("LEA_TEX"):
        return TEXELS
    if op.startswith(_CALCULATE):
        return FLOAT16 if "f16" in op else FLOAT32
    whole = f"{op} {operands}"
    return next((name for prefixes, name in _PREFIXES if whole.startswith(prefixes)), INTEGERS)

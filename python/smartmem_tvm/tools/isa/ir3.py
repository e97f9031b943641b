# SPDX-License-Identifier: Apache-2.0
"""Read what Mesa's compiler ir3 prints: instructions by class, basic blocks, loops, registers and waves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

FLOAT32, FLOAT16, COMPARISONS, FUNCTIONS, CONVERSIONS, MOVES, INTEGERS = (
    "float32", "float16", "comparisons", "functions", "conversions", "moves", "integers",
)  # fmt: skip
GLOBAL, LOCAL, TEXELS, SCRATCH, FLOW, NOPS = "global", "local", "texels", "scratch", "flow", "nops"
CLASSES = (
    *(FLOAT32, FLOAT16, COMPARISONS, FUNCTIONS, CONVERSIONS, MOVES, INTEGERS),
    *(GLOBAL, LOCAL, TEXELS, SCRATCH, FLOW, NOPS),
)
"""Classes of instructions. ``float32`` and ``float16`` multiply and add; ``comparisons`` of floating-point numbers also
choose, take extremes and round; ``functions`` are the reciprocals, roots and exponentials of the special unit."""

_CALCULATE = ("mad.f", "mul.f", "add.f", "sub.f", "dp2acc", "dp4acc")
_COMPARE = (
    "max.f",
    "min.f",
    "floor.f",
    "ceil.f",
    "trunc.f",
    "rndne.f",
    "sign.f",
    "absneg.f",
    "cmps.f",
    "cmpv.f",
    "sel.",
)
_PREFIXES = (
    (_COMPARE, COMPARISONS),
    (("rcp", "rsq", "sqrt", "exp2", "log2", "sin", "cos", "hrsq", "hexp2", "hlog2"), FUNCTIONS),
    (("mov", "swz", "gat", "sct", "alias"), MOVES),
    (("cov",), CONVERSIONS),
    (("isam", "sam", "stib", "ldib", "resinfo", "getsize", "gather4"), TEXELS),
    (("ldp", "stp"), SCRATCH),
    (("ldl", "stl", "atomic.l"), LOCAL),
    (("ldg", "stg", "ldc", "atomic"), GLOBAL),
    (("br", "jump", "pred", "end", "bar", "fence", "shp", "getone", "getlast", "kill", "sleep", "chmask"), FLOW),
)
_LINE = re.compile(r"^((?:\([^)]*\))*)\s*([a-z][\w.]*)(.*)")
_LABEL = re.compile(r"^(l\d+):")
_CONSTANT = re.compile(r"^@const\(c(\d+)\.x\)\s+(.*)")
_GOES = re.compile(r"#(l\d+)")
_PREDICATE = re.compile(r"\b(?:br\w*|predt|predf)\s+!?(p\d\.[xyzw])")
_SHADER = re.compile(r"^; CL prog.*", re.MULTILINE)
_LANES = "xyzw"


@dataclass(frozen=True)
class Instruction:
    """One line of machine code.

    Attributes
    ----------
    text, op, operands : str
        The line, its operation, and what follows it.
    kind : str
        One of `CLASSES`.
    times : int
        How often it is issued: one and its repetitions (``rpt``).
    nops : int
        Empty slots that it takes with it (``nop``).
    """

    text: str
    op: str
    operands: str
    kind: str
    times: int
    nops: int


@dataclass(frozen=True)
class Loop:
    """A loop: instructions from `first` to before `end`, and how often they run, None if this is not seen."""

    first: int
    end: int
    trips: int | None = None

    def holds(self, other: Loop) -> bool:
        """Whether another loop lies within this one."""
        return self != other and self.first <= other.first and other.end <= self.end


@dataclass(frozen=True)
class Code:
    """The machine code of one kernel.

    Attributes
    ----------
    instructions : tuple of Instruction
    labels : dict
        Label -> the instruction that it is before.
    constants : dict
        Name of a constant (``c4.y``) -> its 32 bits.
    facts : dict
        What the compiler says of the whole: ``instr``, ``full`` and ``half`` (registers of four numbers),
        ``max_waves``, ``double_threadsize``.
    """

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    constants: dict[str, int]
    facts: dict[str, int]
    loops: tuple[Loop, ...] = field(default=())

    @property
    def counts(self) -> dict[str, int]:
        """Instructions by class."""
        return counted(self.instructions)

    @property
    def inner_loop(self) -> Loop | None:
        """The innermost loop with the most arithmetic; None if there is no loop."""
        innermost = [loop for loop in self.loops if not any(map(loop.holds, self.loops))]
        return max(innermost, key=lambda loop: arithmetic(self.counts_of(loop)), default=None)

    def counts_of(self, loop: Loop) -> dict[str, int]:
        """Return the instructions of one trip of a loop by class."""
        return counted(self.instructions[loop.first : loop.end])

    def issued(self, cost: dict[str, float]) -> float | None:
        """Return the slots that a thread takes, all trips counted; None if a loop's trips are not seen.

        Parameters
        ----------
        cost : dict
            Class -> slots of an instruction; 1 for others.
        """
        return self.summed(lambda each: each.times * cost.get(each.kind, 1.0) + each.nops * cost.get(NOPS, 1.0))

    def summed(self, amount: Callable[[Instruction], float]) -> float | None:
        """Return the sum of an amount over all instructions that a thread runs; None if a loop's trips are not seen."""
        if any(loop.trips is None for loop in self.loops):
            return None
        total = 0.0
        for number, each in enumerate(self.instructions):
            times = 1
            for loop in self.loops:
                times *= loop.trips if loop.first <= number < loop.end else 1
            total += times * amount(each)
        return total

    def listing(self, loop: Loop | None = None) -> Iterator[str]:
        """Yield the lines of a loop, or of everything, with the labels of the basic blocks."""
        first, end = (loop.first, loop.end) if loop else (0, len(self.instructions))
        names = {number: label for label, number in self.labels.items()}
        for number in range(first, end):
            if number in names:
                yield f"{names[number]}:"
            yield f"    {self.instructions[number].text}"


def counted(instructions: Sequence[Instruction]) -> dict[str, int]:
    """Return instructions by class, all classes in the order of `CLASSES`."""
    found: Counter = Counter()
    for each in instructions:
        found[each.kind] += each.times
        found[NOPS] += each.nops
    return {name: found[name] for name in CLASSES}


def arithmetic(counts: dict[str, int]) -> int:
    """Return the multiplications and additions of floating-point numbers among instructions."""
    return counts[FLOAT32] + counts[FLOAT16]


def share(counts: dict[str, int]) -> float:
    """Return the share of multiplications and additions in all instructions but empty slots."""
    return arithmetic(counts) / max(sum(counts.values()) - counts[NOPS], 1)


def parse(text: str) -> Code:
    """Read the machine code of a kernel, from ``Native code for`` to the compiler's statistics.

    Raises
    ------
    ValueError
        If there is no machine code in the text, or none of its statistics.
    """
    statistics = "\n".join(_SHADER.findall(text))
    facts = {name: int(number) for number, name in re.findall(r"(\d+) ([a-z_]+|\(s[sy]\))(?=,|$)", statistics, re.M)}
    instructions, labels, constants = [], {}, {}
    for line in text.split("; CL: outputs")[0].splitlines():
        if found := _LABEL.match(line):
            labels[found[1]] = len(instructions)
        elif found := _CONSTANT.match(line):
            values = [int(each, 16) for each in found[2].split(",")]
            constants |= {f"c{found[1]}.{lane}": value for lane, value in zip(_LANES, values, strict=False)}
        elif line[:1] not in (";", "@") and (found := _LINE.match(line)) and not line.startswith("Native"):
            instructions.append(_instruction(line, *found.groups()))
    while instructions and instructions[-1].kind == NOPS:
        instructions.pop()  # padding of the last line of the instruction cache is not run
    if not instructions or "max_waves" not in facts:
        raise ValueError("no machine code of ir3")
    code = Code(tuple(instructions), labels, constants, facts)
    return Code(code.instructions, labels, constants, facts, tuple(_loops(code)))


def _instruction(line: str, flags: str, op: str, operands: str) -> Instruction:
    repeated, empty = re.search(r"\(rpt(\d+)\)", flags), re.search(r"\(nop(\d+)\)", flags)
    times, nops = 1 + int(repeated[1]) if repeated else 1, int(empty[1]) if empty else 0
    return Instruction(line.strip(), op, operands.strip(), kind(op, operands), times, nops)


def kind(op: str, operands: str) -> str:
    """Return the class of an instruction."""
    if op == "nop":
        return NOPS
    if op.startswith(_CALCULATE):
        result = operands.split(",")[0]
        return FLOAT16 if ".f16" in op or re.search(r"(^|[\s)])hr\d", result) else FLOAT32
    return next((name for prefixes, name in _PREFIXES if op.startswith(prefixes)), INTEGERS)


def _loops(code: Code) -> Iterator[Loop]:
    """Yield the loops: a jump backwards closes one, and the last of those to one label closes it."""
    ends: dict[int, int] = {}
    for number, each in enumerate(code.instructions):
        first = _target(code, each) if each.op.startswith(("jump", "br")) else None
        if first is not None and first <= number:
            ends[first] = number + 1
    for first, end in ends.items():
        yield Loop(first, end, _trips(code, first, end))


def _trips(code: Code, first: int, end: int) -> int | None:
    """Return how often a loop runs, if it counts in constant steps to a constant that a branch out of it compares."""
    for number in range(first, end):
        each = code.instructions[number]
        predicate = _PREDICATE.search(f"{each.op} {each.operands}")
        if each.op.startswith("br") and predicate and _leaves(code, each, number, first, end):
            found = _counted_to(code, predicate[1], first, number, end)
            if found is not None:
                return found
    return None


def _leaves(code: Code, branch: Instruction, number: int, first: int, end: int) -> bool:
    """Whether a branch decides about another trip: it goes out of the loop or back to its begin, or past a way out."""
    place = _target(code, branch)
    if place is None:
        return False
    past = code.instructions[number + 1 : place] if number < place < end else ()
    out = any(each.op == "jump" and (_target(code, each) or 0) >= end for each in past)
    return place >= end or place == first or number + 1 == end or out


def _target(code: Code, each: Instruction) -> int | None:
    """Return the instruction that a branch goes to."""
    found = _GOES.search(each.operands) if each.kind == FLOW else None
    return code.labels.get(found[1]) if found else None


def _counted_to(code: Code, predicate: str, first: int, branch: int, end: int) -> int | None:
    compared = next((n for n in range(branch - 1, first - 1, -1) if _sets(code.instructions[n], predicate)), None)
    if compared is None:
        return None
    op, operands = code.instructions[compared].op, _operands(code.instructions[compared])
    if not op.startswith(("cmps.s", "cmps.u")) or len(operands) < 3:
        return None
    counter, seen = _counter(code, operands[1], first, compared)
    steps = {n: found for n in range(first, end) if (found := _step(code, code.instructions[n], counter)) is not None}
    if not steps and (ahead := _one_ahead(code, counter, first, compared, end)):
        counter, steps = ahead
    limit, start = _value(code, operands[2]), _start(code, counter, first)
    if limit is None or start is None or len(steps) != 1:
        return None
    (at, step), *_ = steps.items()
    if not step or (limit - start) * step <= 0:
        return None
    whole, rest = divmod(limit - start, step)
    trips = whole + 1 if op.endswith((".gt", ".le")) else whole + (rest != 0)
    return trips + (seen < at < branch)  # the comparison then saw the counter before its step


def _one_ahead(code: Code, register: str, first: int, compared: int, end: int) -> tuple[str, dict[int, int]] | None:
    """Return the counter of which `register` is the next value, and the step where that is made; else None.

    The counter gets it at the end of the trip: ``add r1, r0, 1``, a comparison of ``r1``, ``mov r0, r1``.
    """
    made = next((n for n in range(compared - 1, first - 1, -1) if _operands(code.instructions[n])[0] == register), None)
    if made is None or code.instructions[made].op not in ("add.u", "add.s"):
        return None
    operands = _operands(code.instructions[made])
    counter = next((each for each in operands[1:] if re.fullmatch(r"r\d+\.[xyzw]", each)), register)
    step = _step(code, code.instructions[made], counter, register)
    given = [each for each in code.instructions[compared:end] if each.op.startswith("mov.u32")]
    moved = any(each.times == 1 and _operands(each)[:2] == [counter, register] for each in given)
    return (counter, {made: step}) if step is not None and moved and counter != register else None


def _counter(code: Code, register: str, first: int, compared: int) -> tuple[str, int]:
    """Return the register of which `register` is a copy, or itself, and the instruction that reads it."""
    for number in range(compared - 1, first - 1, -1):
        each, operands = code.instructions[number], _operands(code.instructions[number])
        if operands[0] == register:
            copies = each.op.startswith("mov.u32") and re.fullmatch(r"r\d+\.[xyzw]", operands[-1])
            return (operands[1], number) if copies and each.times == 1 else (register, compared)
    return register, compared


def _operands(each: Instruction) -> list[str]:
    return [_plain(part) for part in each.operands.split(",")]


def _sets(each: Instruction, predicate: str) -> bool:
    return each.op.startswith("cmps") and _operands(each)[0].lstrip("u") == predicate


def _step(code: Code, each: Instruction, counter: str, result: str | None = None) -> int | None:
    """Return what an instruction adds to a counter, into the counter or another register; None if it does not."""
    operands = _operands(each)
    adds = each.op in ("add.u", "add.s") and each.times == 1 and len(operands) == 3
    if not adds or operands[0] != (result or counter):
        return None
    return next((_value(code, operands[3 - n]) for n in (1, 2) if operands[n] == counter), None)


def _start(code: Code, counter: str, first: int) -> int | None:
    """Return what a counter holds before a loop."""
    for number in range(first - 1, -1, -1):
        each, operands = code.instructions[number], _operands(code.instructions[number])
        if operands[0] == counter or (each.times > 1 and _covers(operands[0], each.times, counter)):
            return _value(code, operands[1]) if each.op.startswith("mov") and len(operands) > 1 else None
    return None


def _covers(register: str, times: int, counter: str) -> bool:
    """Whether repeated writes that begin at a register reach a counter."""
    names = [re.fullmatch(r"r(\d+)\.([xyzw])", each) for each in (register, counter)]
    if not all(names):
        return False
    begin, place = (4 * int(found[1]) + _LANES.index(found[2]) for found in names)
    return begin <= place < begin + times


def _plain(operand: str) -> str:
    return re.sub(r"\([a-z0-9]+\)", "", operand).strip()


def _value(code: Code, operand: str) -> int | None:
    """Return the number that an operand is: written out, or one of the constants; None for a register."""
    if re.fullmatch(r"-?\d+", operand):
        return int(operand)
    if re.fullmatch(r"0x[0-9a-f]+", operand):
        return _signed(int(operand, 16))
    return _signed(code.constants[operand]) if operand in code.constants else None


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >= 1 << 31 else bits

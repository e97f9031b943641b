# SPDX-License-Identifier: Apache-2.0
"""Instructions of OpenCL kernels by type: clang makes LLVM's IR of them, and its innermost loops are counted.

No phone's compiler is asked; what they get to compile is counted, after what every compiler does to it (registers for
private arrays, no instruction twice). Loops are not unrolled beyond what the source has written out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FLAGS = (
    "-x", "cl", "-cl-std=CL2.0", "--target=spir64", "-D__OPENCL_VERSION__=200", "-O2", "-fno-unroll-loops",
    "-fno-vectorize", "-fno-slp-vectorize", "-mllvm", "-disable-vector-combine", "-emit-llvm", "-S", "-w",
    "-Xclang", "-finclude-default-header", "-Xclang", "-fdeclare-opencl-builtins",
)  # fmt: skip
FEWEST = 16  # products of a loop: fewer are element-wise work that is done number by number (erf)
_TYPES = {"half": "half", "float": "float", "int": "int"}
_SPACES = ("global", "local", "private")
_LABEL = re.compile(r"^([\w.$-]+):")
_TARGET = re.compile(r"label %([\w.$-]+)")
_LANES = r"(?:<(\d+) x )?(half|float)>?"
_ARITHMETIC = re.compile(rf"= (fadd|fsub|fmul|fdiv|fneg|frem) (?:\w+ )*?{_LANES}")
_FUSED = re.compile(rf"call (?:\w+ )*?{_LANES} @(?:llvm\.fmuladd|llvm\.fma|_Z3fma|_Z3mad)")
_FUNCTION = re.compile(rf"call (?:\w+ )*?{_LANES} @_Z\d+(?!read_image|write_image)\w+")
_WIDENED = re.compile(r"= fpext (?:<(\d+) x )?half")
_ROUNDED = re.compile(r"= fptrunc (?:<(\d+) x )?float>? .* to (?:<\d+ x )?half")
_LOAD = re.compile(rf"= load {_LANES}, .*?addrspace\((\d)\)\*")
_STORE = re.compile(rf"store {_LANES} .*?, .*?addrspace\((\d)\)\*")
_TEXEL = re.compile(r"@_Z\d+(read|write)_image([fh])")


def _prelude() -> str:
    """Functions that move vectors, as loads and stores that LLVM sees through; a driver has them built in."""
    lines = ["#pragma OPENCL EXTENSION cl_khr_fp16 : enable"]
    macro = "#define {0}(a, ...) smartmem_{0}(a, __VA_ARGS__)"
    own = "static inline __attribute__((overloadable, always_inline))"
    for width in (2, 4, 8, 16):
        for name in _TYPES:
            vector = f"{name}{width}"
            lines.append(
                f"typedef struct __attribute__((packed, aligned(sizeof({name})))) {{ {vector} v; }} any_{vector};"
            )
            for space in _SPACES:
                lines += [
                    f"{own} {vector} smartmem_vload{width}(size_t n, const __{space} {name}* p) "
                    f"{{ return ((const __{space} any_{vector}*)(p + n * {width}))->v; }}",
                    f"{own} void smartmem_vstore{width}({vector} x, size_t n, __{space} {name}* p) "
                    f"{{ ((__{space} any_{vector}*)(p + n * {width}))->v = x; }}",
                ]
        for space in _SPACES:
            lines += [
                f"{own} float{width} smartmem_vload_half{width}(size_t n, const __{space} half* p) "
                f"{{ return __builtin_convertvector(smartmem_vload{width}(n, p), float{width}); }}",
                f"{own} void smartmem_vstore_half{width}(float{width} x, size_t n, __{space} half* p) "
                f"{{ smartmem_vstore{width}(__builtin_convertvector(x, half{width}), n, p); }}",
            ]
        lines += [macro.format(f"v{verb}{kind}{width}") for verb in ("load", "store") for kind in ("", "_half")]
        lines += [f"#define convert_{name}{width}(x) __builtin_convertvector(x, {name}{width})" for name in _TYPES]
    for space in _SPACES:
        lines += [
            f"{own} float smartmem_vload_half(size_t n, const __{space} half* p) {{ return p[n]; }}",
            f"{own} void smartmem_vstore_half(float x, size_t n, __{space} half* p) {{ p[n] = x; }}",
        ]
    lines += [macro.format(f"v{verb}_half") for verb in ("load", "store")]
    lines += [f"#define convert_{name}(x) (({name})(x))" for name in _TYPES]
    return "\n".join(lines) + "\n"


def clang() -> str:
    """clang, as whatever Debian calls it."""
    names = ("clang", *(f"clang-{n}" for n in range(16, 13, -1)))
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise RuntimeError("there is no clang on this machine: apt-get install clang")
    return found


def llvm_of(sources: Mapping[str, str]) -> dict[str, str]:
    """LLVM's IR of each OpenCL program; clang is started once for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        prelude = Path(folder, "prelude.h")
        prelude.write_text(_prelude(), encoding="utf-8")
        paths = {name: Path(folder, f"{name}.cl") for name in sources}
        for name, path in paths.items():
            path.write_text(sources[name], encoding="utf-8")
        command = [clang(), *FLAGS, "-include", str(prelude), *map(str, paths.values())]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"clang refuses a kernel: {done.stderr[:2000]}")
        return {name: path.with_suffix(".ll").read_text(encoding="utf-8") for name, path in paths.items()}


@dataclass
class Counts:
    """Numbers that instructions work on: a vector of four halves counts four times.

    Attributes
    ----------
    half, single : int
        Additions and multiplications of halves, and of floats; a fused one counts as two.
    half_products : int
        Multiplications of halves.
    widened, rounded : int
        Conversions of halves to float32, and back.
    moved : Counter
        (``load`` or ``store``, address space, type, width) -> instructions.
    """

    half: int = 0
    single: int = 0
    half_products: int = 0
    widened: int = 0
    rounded: int = 0
    moved: Counter = field(default_factory=Counter)

    @property
    def conversions(self) -> int:
        """In both directions."""
        return self.widened + self.rounded

    def __add__(self, other: Counts) -> Counts:
        names = ("half", "single", "half_products", "widened", "rounded")
        sums = [getattr(self, name) + getattr(other, name) for name in names]
        return Counts(*sums, moved=self.moved + other.moved)


_SPACE_OF = {"1": "global", "3": "local"}


def count(instructions: Iterable[str]) -> Counts:
    """What instructions of LLVM's IR do."""
    found = Counts()
    for line in instructions:
        if match := _ARITHMETIC.search(line):
            _add(found, match.group(3), int(match.group(2) or 1), match.group(1) == "fmul", 1)
        elif match := _FUSED.search(line):
            _add(found, match.group(2), int(match.group(1) or 1), True, 2)
        elif match := _WIDENED.search(line):
            found.widened += int(match.group(1) or 1)
        elif match := _ROUNDED.search(line):
            found.rounded += int(match.group(1) or 1)
        elif match := _TEXEL.search(line):
            verb = "load" if match.group(1) == "read" else "store"
            found.moved[verb, "texel", "half" if match.group(2) == "h" else "float", 4] += 1
        elif match := _FUNCTION.search(line):
            _add(found, match.group(2), int(match.group(1) or 1), False, 1)
        elif match := _LOAD.search(line):
            found.moved["load", _SPACE_OF.get(match.group(3), "other"), match.group(2), int(match.group(1) or 1)] += 1
        elif match := _STORE.search(line):
            found.moved["store", _SPACE_OF.get(match.group(3), "other"), match.group(2), int(match.group(1) or 1)] += 1
    return found


def _add(found: Counts, dtype: str, lanes: int, multiplies: bool, operations: int) -> None:
    if dtype == "float":
        found.single += lanes * operations
        return
    found.half += lanes * operations
    found.half_products += lanes * multiplies


def blocks_of(code: str, kernel: str) -> dict[str, list[str]]:
    """The basic blocks of a kernel by their labels."""
    body = re.search(rf"^define .*@{re.escape(kernel)}\(.*?\{{$(.*?)^\}}", code, re.MULTILINE | re.DOTALL)
    if body is None:
        raise ValueError(f"there is no kernel {kernel}")
    blocks: dict[str, list[str]] = {"": []}
    label = ""
    for line in body.group(1).splitlines():
        if match := _LABEL.match(line):
            label = match.group(1)
            blocks[label] = []
        elif line.strip():
            blocks[label].append(line.strip())
    return blocks


def innermost_loops(blocks: Mapping[str, list[str]]) -> list[set[str]]:
    """The blocks of each loop that holds no other loop."""
    after = {label: _successors(lines) for label, lines in blocks.items()}
    return list(_leaves(set(blocks), after))


def _successors(lines: list[str]) -> set[str]:
    start = next((n for n, line in enumerate(lines) if line.startswith(("br ", "switch "))), len(lines))
    return set(_TARGET.findall(" ".join(lines[start:])))


def _leaves(labels: set[str], after: Mapping[str, set[str]]) -> Iterator[set[str]]:
    for loop in _cycles(labels, after):
        entries = {b for a in after if a not in loop for b in after[a] & loop} or loop
        head = min(entries, key=list(after).index)
        inner = {label: (nexts - {head} if label in loop else nexts) for label, nexts in after.items()}
        found = list(_leaves(loop, inner))
        yield from found or [loop]


def _cycles(labels: set[str], after: Mapping[str, set[str]]) -> list[set[str]]:
    """Strongly connected parts that hold a cycle, by forward and backward reachability."""
    before: dict[str, set[str]] = {label: set() for label in labels}
    for label in labels:
        for each in after[label] & labels:
            before[each].add(label)
    left, found = set(labels), []
    while left:
        seed = next(iter(left))
        part = _reached(seed, after, left) & _reached(seed, before, left)
        left -= part
        if len(part) > 1 or seed in after[seed]:
            found.append(part)
    return found


def _reached(seed: str, edges: Mapping[str, set[str]], within: set[str]) -> set[str]:
    seen, waiting = {seed}, [seed]
    while waiting:
        for each in edges[waiting.pop()] & within - seen:
            seen.add(each)
            waiting.append(each)
    return seen


@dataclass(frozen=True)
class KernelCounts:
    """Counts of the whole kernel, as written, and of each innermost loop."""

    whole: Counts
    loops: tuple[Counts, ...]

    @property
    def products(self) -> list[Counts]:
        """Innermost loops of products of halves; the kernel itself where all its loops are written out."""
        found = [loop for loop in self.loops if loop.half_products >= FEWEST]
        return found or ([self.whole] if self.whole.half_products >= FEWEST and not self.loops else [])


def kernel_counts(code: str, kernel: str) -> KernelCounts:
    """The counts of a kernel in LLVM's IR."""
    blocks = blocks_of(code, kernel)
    loops = [count(line for label in loop for line in blocks[label]) for loop in innermost_loops(blocks)]
    return KernelCounts(count(line for lines in blocks.values() for line in lines), tuple(loops))

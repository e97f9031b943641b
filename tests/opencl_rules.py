# SPDX-License-Identifier: Apache-2.0
"""Rules for generated OpenCL: nothing that a driver would refuse, miscompute, or do four times over.

`tvm_mends.CheckImages` refuses wrong kernels before there is a source. The rules here also cover faults that only TVM's
code generator can make, and code that is right but slow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm import relax

from opencl_index import changes
from opencl_parser import (
    IMAGE,
    KernelSource,
    Loop,
    Use,
    parse_kernels,
    sources,
    split_arguments,
    within_parentheses,
)
from opencl_reads import Read, count_reads, texel_reads
from smartmem_tvm.analysis.texel_reads import TexelReads
from smartmem_tvm.planner.texture_form import TEXEL
from smartmem_tvm.tvm_mends.check_images import Planned, stem

_KERNEL = re.compile(r"(.*)_kernel(?:_\d+)?")
# The element type of a texture, without its size -> the last letters of the functions that read and write it.
_SUFFIXES = {"float": ("f", "h"), "int": ("i",), "uint": ("ui",)}

_SPACES = frozenset(f"{prefix}{space}" for space in ("global", "local", "constant", "private") for prefix in ("", "__"))
_ACCESS = frozenset(f"{prefix}{which}" for which in ("read_only", "write_only", "read_write") for prefix in ("", "__"))
_QUALIFIERS = _SPACES | _ACCESS | {"const", "restrict", "__restrict", "volatile"}
_WORDS = re.compile(r"\b[A-Za-z_]\w*(?:\s+[A-Za-z_]\w*)+")
_SCALARS = r"(?:u?(?:char|short|int|long)|half|float|double)"
_VECTOR = re.compile(rf"\b(?:{_SCALARS}|v(?:load|store)(?:_half)?|(?:as|convert)_{_SCALARS})(\d+)\b")
_WIDTHS = frozenset(("2", "3", "4", "8", "16"))
_TEXEL = re.compile(rf"\(\s*{_SCALARS}4\s*\)\s*\(|\bconvert_{_SCALARS}4\(|\bvload(?:_half)?4\(|\bread_image\w+\(", re.I)
_WHOLE = re.compile(r"(?<![&\w])([A-Za-z_]\w*)\b(?!\s*[.(\[])")
_SET = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)?(?:=[^=]|[-+*]=|\+\+)")
_LANE_SET = r"(?:\(\(\w+\s*\*\)&{name}\)\[[^\]]*\]|\b{name}\.(?:s[0-3]|[xyzw]))\s*=[^=]"


@dataclass(frozen=True)
class _Checked:
    """A kernel and its facts."""

    source: KernelSource
    plan: Planned | None

    @cached_property
    def reads(self) -> list[Read]:
        return list(texel_reads(self.source))

    @cached_property
    def writes(self) -> list[Use]:
        return [use for use in self.source.uses if use.writes]


def check_opencl(
    code: relax.VMExecutable | tvm.runtime.Module, planned: Mapping[str, Planned] | None = None
) -> dict[str, TexelReads]:
    """Check every OpenCL kernel of compiled code.

    Parameters
    ----------
    planned : mapping, optional
        PrimFunc -> `Planned`, see `check_images.planned_memory`.

    Returns
    -------
    dict
        Kernel -> number of its reads that use whole texels, and the reasons of the others.

    Raises
    ------
    AssertionError
        For the first kernel that breaks one of `RULES`; the message names both.
    """
    return {name: reads for source in sources(code) for name, reads in check_source(source, planned or {}).items()}


def check_source(source: str, planned: Mapping[str, Planned]) -> dict[str, TexelReads]:
    """`check_opencl` for the source of one module of kernels."""
    found = {}
    for kernel in parse_kernels(source):
        match = _KERNEL.fullmatch(kernel.name)
        checked = _Checked(kernel, planned.get(match[1] if match else kernel.name))
        for rule, check in RULES.items():
            for broken in check(checked):
                raise AssertionError(f"OpenCL kernel '{kernel.name}' breaks the rule '{rule}': {broken}")
        found[kernel.name] = count_reads(kernel, checked.reads)
    return found


def _as_planned(kernel: _Checked) -> Iterator[str]:
    for argument in kernel.source.arguments:
        if argument.image and IMAGE not in argument.type.split():
            yield f"argument '{argument.name}' is no {IMAGE}, but '{argument.type}'"
    if kernel.plan is None:
        return
    images = Counter(stem(argument.name) for argument in kernel.source.arguments if argument.image)
    pointers = Counter(stem(argument.name) for argument in kernel.source.arguments if "*" in argument.type)
    for name, count in images.items():
        if count > len(kernel.plan.textures.get(name, ())):
            yield f"'{name}' was planned as a buffer and is an image"
    for name, count in pointers.items():
        if name in kernel.plan.textures and count > kernel.plan.buffers.get(name, 0):
            yield f"'{name}' was planned as a texture and is a buffer"


def _only_accessed(kernel: _Checked) -> Iterator[str]:
    for use in kernel.source.uses:
        if not (use.reads or use.writes or use.function.startswith("get_image_")):
            around = kernel.source.body[max(0, use.start - 12) : use.end + 12].strip()
            yield f"image '{use.image}' stands outside of read_image and write_image, in '{around}'"


def _accessed_as_declared(kernel: _Checked) -> Iterator[str]:
    accesses = [use for use in kernel.source.uses if use.reads or use.writes]
    for argument in kernel.source.arguments:
        if not argument.image:
            continue
        mine = [use for use in accesses if use.image == argument.name]
        ways = {use.reads for use in mine}
        declared = {word.strip("_") for word in argument.type.split()} & {"read_only", "write_only", "read_write"}
        if ways != {True} and ways != {False}:
            how = "both read and written" if ways else "neither read nor written"
            yield f"image '{argument.name}' is {how}"
        elif declared != {"read_only" if True in ways else "write_only"}:
            yield f"image '{argument.name}' is {'read' if True in ways else 'written'} and declared '{argument.type}'"
        types = kernel.plan.textures.get(stem(argument.name), ()) if kernel.plan else ()
        suffixes = {suffix for dtype in types for suffix in _SUFFIXES[dtype.rstrip("0123456789")]}
        for use in mine:
            if types and re.sub(r"(read|write)_image", "", use.function.lower()) not in suffixes:
                yield f"image '{argument.name}' of {types[0]} is accessed by {use.function}"


def _one_write_per_texel(kernel: _Checked) -> Iterator[str]:
    for use in kernel.writes:
        for loop in kernel.source.loops_around(use.start):
            if not _moves(kernel, use, loop):
                yield f"{_said(loop)} writes one texel of '{use.image}' again and again"


def _whole_texels_written(kernel: _Checked) -> Iterator[str]:
    for use in kernel.writes:
        if not _is_texel(kernel, use.arguments[-1]):
            yield f"image '{use.image}' is written with a single number, '{use.arguments[-1]}'"


def _no_texel_changed(kernel: _Checked) -> Iterator[str]:
    """Refuse threads that each change one number of a texel and write it back: of four, three writes are lost."""
    for use in kernel.writes:
        for name in _names(use.arguments[-1]):
            lane = _LANE_SET.format(name=name)
            if kernel.source.texels.get(name) and re.search(lane, kernel.source.body[: use.start]):
                yield f"'{name}' is read from an image, changed in one lane, and written to '{use.image}'"


def _no_texel_read_again(kernel: _Checked) -> Iterator[str]:
    for read in kernel.reads:
        if read.lanes is None:
            continue
        names = set().union(*(_names(lane.text) for lane in read.lanes))
        for loop in kernel.source.loops_around(read.use.start):
            if names & loop.variables and not _moves(kernel, read.use, loop):
                yield f"{_said(loop)} reads one texel of '{read.use.image}' again for each of its numbers"


def _no_double_qualifiers(kernel: _Checked) -> Iterator[str]:
    declared = " , ".join(argument.type for argument in kernel.source.arguments)
    for run in _WORDS.findall(declared) + _WORDS.findall(kernel.source.body):
        words = Counter(word for word in run.split() if word in _QUALIFIERS)
        twice = [word for word, count in words.items() if count > 1]
        if twice or len(_SPACES & words.keys()) > 1 or len(_ACCESS & words.keys()) > 1:
            yield f"'{run}' has a qualifier twice, or two that exclude each other"


def _legal_widths(kernel: _Checked) -> Iterator[str]:
    for match in _VECTOR.finditer(kernel.source.body):
        if match[1] not in _WIDTHS:
            yield f"'{match[0]}' is no vector of OpenCL, whose widths are 2, 3, 4, 8 and 16"


RULES: dict[str, Callable[[_Checked], Iterator[str]]] = {
    "a planned texture is an image, and nothing else is one": _as_planned,
    "no pointer arithmetic on images": _only_accessed,
    "an image is read or written, by the functions for its type": _accessed_as_declared,
    "no loop around the write of a texel": _one_write_per_texel,
    "a texel is written as a whole": _whole_texels_written,
    "no texel is read, changed and written back": _no_texel_changed,
    "a texel is not read again for each of its numbers": _no_texel_read_again,
    "no double qualifiers": _no_double_qualifiers,
    "vectors have widths that OpenCL has": _legal_widths,
}
"""Rule -> function that yields the places where a kernel breaks it."""


def _names(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _said(loop: Loop) -> str:
    return f"a loop over '{', '.join(sorted(loop.variables))}'"


def _moves(kernel: _Checked, use: Use, loop: Loop) -> bool:
    """Whether an access goes to different texels within a loop."""
    names = _names(use.coordinate)
    if names & set(_SET.findall(kernel.source.body, loop.start, use.start)):
        return True  # computed inside of the loop, from values that may change
    return any(changes(use.coordinate, name, loop.extent) for name in names & loop.variables)


def _is_texel(kernel: _Checked, value: str) -> bool:
    """Whether a value comes from vectors of four lanes, and not from single lanes."""
    for match in _TEXEL.finditer(value):
        # OpenCL takes one number in the place of four.
        if not match[0].startswith("(") or len(split_arguments(within_parentheses(value, match.end()))) == TEXEL:
            return True
    return any(name in kernel.source.texels for name in _WHOLE.findall(value))

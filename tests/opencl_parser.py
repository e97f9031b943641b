# SPDX-License-Identifier: Apache-2.0
"""Parser of generated OpenCL C for its uses of images: arguments, loops, and every place that names an image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import tvm
from tvm import relax

IMAGE = "image2d_array_t"

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(r"__kernel\s+void\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?(\w+)\s*\(([^)]*)\)\s*\{")
_LOOP = re.compile(r"\b(for|while)\s*\(")
_COUNTED = re.compile(r"\w+\s+(\w+)\s*=\s*0\s*;\s*\1\s*<\s*(\d+)\s*;")
_TEXEL = re.compile(r"\b[a-z]+4\s+(\w+)\s*(?:;|=\s*((?:as_\w+\s*)?\(*\s*read_image)?)", re.IGNORECASE)
_BRACES, _PARENTHESES, _BRACKETS = (re.compile(f"[{pair}]") for pair in (r"{}", r"()", r"\[\]"))
_CALLED = re.compile(r"(\w+)\s*\(\s*$")
_LONGEST_NAME = 64


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel.

    Attributes
    ----------
    type : str
        The declaration without the name, such as ``"__global float* restrict"``.
    """

    name: str
    type: str

    @property
    def image(self) -> bool:
        """Whether the argument is an image of any kind."""
        return re.search(r"\bimage\w+_t\b", self.type) is not None


@dataclass(frozen=True)
class Loop:
    """A loop around ``body[start:end]`` of a kernel.

    Attributes
    ----------
    variables : frozenset of str
        The loop's counter, or the variables of its condition.
    extent : int or None
        Number of iterations, if the loop counts from 0 to a number.
    """

    variables: frozenset[str]
    extent: int | None
    start: int
    end: int


@dataclass(frozen=True)
class Use:
    """A place that names an image.

    Attributes
    ----------
    function : str
        The function whose first argument is the image; empty if there is none.
    arguments : tuple of str
        Arguments of that function.
    start, end : int
        ``body[start:end]`` is the call.
    """

    image: str
    function: str
    arguments: tuple[str, ...]
    start: int
    end: int

    @property
    def coordinate(self) -> str:
        """Return the coordinate at which the image is read or written."""
        return self.arguments[-1 if self.reads else 1]

    @property
    def reads(self) -> bool:
        """Whether the function reads a texel."""
        return self.function.lower().startswith("read_image")

    @property
    def writes(self) -> bool:
        """Whether the function writes a texel."""
        return self.function.startswith("write_image")


@dataclass(frozen=True)
class KernelSource:
    """One kernel.

    Attributes
    ----------
    body : str
        The text between its braces, without comments.
    """

    name: str
    arguments: tuple[Argument, ...]
    body: str

    @cached_property
    def loops(self) -> list[Loop]:
        """Return all loops, outer ones first."""
        return [self._loop(match) for match in _LOOP.finditer(self.body)]

    @cached_property
    def uses(self) -> list[Use]:
        """Return every place that names an image."""
        images = [re.escape(argument.name) for argument in self.arguments if argument.image]
        found = re.finditer(rf"\b(?:{'|'.join(images)})\b", self.body) if images else ()
        return [self._use(match) for match in found]

    @cached_property
    def texels(self) -> dict[str, bool]:
        """Return every vector variable of four lanes, and whether a read from an image initializes it."""
        return {match[1]: match[2] is not None for match in _TEXEL.finditer(self.body)}

    def loops_around(self, place: int) -> list[Loop]:
        """Return the loops around a place of the body."""
        return [loop for loop in self.loops if loop.start <= place < loop.end]

    def block_end(self, place: int) -> int:
        """Return the end of the innermost block around a place."""
        return closing(self.body, place, _BRACES, len(self.body))

    def _loop(self, match: re.Match) -> Loop:
        start = closing(self.body, match.end(), _PARENTHESES, len(self.body))
        header = self.body[match.end() : start]
        block = re.compile(r"\)\s*\{").match(self.body, start)
        end = self.block_end(block.end()) if block else self.body.find(";", start)
        if match[1] == "while":
            return Loop(frozenset(re.findall(r"[A-Za-z_]\w*", header)), None, start, end)
        counted = _COUNTED.match(header)
        named = re.findall(r"(\w+)\s*=", header.partition(";")[0])
        return Loop(frozenset(named), int(counted[2]) if counted else None, start, end)

    def _use(self, match: re.Match) -> Use:
        before = max(0, match.start() - _LONGEST_NAME)
        call = _CALLED.search(self.body[before : match.start()])
        if call is None:
            return Use(match[0], "", (), match.start(), match.end())
        end = closing(self.body, match.end(), _PARENTHESES, len(self.body))
        arguments = tuple(split_arguments(self.body[match.start() : end]))
        return Use(match[0], call[1], arguments, before + call.start(), end + 1)


def closing(text: str, place: int, pair: re.Pattern, otherwise: int) -> int:
    """Return the place of the bracket that closes the one open at `place`."""
    depth = 1
    for match in pair.finditer(text, place):
        depth += 1 if match[0] in "{([" else -1
        if depth == 0:
            return match.start()
    return otherwise


def within_brackets(text: str, place: int) -> str:
    """Return the text from a place to the closing ``]``."""
    return text[place : closing(text, place, _BRACKETS, len(text))]


def within_parentheses(text: str, place: int) -> str:
    """Return the text from a place to the closing ``)``."""
    return text[place : closing(text, place, _PARENTHESES, len(text))]


def split_arguments(text: str) -> list[str]:
    """Return the arguments of a call, without surrounding spaces."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(r"[(),\[\]{}]", text):
        if match[0] == "," and depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
        elif match[0] != ",":
            depth += 1 if match[0] in "([{" else -1
    return [*parts, text[start:].strip()]


def parse_kernels(source: str) -> list[KernelSource]:
    """Return the kernels that a source defines; declarations do not count."""
    source = _COMMENT.sub("", source)
    found = []
    for match in _KERNEL.finditer(source):
        arguments = tuple(_argument(text) for text in split_arguments(match[2]) if text)
        body = source[match.end() : closing(source, match.end(), _BRACES, len(source))]
        found.append(KernelSource(match[1], arguments, body))
    return found


def _argument(text: str) -> Argument:
    kind, name = re.fullmatch(r"(.*?)(\w+)", " ".join(text.split())).groups()
    return Argument(name, kind.strip())


def sources(code: relax.VMExecutable | tvm.runtime.Module) -> Iterator[str]:
    """Yield the OpenCL source of each module of kernels that compiled code imports."""
    module = code.mod if isinstance(code, relax.VMExecutable) else code
    if module.kind == "opencl":
        yield module.inspect_source()
    for imported in module.imports:
        yield from sources(imported)

# SPDX-License-Identifier: Apache-2.0
"""Aligned vector accesses in OpenCL source: TVM prints ``vload4``, which promises a driver only a scalar's alignment.

NVIDIA's compiler then moves four scalars one by one. Where an index is a multiple of the lanes, whatever its variables
are, ``vload4(0, p + i)`` becomes ``*(const __global float4*)(p + i)`` and ``vstore4(v, 0, p + i);`` becomes
``*(__global float4*)(p + i) = v;``. TVM proves that of what it loads and not of what it stores, so we look at the
index as it is printed. Buffers of OpenCL begin aligned; a local array is declared so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

# Wider vectors are moved in parts by every GPU, and more alignment than this is not certain of memory of the host.
_MOST_BYTES = 16
_BYTES = {
    **dict.fromkeys(("char", "uchar"), 1),
    **dict.fromkeys(("short", "ushort", "half"), 2),
    **dict.fromkeys(("int", "uint", "float"), 4),
    **dict.fromkeys(("long", "ulong", "double"), 8),
}
_TYPES = "|".join(_BYTES)
_ARGUMENT = re.compile(rf"__global (?:const )?({_TYPES})\s?\* (?:restrict )?(\w+)")
_DEFINED = re.compile(r"__kernel void \w+\(([^)]*)\)\s*\{")
_LOCAL = re.compile(rf"^(\s*__local ({_TYPES}) (\w+)\[\w+\]);$", re.MULTILINE)
_ACCESS = re.compile(r"\bv(load|store)(2|4|8|16)\(")
_DEFINITION = re.compile(r"^\s*(?:\w+ )?(\w+) = (.*);$", re.MULTILINE)
_PARENTHESIS = re.compile(r"[()]")
_TOKEN = re.compile(r"\s*(\d+|\w+|<<|>>|\S)")
_WIDENINGS = {"int", "uint", "long", "ulong", "convert_int", "convert_uint", "convert_long", "convert_ulong"}
_KERNEL = re.compile(r"^(?=// Function: )", re.MULTILINE)


def align_vectors(code: str, known: dict[str, str] | None = None) -> str:
    """Rewrite the vector accesses to global and local memory whose alignment is certain.

    `known` has what kernels became, and gets it: TVM hands each over twice, alone and with all others.
    """
    known = {} if known is None else known
    parts = _KERNEL.split(code)
    for part in parts:
        if part not in known:
            known[part] = _Kernel(part).rewritten()
    return "".join(known[part] for part in parts)


class _Kernel:
    def __init__(self, code: str):
        self.code = _LOCAL.sub(rf"\1 __attribute__((aligned({_MOST_BYTES})));", code)
        # Of the kernel itself: TVM declares the module's others before it, and their arguments are not its variables.
        signature = "".join(_DEFINED.findall(code))
        self.memory = {name: ("__global", kind) for kind, name in _ARGUMENT.findall(signature)}
        self.memory |= {name: ("__local", kind) for _, kind, name in _LOCAL.findall(code)}
        self.divisors = _Divisors(code)

    def rewritten(self) -> str:
        return self._rewrite(self.code)

    def _rewrite(self, code: str) -> str:
        out, done = [], 0
        for access in _ACCESS.finditer(code):
            if access.start() < done:
                continue  # a part of an argument, which was rewritten with it
            end = _closing(code, access.end())
            arguments = list(_arguments(code[access.end() : end]))
            text = self._vector(access[1], int(access[2]), arguments)
            if text is None:
                text = f"{access[0]}{', '.join(map(self._rewrite, arguments))})"
            out += [code[done : access.start()], text]
            done = end + 1
        return "".join(out) + code[done:]

    def _vector(self, access: str, lanes: int, arguments: list[str]) -> str | None:
        name, plus, at = arguments[-1].partition(" + ")
        if name not in self.memory or not plus or arguments[-2] != "0" or self.divisors.of(at) % lanes:
            return None
        space, kind = self.memory[name]
        if lanes * _BYTES[kind] > _MOST_BYTES:
            return None
        at = self._rewrite(at)
        if access == "load":
            return f"(*((const {space} {kind}{lanes}*)({name} + {at})))"
        return f"*(({space} {kind}{lanes}*)({name} + {at})) = {self._rewrite(arguments[0])}"


def _closing(code: str, start: int) -> int:
    """Where the parenthesis that is open at `start` is closed."""
    depth = 1
    for mark in _PARENTHESIS.finditer(code, start):
        depth += 1 if mark[0] == "(" else -1
        if depth == 0:
            return mark.start()
    return len(code)


def _arguments(text: str) -> Iterator[str]:
    start = depth = 0
    for mark in re.finditer(r"[(),\[\]]", text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(mark[0], 0)
        if mark[0] == "," and depth == 0:
            yield text[start : mark.start()].strip()
            start = mark.end()
    yield text[start:].strip()


class _Divisors:
    """A number that divides an integer expression of C for all values of its variables; 0 for the constant 0."""

    def __init__(self, code: str):
        self.definitions: dict[str, list[str]] = {}
        for name, value in _DEFINITION.findall(code):
            self.definitions.setdefault(name, []).append(value)
        self.known: dict[str, int] = {}

    def of(self, text: str) -> int:
        """By the expression as it is printed: every operation has its parentheses, or is the only one there."""
        tokens = _TOKEN.findall(text)
        try:
            divisor = self._sum(tokens)
        except (IndexError, ValueError):
            return 1
        return divisor if not tokens else 1

    def _variable(self, name: str) -> int:
        if name not in self.known:
            self.known[name] = 1  # for a definition by itself
            self.known[name] = math.gcd(*map(self.of, self.definitions.get(name, ["1"])))
        return self.known[name]

    def _sum(self, tokens: list[str]) -> int:
        """Sums of products; any other operator ends them, and with it what is known."""
        found = self._product(tokens)
        while tokens and tokens[0] in ("+", "-"):
            tokens.pop(0)
            found = math.gcd(found, self._product(tokens))
        return found

    def _product(self, tokens: list[str]) -> int:
        found = self._atom(tokens)
        while tokens and tokens[0] in ("*", "%"):
            operator, other = tokens.pop(0), self._atom(tokens)
            found = found * other if operator == "*" else math.gcd(found, other)
        return found

    def _atom(self, tokens: list[str]) -> int:
        token = tokens.pop(0)
        if token == "-":
            return self._atom(tokens)
        if token == "(":
            return self._parentheses(tokens)
        if not token[0].isalnum() and token[0] != "_":
            raise ValueError(token)
        if tokens and tokens[0] == "(":
            tokens.pop(0)
            inner = self._inside(tokens)
            return self.of(" ".join(inner)) if token in _WIDENINGS else 1
        if tokens and tokens[0] == "[":
            raise ValueError(token)
        return int(token) if token.isdecimal() else self._variable(token)

    def _parentheses(self, tokens: list[str]) -> int:
        inner = self._inside(tokens)
        if len(inner) == 1 and inner[0] in _WIDENINGS:
            return self._atom(tokens)  # a cast
        return self.of(" ".join(inner))

    def _inside(self, tokens: list[str]) -> list[str]:
        """What stands before the closing parenthesis, taken with it."""
        depth, inner = 1, []
        while True:
            token = tokens.pop(0)
            depth += {"(": 1, ")": -1}.get(token, 0)
            if depth == 0:
                return inner
            inner.append(token)

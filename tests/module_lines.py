# SPDX-License-Identifier: Apache-2.0
"""A module as a few short lines, to be compared with a test's expectation."""

import re
from textwrap import dedent

import tvm

from smartmem_tvm.module_file import module_text

# Parts of a line that do not matter to a test: types, classes, empty options, and TVMScript's notation of numbers.
_NOISE = (
    (r": R\.\w+(\([^=]*\))?(, dtype=\"\w+\"\))? = ", " = "),
    (r", out_ty=.*\)$", ")"),
    (r", (out_dtype=None|\w+=\[\]|layout=None)", ""),
    (r"metadata\[\"ir.GenericConst\"\]\[(\d+)\]", r"w\1"),
    (r"R\.const\(([^,]*), \"\w+\"\)", r"\1"),
    (r"T\.(?:int64|int32|float32|float16|bool)\(([^()]*)\)", r"\1"),
    (r"R\.call_tir\(cls\.(\w+), \((.*?),?\)\)$", r"call \1(\2)"),
    (r"\b(?:R|T|I|cls)\.", ""),
    (r"\bv_", ""),
)
_LOOP, _STORE, _BINDING = r"for .*:", r"[\w.]+\[.*\] = .*", r"\w+(: .*?)? = (R|T\.axis)\..*"
_PLAIN_AXES = re.compile(r"[\w, ]+ = T\.axis\.(remap\(.*|\w+\([^,]*, \w+\))")


def module_lines(mod: tvm.IRModule) -> str:
    """Return the loops and stores of each kernel, and the bindings of each Relax function."""
    lines = []
    for line in map(str.strip, module_text(mod).splitlines()):
        if re.fullmatch(f"{_LOOP}|{_STORE}|{_BINDING}", line) and not _PLAIN_AXES.fullmatch(line):
            indent = "    " if re.fullmatch(_STORE, line) else ""
            for pattern, text in _NOISE:
                line = re.sub(pattern, text, line)
            lines.append(indent + line)
    return "\n".join(lines)


def assert_lines(mod: tvm.IRModule, expected: str) -> None:
    """Assert that a module consists of these lines."""
    assert module_lines(mod) == dedent(expected).strip()

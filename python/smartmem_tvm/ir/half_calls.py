# SPDX-License-Identifier: Apache-2.0
"""OpenCL's conversions between floats in registers and float16 in memory, which do not need the type ``half``."""

from __future__ import annotations

from tvm import ir, tirx

from .half import FLOAT
from .lanes import lanes_of
from .walk import collect

SUFFIXES = {"float32": "f", "float64": "d"}
"""Type that can be rounded to float16 -> suffix of the function that rounds it."""
_ROUND = "smartmem_round_half_"
_TYPES = {"f": "float", "d": "double"}


def rounded(value: ir.Expr) -> ir.Expr:
    """Return a float or double rounded to the nearest float16, as a float; `with_rounding` adds the function."""
    lanes = lanes_of(value)
    name = f"{_ROUND}{SUFFIXES[str(value.ty.dtype).split('x')[0]]}{lanes if lanes > 1 else ''}"
    return tirx.call_pure_extern(FLOAT if lanes == 1 else f"{FLOAT}x{lanes}", name, value)


def with_rounding(body: tirx.Stmt) -> tirx.Stmt:
    """Return a kernel's body with the definitions of the functions that `rounded` calls."""
    externs = [call for call in collect(body, ir.Call) if call.op.same_as(_EXTERN)]
    names = {str(call.args[0].value) for call in externs if str(call.args[0].value).startswith(_ROUND)}
    source = "".join(_definition(name) for name in sorted(names))
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_c", source, body) if source else body


def _definition(name: str) -> str:
    """Return the source of a function: it rounds by a store, the only conversion to float16 that every device has."""
    kind, lanes = _TYPES[name[len(_ROUND)]], name[len(_ROUND) + 1 :]
    return (
        f"float{lanes} {name}({kind}{lanes} x) {{\n"
        f"  ushort{lanes} word;\n"
        f"  vstore_half{lanes}(x, 0, (__private half*)&word);\n"
        f"  return vload_half{lanes}(0, (__private half*)&word);\n"
        f"}}\n"
    )


_EXTERN = ir.Op.get("tirx.call_pure_extern")

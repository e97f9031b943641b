# SPDX-License-Identifier: Apache-2.0
"""Functions of single precision that are right on CUDA, where TVM compiles with ``--use_fast_math``.

That flag turns ``powf(x, y)`` into ``exp2(y * log2(x))``, which is NaN for x < 0 and for pow(0, 0), ``tanhf`` into an
instruction with an error of 5e-4, and ``sinf`` into one that is far off for large numbers. `exp`, divisions and roots
stay fast: they lose a few bits.
"""

from __future__ import annotations

from tvm import ir, tirx

# Operator of TVM -> how many numbers it takes. The functions of NVIDIA's device library have its name; the flag does
# not replace a call of one of them.
_ARGUMENTS = {"pow": 2, "tanh": 1, "sin": 1, "cos": 1, "tan": 1, "log": 1}


def _name(function: str) -> str:
    return f"__nv_{function}f"


def _accurate(call: ir.Call) -> ir.Expr:
    """The function of the device library, also for shorter types; the flag changes none of doubles."""
    function = call.op.name.removeprefix("tirx.")
    dtype = str(call.ty.dtype)
    element, _, lanes = dtype.partition("x")
    if element == "float64":
        return tirx.call_pure_extern(dtype, function, *call.args)
    wide = f"float32x{lanes}" if lanes else "float32"
    return tirx.call_pure_extern(wide, _name(function), *(arg.astype(wide) for arg in call.args)).astype(dtype)


for _function in _ARGUMENTS:
    tirx.register_intrin_lowering(f"tirx.{_function}", "cuda", f=_accurate, level=99)


def with_declarations(source: str) -> str:
    """CUDA source with declarations in front of those functions that it calls."""
    called = {_name(function): count for function, count in _ARGUMENTS.items() if f"{_name(function)}(" in source}
    stated = [f'extern "C" __device__ float {name}({", ".join(["float"] * n)});\n' for name, n in called.items()]
    return "".join(stated) + source

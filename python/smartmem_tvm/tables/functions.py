# SPDX-License-Identifier: Apache-2.0
"""Functions on the GPUs of phones: the formula for each, its error, and the instructions that it takes.

Such a GPU has a special unit for powers of two, logarithms, reciprocals and roots of float32, which OpenCL C reaches
as ``native_exp2``, ``native_log2`` and ``native_recip``. OpenCL leaves their errors to the implementation, and has no
native functions of halves, so that formulas of halves are computed in float32, too. Vulkan, for which drivers of these
GPUs are tested, allows 3 + 2 |x| ulp for exp2, 2.5 ulp for a reciprocal, and for log2 3 ulp, but between 0.5 and 2 an
absolute 2^-21 (Vulkan 1.3, Precision and Operation of SPIR-V Instructions). The errors below are limits for native
functions that err by as much; ``tests/ir/test_native_formulas.py`` holds the formulas to them.
"""

from __future__ import annotations

from dataclasses import dataclass

GPUS = (660, 740, 830)
"""Adrenos of which the table has counts."""
LIBRARY = ""


@dataclass(frozen=True)
class Function:
    """A function of one type on the GPUs of `FAMILIES`.

    Attributes
    ----------
    name, dtype : str
        As in TIR: ``exp``, ``float32``. ``normal_cdf`` is ``0.5 + 0.5 erf(x)``, which a GELU holds.
    formula : str
        A function of `ir.native_formulas`, `LIBRARY` for OpenCL's own.
    why : str
        What it computes; for OpenCL's own, why that stays.
    absolute, relative : float
        The largest error that a test allows, by the smaller of the two: ``|found - exact| <= max(absolute, relative
        |exact|)``, before the rounding to a half.
    instructions : tuple of int
        Machine instructions of an element on each of `GPUS`, without empty slots, by Mesa 26.2.6 (2026-11-28); halves
        with both conversions. Empty where Mesa does not compile it: its library lacks `fma`.
    library : tuple of int
        The same of OpenCL's own function, where that is replaced.
    """

    name: str
    dtype: str
    formula: str
    why: str
    absolute: float = 0.0
    relative: float = 0.0
    instructions: tuple[int, ...] = ()
    library: tuple[int, ...] = ()


_EXP = "native_exp2(x log2 e)"
_SIGMOID = "1 / (1 + native_exp2(-x log2 e))"
_TANH = "1 - 2 / (1 + native_exp2(2 x log2 e))"
_CDF = "1 / (1 + native_exp2(x q(x^2)))"
_ERF = "2 normal_cdf - 1, and 2 x / sqrt(pi) below 0.02"
_LOG = "native_log2(x) ln 2"
_POW = "native_exp2(y native_log2(x)) for a constant y that is no integer; also NaN for -inf"
_ANGLE = "no special unit is exact enough: Vulkan allows sines 2^-11, and nothing beyond pi"
_ROOT = "OpenCL's is one instruction"

FUNCTIONS = (
    Function("exp", "float32", "exp", _EXP, 0.0, 4e-5, (2, 2, 2), (28, 28, 46)),
    Function("exp", "float16", "exp", _EXP, 0.0, 4e-5, (4, 4, 4), (30, 30, 48)),
    Function("exp2", "float32", "exp2", "native_exp2(x)", 0.0, 4e-5, (1, 1, 1), (26, 26, 40)),
    Function("exp2", "float16", "exp2", "native_exp2(x)", 0.0, 4e-5, (3, 3, 3), (28, 28, 42)),
    Function("sigmoid", "float32", "sigmoid", _SIGMOID, 0.0, 4e-5, (4, 4, 6), (40, 40, 64)),
    Function("sigmoid", "float16", "sigmoid", _SIGMOID, 0.0, 4e-5, (6, 6, 8), (35, 35, 53)),
    Function(
        "tanh", "float32", "tanh", f"{_TANH}, and Cephes' polynomial below 0.625", 0.0, 1e-6, (14, 14, 26), (57, 57, 95)
    ),
    Function("tanh", "float16", "tanh_of_half", f"{_TANH}, and x below 0.02", 0.0, 2e-4, (9, 9, 14), (59, 59, 97)),
    Function("erf", "float32", "erf", "x p(x^2) / q(x^2), Eigen's and TVM's", 0.0, 2e-6, (18, 18, 36), (143, 143, 246)),
    Function("erf", "float16", "erf_of_half", _ERF, 0.0, 2e-4, (15, 15, 27), (145, 145, 248)),
    Function("normal_cdf", "float32", "normal_cdf", f"{_CDF}, q of degree 6", 4e-7, 0.0, (11, 11, 20), (144, 144, 247)),
    Function(
        "normal_cdf",
        "float16",
        "normal_cdf_of_half",
        f"{_CDF}, q of degree 4",
        2e-6,
        0.0,
        (11, 11, 18),
        (146, 146, 249),
    ),
    Function("log", "float32", LIBRARY, "2^-21 absolutely is few digits near 1", 0.0, 0.0, (58, 56, 81)),
    Function("log", "float16", "log", _LOG, 4e-7, 1e-6, (4, 4, 4), (61, 59, 84)),
    Function("pow", "float32", "power", _POW, 0.0, 7e-5, (3, 3, 5), (124, 117, 159)),
    Function("pow", "float16", "power", _POW, 0.0, 4e-5, (5, 5, 7), (124, 117, 159)),
    Function("divide", "float32", LIBRARY, "an exact quotient may be rounded down next", 0.0, 0.0, (12, 12, 17)),
    Function(
        "divide",
        "float16",
        "divide",
        "x native_recip(y) of a quotient of floats that is rounded",
        0.0,
        1e-6,
        (2, 2, 2),
        (12, 12, 17),
    ),
    Function("sqrt", "float32", LIBRARY, _ROOT, 0.0, 0.0, (1, 1, 1)),
    Function("sqrt", "float16", LIBRARY, _ROOT, 0.0, 0.0, (1, 1, 1)),
    Function("rsqrt", "float32", LIBRARY, "OpenCL's root and quotient", 0.0, 0.0, (11, 11, 18)),
    Function("rsqrt", "float16", LIBRARY, "OpenCL's root and quotient", 0.0, 0.0, (4, 4, 4)),
    Function("sin", "float32", LIBRARY, _ANGLE),
    Function("sin", "float16", LIBRARY, _ANGLE),
    Function("cos", "float32", LIBRARY, _ANGLE),
    Function("cos", "float16", LIBRARY, _ANGLE),
)

_BY_NAME = {(each.name, each.dtype): each for each in FUNCTIONS}


def formula_of(name: str, dtype: str) -> str:
    """Return the formula of a function of a type; `LIBRARY` for one that is not in the table."""
    found = _BY_NAME.get((name, dtype))
    return found.formula if found is not None else LIBRARY


def instructions_of(gpu: int = 740) -> dict[str, int]:
    """Return the fewest machine instructions of each function of floats on one of `GPUS`, as far as they are known.

    An ``erf`` may be that of a GELU, which is shorter as ``normal_cdf``.
    """
    at = GPUS.index(gpu)
    found = {each.name: each.instructions[at] for each in FUNCTIONS if each.dtype == "float32" and each.instructions}
    return found | {"erf": min(found["erf"], found["normal_cdf"])}

# SPDX-License-Identifier: Apache-2.0
"""DNNFusion Table 4: graph rewriting by mathematical properties, as rows of (pattern, replacement, condition).

How to read a row. ``a``, ``b``, ``c`` stand for any tensor, a number for a constant tensor filled with it, ``recip(a)``
for ``1 / a``, ``a << b`` for a shift of bits, ``a @ b`` for a matrix product. ``sum``, ``mean``, ``prod``, ``max`` and
``min`` reduce; all reductions of a row have the same axes and operands of one shape. A pattern matches modulo the
commutative and associative laws of ``+`` and ``*``, and any further summands or factors are kept: ``sqrt(a) * sqrt(a)``
matches ``(c * sqrt(a)) * (b * sqrt(a))``, which then becomes ``a * (c * b)``. A row is applied only where it makes the
graph cheaper, so that ``a * b => b * a`` means: in the cheapest order.

Conditions, separated by ``;``:

``float``
    the tensors are floating point numbers. Rows without it are exact in integers modulo 2**n too.
``a >= 0``
    known from how ``a`` is computed (a square, an exponential, a constant without a negative number ...).
``steady(a)``
    does not change along the axes of the reduction, and fits its result.
``alike(a, b)``
    of one shape: nothing is broadcast.

Floats are rounded differently after a rewrite: each row moves a result by a few units in the last place of its largest
intermediate term. None turns a finite result into an infinite one as long as the squares of its inputs are finite; for
that reason ``(a / b) * (c / d) => (a * c) / (b * d)`` and ``sqrt(a) * sqrt(b) => sqrt(a * b)`` are missing.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One row: what may be rewritten to what, by which property, and when."""

    name: str
    property: str
    pattern: str
    replacement: str
    condition: str = ""

    def __str__(self) -> str:
        when = f"  if {self.condition}" if self.condition else ""
        return f"{self.pattern} => {self.replacement}{when}"


ASSOCIATIVE, DISTRIBUTIVE, COMMUTATIVE = "associative", "distributive", "commutative"
# Neutral and inverse elements and functions: what the other three need to meet their partners.
IDENTITY = "identity"

# fmt: off
RULES: tuple[Rule, ...] = (
    # name                      property      pattern                 replacement         condition
    Rule("recip_recip",         ASSOCIATIVE,  "recip(a) * recip(b)",  "recip(a * b)",     "float"),
    Rule("square",              ASSOCIATIVE,  "a * a",                "square(a)"),
    Rule("square_square",       ASSOCIATIVE,  "square(a) * square(b)", "square(a * b)"),
    Rule("abs_abs",             ASSOCIATIVE,  "abs(a) * abs(b)",      "abs(a * b)",       "float"),
    Rule("sqrt_sqrt",           ASSOCIATIVE,  "sqrt(a) * sqrt(a)",    "a",                "float; a >= 0"),
    Rule("exp_exp",             ASSOCIATIVE,  "exp(a) * exp(b)",      "exp(a + b)",       "float"),
    Rule("exp_over_exp",        ASSOCIATIVE,  "exp(a) / exp(b)",      "exp(a - b)",       "float"),
    Rule("sqrt_square",         ASSOCIATIVE,  "sqrt(square(a))",      "abs(a)",           "float"),
    Rule("square_sqrt",         ASSOCIATIVE,  "square(sqrt(a))",      "a",                "float; a >= 0"),
    Rule("square_rsqrt",        ASSOCIATIVE,  "square(rsqrt(a))",     "recip(a)",         "float; a >= 0"),
    Rule("rsqrt_rsqrt",         ASSOCIATIVE,  "rsqrt(a) * rsqrt(a)",  "recip(a)",         "float; a >= 0"),
    Rule("square_abs",          ASSOCIATIVE,  "square(abs(a))",       "square(a)"),
    Rule("square_negative",     ASSOCIATIVE,  "square(-a)",           "square(a)"),
    Rule("power_two",           ASSOCIATIVE,  "a ** 2",               "square(a)",        "float"),
    Rule("power_three",         ASSOCIATIVE,  "a ** 3",               "a * square(a)",    "float"),
    Rule("power_four",          ASSOCIATIVE,  "a ** 4",               "square(square(a))", "float"),
    Rule("power_half",          ASSOCIATIVE,  "a ** 0.5",             "sqrt(a)",          "float"),
    Rule("power_minus_half",    ASSOCIATIVE,  "a ** -0.5",            "rsqrt(a)",         "float"),
    Rule("power_minus_one",     ASSOCIATIVE,  "a ** -1",              "recip(a)",         "float"),
    Rule("minus_plus",          ASSOCIATIVE,  "(a - b) + c",          "a + (c - b)"),
    Rule("plus_minus",          ASSOCIATIVE,  "(a + b) - c",          "a + (b - c)"),
    Rule("minus_minus",         ASSOCIATIVE,  "(a - b) - c",          "a - (b + c)"),
    Rule("divide_quotient",     ASSOCIATIVE,  "a / recip(b)",         "a * b",            "float"),

    Rule("factor",              DISTRIBUTIVE, "a * b + a * c",        "a * (b + c)"),
    Rule("factor_difference",   DISTRIBUTIVE, "a * b - a * c",        "a * (b - c)"),
    Rule("factor_one",          DISTRIBUTIVE, "a + a * b",            "a * (b + 1)"),
    Rule("factor_minus_one",    DISTRIBUTIVE, "a * b - a",            "a * (b - 1)"),
    Rule("factor_from_one",     DISTRIBUTIVE, "a - a * b",            "a * (1 - b)"),
    Rule("factor_square",       DISTRIBUTIVE, "square(a) + a * b",    "a * (a + b)"),
    Rule("factor_square_minus", DISTRIBUTIVE, "square(a) - a * b",    "a * (a - b)"),
    Rule("double",              DISTRIBUTIVE, "a + a",                "2 * a"),
    Rule("common_divisor",      DISTRIBUTIVE, "a / c + b / c",        "(a + b) / c",      "float"),
    Rule("common_divisor_minus", DISTRIBUTIVE, "a / c - b / c",       "(a - b) / c",      "float"),
    Rule("matmul_left",         DISTRIBUTIVE, "a @ b + a @ c",        "a @ (b + c)",      "alike(b, c)"),
    Rule("matmul_right",        DISTRIBUTIVE, "a @ c + b @ c",        "(a + b) @ c",      "alike(a, b)"),
    Rule("matmul_left_minus",   DISTRIBUTIVE, "a @ b - a @ c",        "a @ (b - c)",      "alike(b, c)"),
    Rule("matmul_right_minus",  DISTRIBUTIVE, "a @ c - b @ c",        "(a - b) @ c",      "alike(a, b)"),
    Rule("sum_sum",             DISTRIBUTIVE, "sum(a) + sum(b)",      "sum(a + b)"),
    Rule("mean_mean",           DISTRIBUTIVE, "mean(a) + mean(b)",    "mean(a + b)",      "float"),
    Rule("sum_minus_sum",       DISTRIBUTIVE, "sum(a) - sum(b)",      "sum(a - b)"),
    Rule("mean_minus_mean",     DISTRIBUTIVE, "mean(a) - mean(b)",    "mean(a - b)",      "float"),
    Rule("prod_prod",           DISTRIBUTIVE, "prod(a) * prod(b)",    "prod(a * b)"),

    Rule("order_product",       COMMUTATIVE,  "a * b",                "b * a"),
    Rule("order_sum",           COMMUTATIVE,  "a + b",                "b + a"),
    Rule("sum_shift",           COMMUTATIVE,  "sum(a << b)",          "sum(a) << b",      "steady(b)"),
    Rule("prod_exp",            COMMUTATIVE,  "prod(exp(a))",         "exp(sum(a))",      "float"),
    Rule("sum_scale",           COMMUTATIVE,  "sum(a * b)",           "sum(a) * b",       "steady(b)"),
    Rule("mean_scale",          COMMUTATIVE,  "mean(a * b)",          "mean(a) * b",      "float; steady(b)"),
    Rule("sum_divide",          COMMUTATIVE,  "sum(a / b)",           "sum(a) / b",       "float; steady(b)"),
    Rule("mean_divide",         COMMUTATIVE,  "mean(a / b)",          "mean(a) / b",      "float; steady(b)"),
    Rule("mean_shifted",        COMMUTATIVE,  "mean(a + b)",          "mean(a) + b",      "float; steady(b)"),
    Rule("sum_negative",        COMMUTATIVE,  "sum(-a)",              "-sum(a)"),
    Rule("mean_negative",       COMMUTATIVE,  "mean(-a)",             "-mean(a)",         "float"),
    Rule("max_exp",             COMMUTATIVE,  "max(exp(a))",          "exp(max(a))",      "float"),
    Rule("min_exp",             COMMUTATIVE,  "min(exp(a))",          "exp(min(a))",      "float"),
    Rule("max_sqrt",            COMMUTATIVE,  "max(sqrt(a))",         "sqrt(max(a))",     "float; a >= 0"),
    Rule("min_sqrt",            COMMUTATIVE,  "min(sqrt(a))",         "sqrt(min(a))",     "float; a >= 0"),
    Rule("max_relu",            COMMUTATIVE,  "max(relu(a))",         "relu(max(a))"),
    Rule("min_relu",            COMMUTATIVE,  "min(relu(a))",         "relu(min(a))"),
    Rule("max_shifted",         COMMUTATIVE,  "max(a + b)",           "max(a) + b",       "float; steady(b)"),
    Rule("min_shifted",         COMMUTATIVE,  "min(a + b)",           "min(a) + b",       "float; steady(b)"),

    Rule("times_one",           IDENTITY,     "a * 1",                "a"),
    Rule("plus_zero",           IDENTITY,     "a + 0",                "a"),
    Rule("minus_zero",          IDENTITY,     "a - 0",                "a"),
    Rule("over_one",            IDENTITY,     "a / 1",                "a",                "float"),
    Rule("times_minus_one",     IDENTITY,     "a * -1",               "-a"),
    Rule("negative_negative",   IDENTITY,     "-(-a)",                "a"),
    Rule("minus_negative",      IDENTITY,     "a - -b",               "a + b"),
    Rule("plus_negative",       IDENTITY,     "a + -b",               "a - b"),
    Rule("zero_minus",          IDENTITY,     "0 - a",                "-a"),
    Rule("negative_difference", IDENTITY,     "-(a - b)",             "b - a"),
    Rule("power_one",           IDENTITY,     "a ** 1",               "a",                "float"),
    Rule("times_recip",         IDENTITY,     "a * recip(b)",         "a / b",            "float"),
    Rule("over",                IDENTITY,     "a / b",                "a * recip(b)",     "float"),
    Rule("over_sqrt",           IDENTITY,     "a / sqrt(b)",          "a * rsqrt(b)",     "float"),
    Rule("recip_sqrt",          IDENTITY,     "recip(sqrt(a))",       "rsqrt(a)",         "float"),
    Rule("recip_rsqrt",         IDENTITY,     "recip(rsqrt(a))",      "sqrt(a)",          "float"),
    Rule("recip_exp",           IDENTITY,     "recip(exp(a))",        "exp(-a)",          "float"),
    Rule("sigmoid",             IDENTITY,     "recip(1 + exp(-a))",   "sigmoid(a)",       "float"),
    Rule("log_exp",             IDENTITY,     "log(exp(a))",          "a",                "float"),
    Rule("exp_log",             IDENTITY,     "exp(log(a))",          "a",                "float; a >= 0"),
    Rule("abs_nonnegative",     IDENTITY,     "abs(a)",               "a",                "float; a >= 0"),
    Rule("relu_nonnegative",    IDENTITY,     "relu(a)",              "a",                "float; a >= 0"),
    Rule("abs_negative",        IDENTITY,     "abs(-a)",              "abs(a)",           "float"),
    Rule("maximum_same",        IDENTITY,     "maximum(a, a)",        "a"),
    Rule("minimum_same",        IDENTITY,     "minimum(a, a)",        "a"),
)
# fmt: on


class PaperRow(NamedTuple):
    """A row of the paper: what its rules make of what, which ours must match or beat."""

    property: str
    before: str
    after: str


# fmt: off
TABLE_4: tuple[PaperRow, ...] = (
    PaperRow(ASSOCIATIVE,  "recip(a) * recip(a * b)",               "square(recip(a)) * recip(b)"),
    PaperRow(ASSOCIATIVE,  "(a * sqrt(b)) * (sqrt(b) * c)",         "a * b * c"),
    PaperRow(ASSOCIATIVE,  "abs(a) * b * abs(c)",                   "abs(a * c) * b"),
    PaperRow(ASSOCIATIVE,  "(a * sum(b)) * (sum(b) * c)",           "a * square(sum(b)) * c"),
    PaperRow(DISTRIBUTIVE, "a * c + a * b",                         "a * (b + c)"),
    PaperRow(DISTRIBUTIVE, "a + a * b",                             "a * (b + 1)"),
    PaperRow(DISTRIBUTIVE, "square(a + b) - (a + b) * c",           "(a + b) * (a + b - c)"),
    PaperRow(COMMUTATIVE,  "a * b",                                 "b * a"),
    PaperRow(COMMUTATIVE,  "sum(a << b)",                           "sum(a) << b"),
    PaperRow(COMMUTATIVE,  "prod(exp(a))",                          "exp(sum(a))"),
)
# fmt: on

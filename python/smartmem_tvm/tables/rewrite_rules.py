# SPDX-License-Identifier: Apache-2.0
"""DNNFusion Table 4: graph rewriting by mathematical properties, as rows of (pattern, replacement, condition).

In a row, ``a``, ``b``, ``c`` stand for any tensor, a number for a constant tensor filled with it, ``recip(a)`` for
``1 / a``, ``a << b`` for a shift of bits, ``a @ b`` for a matrix product. ``sum``, ``mean``, ``prod``, ``max`` and
``min`` reduce; all reductions of a row have the same axes and operands of one shape. A pattern matches modulo the
commutative and associative laws of ``+`` and ``*``, and further summands or factors are kept: ``sqrt(a) * sqrt(a)``
matches ``(c * sqrt(a)) * (b * sqrt(a))``, which becomes ``a * (c * b)``. A row is applied only if it makes the graph
cheaper, so that ``a * b => b * a`` means: in the cheapest order.

Conditions, separated by ``;``:

``float``
    the tensors are floating point numbers. Rows without it are exact in integers modulo 2**n too.
``a >= 0``
    the computation of ``a`` proves it (a square, an exponential, a constant without a negative number ...).
``steady(a)``
    ``a`` does not change along the axes of the reduction, and fits its result.
``alike(a, b)``
    both have one shape: there is no broadcast.

Rewriting changes the rounding of floats: each row moves a result by a few units in the last place of its largest
intermediate term. No row turns a finite result into an infinite one if the squares of its inputs are finite; for that
reason ``(a / b) * (c / d) => (a * c) / (b * d)`` and ``sqrt(a) * sqrt(b) => sqrt(a * b)`` are missing. If the original
graph gives NaN or infinity, as in ``inf * b - inf``, the rewritten graph may give another of these, or a number;
operators that read a constant with NaN or infinity are not rewritten.
"""

from __future__ import annotations

from typing import NamedTuple


class RewriteRule(NamedTuple):
    """One row: pattern, replacement, the property that allows it, and the condition."""

    name: str
    property: str
    pattern: str
    replacement: str
    condition: str = ""

    def __str__(self) -> str:
        when = f"  if {self.condition}" if self.condition else ""
        return f"{self.pattern} => {self.replacement}{when}"


ASSOCIATIVE, DISTRIBUTIVE, COMMUTATIVE = "associative", "distributive", "commutative"
# Neutral and inverse elements and inverse functions, which bring expressions into forms that the other rules match.
IDENTITY = "identity"

# fmt: off
RULES: tuple[RewriteRule, ...] = (
    # name                      property      pattern                 replacement         condition
    RewriteRule("recip_recip",         ASSOCIATIVE,  "recip(a) * recip(b)",  "recip(a * b)",     "float"),
    RewriteRule("square",              ASSOCIATIVE,  "a * a",                "square(a)"),
    RewriteRule("square_square",       ASSOCIATIVE,  "square(a) * square(b)", "square(a * b)"),
    RewriteRule("abs_abs",             ASSOCIATIVE,  "abs(a) * abs(b)",      "abs(a * b)",       "float"),
    RewriteRule("sqrt_sqrt",           ASSOCIATIVE,  "sqrt(a) * sqrt(a)",    "a",                "float; a >= 0"),
    RewriteRule("exp_exp",             ASSOCIATIVE,  "exp(a) * exp(b)",      "exp(a + b)",       "float"),
    RewriteRule("exp_over_exp",        ASSOCIATIVE,  "exp(a) / exp(b)",      "exp(a - b)",       "float"),
    RewriteRule("sqrt_square",         ASSOCIATIVE,  "sqrt(square(a))",      "abs(a)",           "float"),
    RewriteRule("square_sqrt",         ASSOCIATIVE,  "square(sqrt(a))",      "a",                "float; a >= 0"),
    RewriteRule("square_rsqrt",        ASSOCIATIVE,  "square(rsqrt(a))",     "recip(a)",         "float; a >= 0"),
    RewriteRule("rsqrt_rsqrt",         ASSOCIATIVE,  "rsqrt(a) * rsqrt(a)",  "recip(a)",         "float; a >= 0"),
    RewriteRule("square_abs",          ASSOCIATIVE,  "square(abs(a))",       "square(a)"),
    RewriteRule("square_negative",     ASSOCIATIVE,  "square(-a)",           "square(a)"),
    RewriteRule("power_two",           ASSOCIATIVE,  "a ** 2",               "square(a)",        "float"),
    RewriteRule("power_three",         ASSOCIATIVE,  "a ** 3",               "a * square(a)",    "float"),
    RewriteRule("power_four",          ASSOCIATIVE,  "a ** 4",               "square(square(a))", "float"),
    RewriteRule("power_half",          ASSOCIATIVE,  "a ** 0.5",             "sqrt(a)",          "float"),
    RewriteRule("power_minus_half",    ASSOCIATIVE,  "a ** -0.5",            "rsqrt(a)",         "float"),
    RewriteRule("power_minus_one",     ASSOCIATIVE,  "a ** -1",              "recip(a)",         "float"),
    RewriteRule("minus_plus",          ASSOCIATIVE,  "(a - b) + c",          "a + (c - b)"),
    RewriteRule("plus_minus",          ASSOCIATIVE,  "(a + b) - c",          "a + (b - c)"),
    RewriteRule("minus_minus",         ASSOCIATIVE,  "(a - b) - c",          "a - (b + c)"),
    RewriteRule("divide_quotient",     ASSOCIATIVE,  "a / recip(b)",         "a * b",            "float"),

    RewriteRule("factor",              DISTRIBUTIVE, "a * b + a * c",        "a * (b + c)"),
    RewriteRule("factor_difference",   DISTRIBUTIVE, "a * b - a * c",        "a * (b - c)"),
    RewriteRule("factor_one",          DISTRIBUTIVE, "a + a * b",            "a * (b + 1)"),
    RewriteRule("factor_minus_one",    DISTRIBUTIVE, "a * b - a",            "a * (b - 1)"),
    RewriteRule("factor_from_one",     DISTRIBUTIVE, "a - a * b",            "a * (1 - b)"),
    RewriteRule("factor_square",       DISTRIBUTIVE, "square(a) + a * b",    "a * (a + b)"),
    RewriteRule("factor_square_minus", DISTRIBUTIVE, "square(a) - a * b",    "a * (a - b)"),
    RewriteRule("double",              DISTRIBUTIVE, "a + a",                "2 * a"),
    RewriteRule("common_divisor",      DISTRIBUTIVE, "a / c + b / c",        "(a + b) / c",      "float"),
    RewriteRule("common_divisor_minus", DISTRIBUTIVE, "a / c - b / c",       "(a - b) / c",      "float"),
    RewriteRule("matmul_left",         DISTRIBUTIVE, "a @ b + a @ c",        "a @ (b + c)",      "alike(b, c)"),
    RewriteRule("matmul_right",        DISTRIBUTIVE, "a @ c + b @ c",        "(a + b) @ c",      "alike(a, b)"),
    RewriteRule("matmul_left_minus",   DISTRIBUTIVE, "a @ b - a @ c",        "a @ (b - c)",      "alike(b, c)"),
    RewriteRule("matmul_right_minus",  DISTRIBUTIVE, "a @ c - b @ c",        "(a - b) @ c",      "alike(a, b)"),
    RewriteRule("sum_sum",             DISTRIBUTIVE, "sum(a) + sum(b)",      "sum(a + b)"),
    RewriteRule("mean_mean",           DISTRIBUTIVE, "mean(a) + mean(b)",    "mean(a + b)",      "float"),
    RewriteRule("sum_minus_sum",       DISTRIBUTIVE, "sum(a) - sum(b)",      "sum(a - b)"),
    RewriteRule("mean_minus_mean",     DISTRIBUTIVE, "mean(a) - mean(b)",    "mean(a - b)",      "float"),
    RewriteRule("prod_prod",           DISTRIBUTIVE, "prod(a) * prod(b)",    "prod(a * b)"),

    RewriteRule("order_product",       COMMUTATIVE,  "a * b",                "b * a"),
    RewriteRule("order_sum",           COMMUTATIVE,  "a + b",                "b + a"),
    RewriteRule("sum_shift",           COMMUTATIVE,  "sum(a << b)",          "sum(a) << b",      "steady(b)"),
    RewriteRule("prod_exp",            COMMUTATIVE,  "prod(exp(a))",         "exp(sum(a))",      "float"),
    RewriteRule("sum_scale",           COMMUTATIVE,  "sum(a * b)",           "sum(a) * b",       "steady(b)"),
    RewriteRule("mean_scale",          COMMUTATIVE,  "mean(a * b)",          "mean(a) * b",      "float; steady(b)"),
    RewriteRule("sum_divide",          COMMUTATIVE,  "sum(a / b)",           "sum(a) / b",       "float; steady(b)"),
    RewriteRule("mean_divide",         COMMUTATIVE,  "mean(a / b)",          "mean(a) / b",      "float; steady(b)"),
    RewriteRule("mean_shifted",        COMMUTATIVE,  "mean(a + b)",          "mean(a) + b",      "float; steady(b)"),
    RewriteRule("sum_negative",        COMMUTATIVE,  "sum(-a)",              "-sum(a)"),
    RewriteRule("mean_negative",       COMMUTATIVE,  "mean(-a)",             "-mean(a)",         "float"),
    RewriteRule("max_exp",             COMMUTATIVE,  "max(exp(a))",          "exp(max(a))",      "float"),
    RewriteRule("min_exp",             COMMUTATIVE,  "min(exp(a))",          "exp(min(a))",      "float"),
    RewriteRule("max_sqrt",            COMMUTATIVE,  "max(sqrt(a))",         "sqrt(max(a))",     "float; a >= 0"),
    RewriteRule("min_sqrt",            COMMUTATIVE,  "min(sqrt(a))",         "sqrt(min(a))",     "float; a >= 0"),
    RewriteRule("max_relu",            COMMUTATIVE,  "max(relu(a))",         "relu(max(a))"),
    RewriteRule("min_relu",            COMMUTATIVE,  "min(relu(a))",         "relu(min(a))"),
    RewriteRule("max_shifted",         COMMUTATIVE,  "max(a + b)",           "max(a) + b",       "float; steady(b)"),
    RewriteRule("min_shifted",         COMMUTATIVE,  "min(a + b)",           "min(a) + b",       "float; steady(b)"),

    RewriteRule("times_one",           IDENTITY,     "a * 1",                "a"),
    RewriteRule("plus_zero",           IDENTITY,     "a + 0",                "a"),
    RewriteRule("minus_zero",          IDENTITY,     "a - 0",                "a"),
    RewriteRule("over_one",            IDENTITY,     "a / 1",                "a",                "float"),
    RewriteRule("times_minus_one",     IDENTITY,     "a * -1",               "-a"),
    RewriteRule("negative_negative",   IDENTITY,     "-(-a)",                "a"),
    RewriteRule("minus_negative",      IDENTITY,     "a - -b",               "a + b"),
    RewriteRule("plus_negative",       IDENTITY,     "a + -b",               "a - b"),
    RewriteRule("zero_minus",          IDENTITY,     "0 - a",                "-a"),
    RewriteRule("negative_difference", IDENTITY,     "-(a - b)",             "b - a"),
    RewriteRule("power_one",           IDENTITY,     "a ** 1",               "a",                "float"),
    RewriteRule("times_recip",         IDENTITY,     "a * recip(b)",         "a / b",            "float"),
    RewriteRule("over",                IDENTITY,     "a / b",                "a * recip(b)",     "float"),
    RewriteRule("over_sqrt",           IDENTITY,     "a / sqrt(b)",          "a * rsqrt(b)",     "float"),
    RewriteRule("recip_sqrt",          IDENTITY,     "recip(sqrt(a))",       "rsqrt(a)",         "float"),
    RewriteRule("recip_rsqrt",         IDENTITY,     "recip(rsqrt(a))",      "sqrt(a)",          "float"),
    RewriteRule("recip_exp",           IDENTITY,     "recip(exp(a))",        "exp(-a)",          "float"),
    RewriteRule("sigmoid",             IDENTITY,     "recip(1 + exp(-a))",   "sigmoid(a)",       "float"),
    RewriteRule("log_exp",             IDENTITY,     "log(exp(a))",          "a",                "float"),
    RewriteRule("exp_log",             IDENTITY,     "exp(log(a))",          "a",                "float; a >= 0"),
    RewriteRule("abs_nonnegative",     IDENTITY,     "abs(a)",               "a",                "float; a >= 0"),
    RewriteRule("relu_nonnegative",    IDENTITY,     "relu(a)",              "a",                "float; a >= 0"),
    RewriteRule("abs_negative",        IDENTITY,     "abs(-a)",              "abs(a)",           "float"),
    RewriteRule("maximum_same",        IDENTITY,     "maximum(a, a)",        "a"),
    RewriteRule("minimum_same",        IDENTITY,     "minimum(a, a)",        "a"),
)
# fmt: on


class PaperRow(NamedTuple):
    """A row of the paper: an expression before and after its rules; our rules must give the same or a cheaper one."""

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

# SPDX-License-Identifier: Apache-2.0
"""Operators on numbers one by one, and products."""

import numpy as np

from ..drawing import ANY, FLOATS, INTEGERS, NUMBERS, Drawing, NotDrawn
from .table import draws

ANYTHING, SMALL, UNIT, POSITIVE = "anything", "small", "unit", "positive"
UNARY = {
    **dict.fromkeys(["Abs", "Neg", "Relu", "Sign"], (NUMBERS, ANYTHING)),
    **dict.fromkeys(["Ceil", "Floor", "Round", "Sigmoid", "Tanh", "Atan", "Softsign", "Erf"], (FLOATS, ANYTHING)),
    **dict.fromkeys(["Exp", "Softplus", "Sinh", "Cosh", "Sin", "Cos", "Asinh", "Tan", "Mish"], (FLOATS, SMALL)),
    **dict.fromkeys(["Elu", "Selu", "Celu", "LeakyRelu", "HardSigmoid", "HardSwish"], (FLOATS, ANYTHING)),
    **dict.fromkeys(["ThresholdedRelu", "Gelu", "Swish"], (FLOATS, ANYTHING)),
    **dict.fromkeys(["Acos", "Asin", "Atanh"], (FLOATS, UNIT)),
    **dict.fromkeys(["Sqrt", "Log", "Reciprocal", "Acosh"], (FLOATS, POSITIVE)),
}
"""Operator -> the types that it takes, and the numbers."""
ALPHA = ("Elu", "Celu", "LeakyRelu", "HardSigmoid", "ThresholdedRelu", "Swish")


def into(g: Drawing, domain: str) -> str:
    """A tensor of numbers from a domain; where there is none, another one is squashed into it."""
    if domain == ANYTHING:
        return g.tensor(FLOATS)
    x = g.tensor(FLOATS, below=6.0) if domain == SMALL else g.node("Tanh", [g.tensor(FLOATS)])
    if domain == UNIT:
        return g.node("Mul", [x, g.constant(0.9, str(g.values[x].dtype))])
    return g.node("Add", [x, g.constant(2.1, str(g.values[x].dtype))]) if domain == POSITIVE else x


@draws(9)
def unary(g: Drawing):
    op = g.pick(list(UNARY))
    kinds, domain = UNARY[op]
    x = g.tensor(kinds) if kinds == NUMBERS else into(g, domain)
    attributes = {"alpha": g.pick([0.1, 0.5, 1.0, 1.5])} if op in ALPHA and g.chance(0.6) else {}
    if op == "Gelu" and g.chance(0.5):
        attributes = {"approximate": "tanh"}
    g.node(op, [x], **attributes)


@draws(10)
def binary(g: Drawing):
    op = g.pick(["Add", "Sub", "Mul", "Add", "Sub", "Mul", "Min", "Max"])
    below = 30000 if op == "Mul" else np.inf
    x = g.tensor(NUMBERS, below=below)
    g.node(op, g.pick([(x, y := g.partner(x, below)), (y, x)]))


@draws(2)
def several(g: Drawing):
    """Min, Max, Sum and Mean of any number of tensors."""
    op = g.pick(["Min", "Max", "Sum", "Mean"])
    x = g.tensor(FLOATS)
    g.node(op, [x, *(g.partner(x) for _ in range(g.pick([0, 1, 2, 2, 3])))])


@draws(3)
def divide(g: Drawing):
    """Div and Mod, by what is never zero."""
    op = g.pick(["Div", "Div", "Mod"])
    x = g.tensor(NUMBERS)
    kind = str(g.values[x].dtype)
    by = g.numbers(g.beside(g.values[x].shape), kind)
    by = np.where(np.abs(by.astype("f8")) < 0.3, np.ones((), kind), by).astype(kind)
    fmod = {"fmod": 1} if op == "Mod" and (kind in FLOATS or g.chance(0.4)) else {}
    g.node(op, [x, g.given(by)], **fmod)


@draws(1)
def power(g: Drawing):
    if g.chance(0.5):
        x = g.tensor((*FLOATS, "int32", "int64"), below=8.0)
        exponent = g.constant(g.pick([0, 1, 2, 3]), g.pick([str(g.values[x].dtype), "int64", "float32"]))
        g.node("Pow", [x, exponent])
    else:
        x = into(g, POSITIVE)
        g.node("Pow", [x, g.partner(x, 4.0)])


@draws(3)
def compare(g: Drawing):
    op = g.pick(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
    x = g.tensor(ANY if op == "Equal" else NUMBERS)
    g.node(op, [x, g.partner(x)])


@draws(1.5)
def logic(g: Drawing):
    op = g.pick(["And", "Or", "Xor", "Not"])
    x = g.tensor(("bool",))
    g.node(op, [x] if op == "Not" else [x, g.partner(x)])


@draws(1)
def bits(g: Drawing):
    op = g.pick(["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"])
    if op == "BitShift":
        x = g.tensor(("uint8", "uint16", "uint32", "uint64"))
        kind = str(g.values[x].dtype)
        by = g.given(g.rng.integers(0, 7, g.beside(g.values[x].shape), endpoint=True).astype(kind))
        g.node(op, [x, by], direction=g.pick(["LEFT", "RIGHT"]))
    else:
        x = g.tensor(INTEGERS)
        g.node(op, [x] if op == "BitwiseNot" else [x, g.partner(x)])


@draws(0.7)
def special(g: Drawing):
    """Tests for what is no number."""
    g.node(g.pick(["IsNaN", "IsInf"]), [g.tensor(FLOATS)])


@draws(2)
def clip(g: Drawing):
    x = g.tensor(NUMBERS)
    kind = str(g.values[x].dtype)
    low, high = (g.between(0, 2), g.between(2, 4)) if kind.startswith("u") else (g.between(-3, 0), g.between(0, 3))
    bounds = g.pick([(low, high), (low, high), (low, None), (None, high), (None, None)])
    g.node("Clip", [x, *("" if each is None else g.constant(each, kind) for each in bounds)])


@draws(1)
def prelu(g: Drawing):
    x = g.tensor(FLOATS, 1)
    dims = [dim if g.chance(0.5) else 1 for dim in g.values[x].shape]
    slope = g.numbers(tuple(dims[g.between(0, len(dims) - 1) :]), str(g.values[x].dtype), 2)
    g.node("PRelu", [x, g.given(slope)])


def scaled(g: Drawing, name: str, terms: int) -> str:
    """The same, smaller, after a sum of so many terms."""
    kind = str(g.values[name].dtype)
    if kind not in FLOATS:
        return name
    if g.chance(0.7):
        return g.node("Mul", [name, g.constant(float(max(terms, 1)) ** -0.5, kind)])
    return g.node("Tanh", [name]) if g.chance(0.5) else name


@draws(7)
def matmul(g: Drawing):
    kinds = (*FLOATS, "int32", "int64") if g.chance(0.1) else FLOATS
    a = g.tensor(kinds, 1, below=100)
    shape = g.values[a].shape
    inner = shape[-1]

    def goes(other: np.ndarray) -> bool:
        if other.ndim == 0 or other.shape[max(other.ndim - 2, 0)] != inner:
            return False
        try:
            np.broadcast_shapes(other.shape[:-2], shape[:-2])
        except ValueError:
            return False
        return True

    fit = [
        n
        for n, v in g.values.items()
        if v.dtype == g.values[a].dtype and goes(v) and g._fits(n, kinds, 1, 6, 100, None)
    ]
    if fit and g.chance(0.5):
        b = g.pick(fit)
    else:
        lead = g.beside(shape[:-2]) if g.chance(0.4) else ()
        lead = lead or (() if g.chance(0.8) else (g.between(1, 3),))
        other = (inner,) if g.chance(0.1) else (*lead, inner, g.size())
        b = g.given(g.numbers(other, str(g.values[a].dtype), 100))
    scaled(g, g.node("MatMul", [a, b]), inner)


@draws(2)
def gemm(g: Drawing):
    a = g.tensor(FLOATS, 2, 2, below=100)
    kind = str(g.values[a].dtype)
    trans = g.between(0, 1), g.between(0, 1)
    rows, inner = g.values[a].shape[:: -1 if trans[0] else 1]
    columns = g.size()
    b = g.given(g.numbers((columns, inner) if trans[1] else (inner, columns), kind))
    shape = g.pick([None, (columns,), (1, columns), (rows, 1), (rows, columns), (1,), ()])
    c = [] if shape is None else [g.given(g.numbers(shape, kind))]
    factors = {"alpha": g.pick([0.5, 1.0, 2.0]), "beta": g.pick([0.5, 1.0, 0.0])} if g.chance(0.5) else {}
    scaled(g, g.node("Gemm", [a, b, *c], transA=trans[0], transB=trans[1], **factors), inner)


EQUATIONS = [
    *(
        "ij,jk->ik",
        "ij,kj->ik",
        "bij,bjk->bik",
        "bhqd,bhkd->bhqk",
        "bqhd,bkhd->bhqk",
        "ij->ji",
        "ij->i",
        "ii->i",
        "i,j->ij",
    ),
    *("ij,ij->", "bij,jk", "abc,cd->abd", "nchw,co->nohw", "ijk->kij", "i,i->", "...ij,...jk->...ik", "bhwc,hkc->bhwk"),
]


@draws(1.5)
def einsum(g: Drawing):
    equation = g.pick(EQUATIONS)
    terms = equation.split("->")[0].split(",")
    dims = {letter: min(g.size(), 12) for letter in "".join(terms) if letter.isalpha()}
    kind = g.pick(FLOATS[:2])

    def operand(term: str) -> str:
        shape = tuple(dims[letter] for letter in term.replace("...", ""))
        shape = ((2,) if "..." in term else ()) + shape
        fit = [n for n, v in g.values.items() if v.shape == shape and str(v.dtype) == kind]
        return g.pick(fit) if fit and g.chance(0.6) else g.given(g.numbers(shape, kind, 10))

    if not terms:
        raise NotDrawn
    g.node("Einsum", [operand(term) for term in terms], equation=equation)

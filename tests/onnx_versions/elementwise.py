# SPDX-License-Identifier: Apache-2.0
"""Operators on single numbers, and on pairs of them, broadcast as each version says."""

import numpy as np

from onnx_versions.cases import TensorProto, case, f, p, stated

CONSUMED = {"consumed_inputs": [0]}
UNARY = """
    Abs Atan Ceil Celu Cos Elu Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Mish Neg Relu Round Selu Shrink Sigmoid
    Sign Sin Softplus Softsign Swish Tan Tanh ThresholdedRelu Asinh Cosh Sinh Erf IsNaN
"""
case(UNARY, f(2, 3, 4), old=CONSUMED)
case("Log Reciprocal Sqrt", p(2, 3, 4), old=CONSUMED)
case("Acosh", p(3, 4) + 1)
case("Acos Asin Atanh", np.tanh(f(3, 4)))
case("IsInf", np.array([1, -np.inf, np.inf, np.nan], "f4"))
case("IsInf", np.array([1, -np.inf, np.inf, np.nan], "f4"), detect_positive=0)
case("Selu", f(3, 4), last=1, want=lambda x: 1.0507 * np.where(x > 0, x, 1.6732 * (np.exp(x) - 1)))
case("Selu", f(3, 4), alpha=1.5, gamma=2.0)
case("Elu ThresholdedRelu", f(3, 4), alpha=0.5)
case("HardSigmoid", f(3, 4), alpha=0.3, beta=0.4)
case("LeakyRelu", f(3, 4), alpha=0.2)
case("Gelu", f(3, 4), approximate="tanh")
case("Shrink", f(3, 4), lambd=0.3, bias=0.1)
case("Not", f(3, 4) > 0)
case("Hardmax Softmax LogSoftmax", f(5, 6))
FLAT = (f(2, 3, 4, 5),)


def flat(op, axis):
    """These take all axes from one on as one, before version 13."""

    def compute(x):
        rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
        if op == "Hardmax":
            return np.eye(rows.shape[1], dtype="f4")[rows.argmax(1)].reshape(x.shape)
        powers = np.exp(rows - rows.max(1, keepdims=True))
        found = powers / powers.sum(1, keepdims=True)
        return (np.log(found) if op == "LogSoftmax" else found).reshape(x.shape)

    return compute


for op in ("Hardmax", "Softmax", "LogSoftmax"):
    case(op, *FLAT, last=11, want=flat(op, 1))
    for axis in (0, 1, 2, 3):
        case(op, *FLAT, last=11, want=flat(op, axis), axis=axis)
    case(op, *FLAT, first=11, last=11, want=flat(op, 2), axis=-2)
    case(op, *FLAT, first=13, axis=1)


# Two operands

NUMBERS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
ORDER = {"Greater": np.greater, "Less": np.less, "Equal": np.equal}
WHOLE = np.arange(24, dtype="int32").reshape(2, 3, 4) % 5


def pair(op, x, y, last):
    """The forms of broadcasting before version 7: none, of the last axes, of others from one on."""
    compute = {**NUMBERS, **LOGIC, **ORDER, "Pow": np.power}[op]
    part = y[0, :, 0]
    case(op, x, y, last=last, want=compute, old={"consumed_inputs": [0, 0]})
    case(op, x, y[0], last=last, want=compute, broadcast=1)
    case(op, x, y[0, 0], last=last, want=compute, broadcast=1)
    case(op, x, part, last=last, want=lambda a, b: compute(a, b[:, None]), broadcast=1, axis=1)
    case(op, x, y[:, :, 0], last=last, want=lambda a, b: compute(a, b[:, :, None]), broadcast=1, axis=0)
    case(op, x, np.asarray(y[0, 0, 0]), last=last, want=compute, broadcast=1)
    case(op, x, y[0, :1, :], last=last, want=compute, broadcast=1, axis=1)


for op in NUMBERS:
    pair(op, f(2, 3, 4), p(2, 3, 4), 6)
    case(op, f(2, 3, 4), p(3, 1), first=7)
    case(op, f(3, 1), p(2, 1, 4), first=7)
pair("Pow", p(2, 3, 4), f(2, 3, 4), 1)
case("Pow", p(2, 3, 4), f(3, 1), first=7)
for op in LOGIC:
    pair(op, f(2, 3, 4) > 0, f(2, 3, 4) > 0, 1)
    case(op, f(2, 3, 4) > 0, f(3, 1) > 0, first=7)
for op in ("Greater", "Less"):
    pair(op, f(2, 3, 4), f(2, 3, 4), 1)
pair("Equal", WHOLE, WHOLE[:, ::-1].copy(), 1)
case("Greater Less", f(2, 3, 4), f(3, 1), first=7)
case("Equal", WHOLE, WHOLE[0, :, :1] + 1, first=7)
case("GreaterOrEqual LessOrEqual", f(2, 3, 4), f(3, 1))
case(
    "PRelu",
    f(2, 3, 4),
    p(3),
    last=6,
    want=lambda x, s: np.where(x < 0, x * s[:, None], x),
    old={"consumed_inputs": [0, 0]},
)
case("PRelu", f(2, 3, 4), p(1), last=6, want=lambda x, s: np.where(x < 0, x * s, x))
case("PRelu", f(2, 3), p(3), last=6, want=lambda x, s: np.where(x < 0, x * s, x))
case("PRelu", f(2, 3, 4), p(3, 1), first=7)
case("PRelu", f(2, 3, 4), p(4), first=7)
case("Max Min Mean Sum", f(3, 4), f(3, 4), f(3, 4), old={"consumed_inputs": [0, 0, 0]})
case("Max Min Mean Sum", f(3, 4))
case("Max Min Mean Sum", f(3, 4), f(4), f(2, 1, 1), first=8)
case("Mod", f(3, 4), p(3, 4), fmod=1)
case("Mod", WHOLE - 2, WHOLE[0] + 1)
case("BitShift", WHOLE.astype("uint32"), (WHOLE % 3).astype("uint32"), direction="LEFT")
case("BitShift", WHOLE.astype("uint8"), (WHOLE % 3).astype("uint8"), direction="RIGHT")
case("BitwiseAnd BitwiseOr BitwiseXor", WHOLE, WHOLE[:, ::-1].copy() + 3)
case("BitwiseNot", WHOLE)
case("BitCast", f(3, 4), to=int(TensorProto.INT32))
case("Where", f(3, 4) > 0, f(3, 4), f(2, 1, 4))
case("Clip", f(3, 4), last=6, want=lambda x: np.clip(x, -0.5, 0.25), min=-0.5, max=0.25, old=CONSUMED)
case("Clip", f(3, 4), last=6, want=lambda x: np.minimum(x, 0.25), max=0.25)
case("Clip", f(3, 4), last=6, want=lambda x: x)
case("Clip", f(3, 4), stated(-0.5), stated(0.25), first=11)
case("Clip", f(3, 4), None, stated(0.25), first=11)
TYPES = {"FLOAT": "f4", "INT32": "i4", "INT64": "i8", "BOOL": "?", "DOUBLE": "f8", "UINT8": "u1", "FLOAT16": "f2"}
for name, kind in TYPES.items():
    numbers = np.abs(f(3, 4)) * 5 if kind == "u1" else f(3, 4) * 5
    case("Cast", numbers, last=1, want=lambda x, kind=kind: x.astype(kind), to=name)
case("Cast", f(3, 4) * 5, first=6, to=int(TensorProto.INT32))
case("Cast", WHOLE, first=6, to=int(TensorProto.FLOAT))
case("Cast", f(3, 4), first=13, to=int(TensorProto.BFLOAT16), graph=None)
case("CastLike", f(3, 4) * 5, WHOLE[0])
case("Dropout", f(3, 4), last=6, want=lambda x: x, is_test=1, ratio=0.3)
case("Dropout", f(3, 4), last=6, want=lambda x: x, is_test=1, old=CONSUMED)
case("Dropout", f(3, 4), first=7, last=10, ratio=0.3)
case("Dropout", f(3, 4), first=10, last=10, outputs=2)
case("Dropout", f(3, 4), first=12, outputs=2)
case("Dropout", f(3, 4), stated(0.3), stated(False, "?"), first=12)
case("Identity", f(3, 4))
case("RandomNormal RandomUniform", shape=[2, 3], seed=1.0)
case("RandomNormalLike RandomUniformLike Bernoulli", np.tanh(p(3, 4)), seed=1.0)
case("Multinomial", p(2, 5), sample_size=3, seed=1.0)
case("Range", stated(1.0), stated(5.0), stated(1.5))
case("Range", stated(1, "i8"), stated(9, "i8"), stated(2, "i8"))
case("CumSum CumProd", f(3, 4), stated(1, "i8"))
case("CumSum", f(3, 4), stated(-1, "i4"), exclusive=1, reverse=1)
case("EyeLike", f(3, 4), k=1)
case("EyeLike", f(3, 4), dtype=int(TensorProto.INT32))
SQUARE = f(3, 3), f(3)  # whose sizes do not tell one axis from the other
case("Add", *SQUARE, last=6, want=lambda x, y: x + y[:, None], broadcast=1, axis=0)
case("And", *(each > 0 for each in SQUARE), last=1, want=lambda x, y: x & y[:, None], broadcast=1, axis=0)
case("PRelu", f(2, 3, 3), SQUARE[1], last=6, want=lambda x, s: np.where(x < 0, x * s[:, None], x))

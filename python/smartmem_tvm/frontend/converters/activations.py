# SPDX-License-Identifier: Apache-2.0
"""Activation functions of recurrent layers as TIR expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from tvm import ir, tirx

Function = Callable[[ir.Expr], ir.Expr]


def _number(x: ir.Expr, value: float) -> ir.Expr:
    return tirx.const(value, x.ty.dtype)


def _elu(x, alpha):
    return tirx.Select(x < _number(x, 0), _number(x, alpha) * (tirx.exp(x) - _number(x, 1)), x)


def _hard_sigmoid(x, alpha, beta):
    line = _number(x, alpha) * x + _number(x, beta)
    return tirx.max(_number(x, 0), tirx.min(_number(x, 1), line))


def _softplus(x):
    """Return log(1 + exp(x)) without an overflow."""
    return tirx.max(x, _number(x, 0)) + tirx.log(_number(x, 1) + tirx.exp(-tirx.abs(x)))


# Name in lower case -> the function of a number and its parameters, and the defaults of these.
_FUNCTIONS: dict[str, tuple[Callable, tuple[float, ...]]] = {
    "affine": (lambda x, alpha, beta: _number(x, alpha) * x + _number(x, beta), (1.0, 0.0)),
    "elu": (_elu, (1.0,)),
    "hardsigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "leakyrelu": (lambda x, alpha: tirx.Select(x < _number(x, 0), _number(x, alpha) * x, x), (0.01,)),
    "relu": (lambda x: tirx.max(x, _number(x, 0)), ()),
    "scaledtanh": (lambda x, alpha, beta: _number(x, alpha) * tirx.tanh(_number(x, beta) * x), (1.0, 1.0)),
    "sigmoid": (tirx.sigmoid, ()),
    "softplus": (_softplus, ()),
    "softsign": (lambda x: x / (_number(x, 1) + tirx.abs(x)), ()),
    "tanh": (tirx.tanh, ()),
    "thresholdedrelu": (lambda x, alpha: tirx.Select(x > _number(x, alpha), x, _number(x, 0)), (1.0,)),
}


def functions(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Function]:
    """Return the functions of these names; functions with parameters take them from the lists, in order.

    Equal functions are the same object.

    Raises
    ------
    ValueError
        If ONNX has no activation of a name.
    """
    alphas, betas, found = list(alphas), list(betas), []
    for given in names:
        name = given.lower()
        if name not in _FUNCTIONS:
            raise ValueError(f"its activation {given} is none of ONNX's")
        usual = _FUNCTIONS[name][1]
        found.append(_function(name, *(left.pop(0) if left else value for left, value in zip((alphas, betas), usual))))
    return found


@cache
def _function(name: str, *parameters: float) -> Function:
    return lambda x: _FUNCTIONS[name][0](x, *parameters)

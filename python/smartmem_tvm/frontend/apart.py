# SPDX-License-Identifier: Apache-2.0
"""ONNX's libraries abort or hang on some graphs, or take all memory: they are called in a process of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import helper
from smartmem_tvm.frontend.forked import Stopped, at_most

__all__ = ["Stopped", "apart", "at_most", "model_apart"]

_SECONDS = 900  # more than the preparation of any graph takes that compiles at all


def model_apart(
    function: Callable[..., onnx.ModelProto], model: onnx.ModelProto, *arguments, name: str, memory: int
) -> onnx.ModelProto:
    """Return what a function makes of a model with the help of ONNX's libraries.

    Parameters
    ----------
    function : callable
        ``function(model, *arguments)``; see `apart`.
    name : str
        What messages call the model.
    memory : int
        Bytes that it may take.

    Raises
    ------
    UserError
        Those of the function; and if the process crashed, took longer than any model takes, or took more memory.
    """
    try:
        made = apart(_of_bytes, function, model.SerializeToString(), arguments, seconds=_SECONDS, memory=memory)
    except Stopped as err:
        raise UserError(
            f"{name} has a graph that ONNX's libraries fail on ({err}), as where its shapes and attributes contradict "
            f"each other; export it again."
        ) from err
    return onnx.ModelProto.FromString(made)


def _of_bytes(function: Callable, model: bytes, arguments: tuple) -> bytes:
    return function(onnx.ModelProto.FromString(model), *arguments).SerializeToString()


def apart(function: Callable, *arguments, seconds: float, memory: int | None) -> Any:
    """Return what a function returns in a process of its own, a fork of `helper`.

    On a system without forks, and in a program that is no Python interpreter, it is called here.

    Parameters
    ----------
    function : callable
        Of a module that imports nothing of TVM; its arguments and what it returns are picklable.
    seconds : float
        After which it is stopped.
    memory : int, optional
        Bytes that it may take; None: as many as there are.

    Raises
    ------
    Stopped
        If it crashed, took longer or took more.
    UserError
        The function's own.
    RuntimeError
        If it raised anything else; with its traceback.
    """
    if not helper.is_possible():
        return function(*arguments)
    return helper.ask(function, arguments, seconds, memory)

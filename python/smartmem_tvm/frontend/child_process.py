# SPDX-License-Identifier: Apache-2.0
"""Call ONNX's libraries in a separate process: on some graphs they abort, hang or take all memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import helper
from smartmem_tvm.frontend.forked import Stopped, at_most

__all__ = ["Stopped", "at_most", "in_child_process", "model_in_child_process"]

_SECONDS = 900  # longer than the preparation of any graph that can be compiled


def model_in_child_process(
    function: Callable[..., onnx.ModelProto], model: onnx.ModelProto, *arguments, name: str, memory: int
) -> onnx.ModelProto:
    """Return the model that a function makes from a model with ONNX's libraries.

    Parameters
    ----------
    function : callable
        ``function(model, *arguments)``; see `in_child_process`.
    name : str
        The model's name in messages.
    memory : int
        Bytes that it may take.

    Raises
    ------
    UserError
        Those of the function; and if the process crashed, took longer than any model takes, or took more memory.
    """
    try:
        made = in_child_process(
            _of_bytes, function, model.SerializeToString(), arguments, seconds=_SECONDS, memory=memory
        )
    except Stopped as err:
        raise UserError(
            f"{name} has a graph that ONNX's libraries fail on ({err}), as where its shapes and attributes contradict "
            f"each other; export it again."
        ) from err
    return onnx.ModelProto.FromString(made)


def _of_bytes(function: Callable, model: bytes, arguments: tuple) -> bytes:
    return function(onnx.ModelProto.FromString(model), *arguments).SerializeToString()


def in_child_process(function: Callable, *arguments, seconds: float, memory: int | None) -> Any:
    """Call a function in a separate process, a fork of `helper`, and return its result.

    On a system without forks, or in a program that is not a Python interpreter, the function is called in this process.

    Parameters
    ----------
    function : callable
        A function of a module that does not import TVM; its arguments and its result can be pickled.
    seconds : float
        The time after which it is stopped.
    memory : int, optional
        Bytes that it may allocate; None for no limit.

    Raises
    ------
    Stopped
        If it crashed, ran out of time or ran out of memory.
    UserError
        If the function raised it.
    RuntimeError
        If the function raised anything else; holds its traceback.
    """
    if not helper.is_possible():
        return function(*arguments)
    return helper.ask(function, arguments, seconds, memory)

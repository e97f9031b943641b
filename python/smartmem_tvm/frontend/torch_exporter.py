# SPDX-License-Identifier: Apache-2.0
"""torch's exporter to ONNX, without what it does more often than needed."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def export(program: ExportedProgram) -> torch.onnx.ONNXProgram:
    """Translate a program with torch's exporter, and optimize it once, where torch does so twice.

    Without these optimizations folding takes several times as long: here the weights are at hand.

    Raises
    ------
    Exception
        What torch's exporter raises, of many kinds, if it does not know an operator.
    """
    with silence():
        from onnxscript import optimizer

        exported = _translate(program)
        optimizer.optimize(exported.model, num_iterations=1)
        return exported


@contextmanager
def silence() -> Iterator[None]:
    """Keep torch from logging what it leaves out, and whole tracebacks of what becomes one sentence here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _translate(program: ExportedProgram) -> torch.onnx.ONNXProgram:
    """As ``torch.onnx.export``, which makes its table of operators anew in each call: half a second."""
    import torch.onnx

    options: dict[str, Any] = {"verbose": False, "optimize": False}
    try:
        from torch.onnx._internal.exporter import _core

        table, opset = _table()
    except (ImportError, AttributeError, TypeError):  # these names may move between versions of torch
        return torch.onnx.export(program, dynamo=True, **options)
    return _core.export(program, registry=table, opset_version=opset, **options)


@functools.cache
def _table() -> tuple[Any, int]:
    """The operators that torch's exporter knows, and the opset that it writes; nothing here changes them."""
    from torch.onnx import _constants
    from torch.onnx._internal.exporter import _registration

    opset = _constants.ONNX_DEFAULT_OPSET
    return _registration.ONNXRegistry.from_torchlib(opset_version=opset), opset

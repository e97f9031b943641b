# SPDX-License-Identifier: Apache-2.0
"""Call torch's exporter to ONNX without its repeated work."""

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
    """Translate a program with torch's exporter, and optimize it once instead of twice as torch does.

    Without the optimization, folding afterwards takes several times as long: here the weights are already loaded.

    Raises
    ------
    Exception
        Errors of torch's exporter, of many types, for an unknown operator.
    """
    with silence():
        from onnxscript import optimizer

        exported = _translate(program)
        optimizer.optimize(exported.model, num_iterations=1)
        return exported


@contextmanager
def silence() -> Iterator[None]:
    """Keep torch from logging skipped steps and tracebacks of errors that become one sentence here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _translate(program: ExportedProgram) -> torch.onnx.ONNXProgram:
    """Like ``torch.onnx.export``, which builds its table of operators in each call: half a second."""
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
    """Return the table of operators of torch's exporter and the opset that it writes; both stay unchanged."""
    from torch.onnx import _constants
    from torch.onnx._internal.exporter import _registration

    opset = _constants.ONNX_DEFAULT_OPSET
    return _registration.ONNXRegistry.from_torchlib(opset_version=opset), opset

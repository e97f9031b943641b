# SPDX-License-Identifier: Apache-2.0
"""Compile a program of torch, and refuse one whose compiled function has other types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm

from ..deploy.arguments import TensorKind
from ..deploy.build import compile
from ..deploy.compiled import Compiled
from ..deploy.outputs import not_of_their_own
from ..errors import shape_text
from ..ir.public_functions import MAIN
from ..options import Options
from .kept_programs import Ready, shared
from .open_lengths import CapacityProgram
from .open_program import SizedProgram
from .program import Program, TensorType, outside_of_torch_compile
from .refusals import Refusal


def compile_program(
    program: Program | SizedProgram, target: tvm.target.Target, options: Options
) -> tuple[Compiled, Ready]:
    """Compile a program that passes `refusals.check_program`.

    Raises
    ------
    Refusal, UserError
        If it cannot be compiled, or the compiled function takes or returns other types.
    """
    with outside_of_torch_compile():
        compiled = compile(program.module(), target, options)
    _require_same_types(compiled, program)
    weights = [shared(each) for each in compiled.weights]
    copied = not_of_their_own(compiled.graph[MAIN])
    at = program.at if isinstance(program, CapacityProgram) else None
    ready = Ready(compiled.executable, weights, program.inputs, program.results, copied, at=at)
    return compiled, replace(ready, streamed=compiled) if compiled.weight_streams else ready


def _require_same_types(compiled: Compiled, program: Program | SizedProgram) -> None:
    """Refuse other types than the program's: ONNX may lose narrow types, and an exporter may drop inputs."""
    params = [param.kind for param in compiled.functions[MAIN]]
    if [*map(_kind, params)] != program.takes:
        raise Refusal(f"it takes {_listing(program.takes)}, and what is compiled {', '.join(map(str, params))}")
    ty = compiled.graph[MAIN].ret_ty
    found = [TensorType(tuple(map(int, each.shape)), str(each.dtype.dtype)) for each in getattr(ty, "fields", [ty])]
    if found != program.returns:
        raise Refusal(f"it returns {_listing(program.returns)}, and what is compiled {_listing(found)}")


def _kind(kind: object) -> TensorType | None:
    is_plain = isinstance(kind, TensorKind) and not kind.stated and kind.dims is not None
    return TensorType(kind.dims, kind.dtype) if is_plain else None


def _listing(types: Sequence[TensorType]) -> str:
    return ", ".join(f"{shape_text(shape)} {dtype}" for shape, dtype in types)

# SPDX-License-Identifier: Apache-2.0
"""``smartmem export``: write a compiled model together with a runner for machines without Python."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from . import compile as compile_command
from .console import Result, megabytes, step, table
from .model import add_compilation, add_memory_budget, add_model
from .several_sizes import has_range

if TYPE_CHECKING:
    from rich.console import Console

NAME = "export"
HELP = "put a compiled model, a program that runs it without Python and its libraries into one folder"
EXAMPLE = """\
  smartmem export swin --runner                                   a folder of `smartmem compile`: makes swin_runner
  smartmem export models/swin_t.onnx --runner -o phone --target adreno-740 --runtime build-android
  swin_runner/smartmem_run swin_runner/model --repeat 100         latency with percentiles

The program and its C interface (smartmem_run.h) are built by CMake and a C++ compiler for the machine that the model
was compiled for, against TVM's runtime library alone. For another kind of machine than this one, --runtime names a
folder with libtvm_runtime.so and libtvm_ffi.so for it. Nothing in the result depends on where it is: copy it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser, "a folder made by `smartmem compile`, or an ONNX file")
    text = "the program that runs the model without Python (the only kind of export there is)"
    parser.add_argument("--runner", action="store_true", required=True, help=text)
    text = "folder to write (default: the model's name and _runner)"
    parser.add_argument("-o", "--output", metavar="DIR", help=text)
    text = "a folder with TVM's runtime libraries for the machine that the model was compiled for"
    parser.add_argument("--runtime", metavar="FOLDER", help=text)
    add_compilation(parser)
    add_memory_budget(parser)


def execute(args: argparse.Namespace) -> Result:
    """Compile a model file if given, build the runner, and write the folder."""
    from ..remote.runner import check_output, export_runner

    model, runtime = Path(args.model), None if args.runtime is None else Path(args.runtime)
    output = Path(args.output or f"{model.resolve().stem}_runner")
    if runtime is not None and not runtime.is_dir():
        raise UserError(f"--runtime {runtime} is no folder; give one with TVM's runtime libraries.")
    check_output(output)
    if has_range(args):
        raise UserError(
            f"--shape {' '.join(args.shape)} leaves a size open, and the program without Python takes known sizes: "
            f"give a list, as in --shape 'x:{{1,4,8}},3,224,224'."
        )
    with tempfile.TemporaryDirectory() as place:
        folder = model if model.is_dir() else Path(place) / "compiled"
        if folder is not model:
            compile_command.execute(argparse.Namespace(**{**vars(args), "output": str(folder)}))
        with step(f"Building {output}"):
            data = {"model": args.model, "folder": str(output), **export_runner(folder, output, runtime)}
    return Result(data, lambda console: _render(console, data))


def _render(console: Console, data: dict) -> None:
    rows = [(name, megabytes(size)) for name, size in data["files"].items()]
    console.print(table(data["folder"], ("file", "size"), rows, numbers=(1,)))
    where = f"on a machine of {data['host']}" if data["host"] else "here, or on a machine with this one's kind of CPU"
    console.print(f"Run it with: cd {data['folder']} && {data['command']} --repeat 100   ({where})")

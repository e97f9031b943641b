# SPDX-License-Identifier: Apache-2.0
"""The ``smartmem`` command: its parser and its exit codes; each sub-command has its own file.

A command module has ``NAME``, ``HELP``, ``EXAMPLE``, ``add_arguments(parser)`` and ``execute(args) -> Result``.
Commands import TVM inside `execute`, so that ``smartmem --help`` answers at once and ``smartmem doctor`` works even if
TVM cannot be imported.

Exit codes: 0 success, 1 a check failed (``verify`` out of tolerance, ``doctor`` found a problem), 2 bad usage, bad
input or an unexpected error, 130 interrupted, 141 the reader of the output closed the pipe.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
from functools import partial
from types import ModuleType

from .._version import __version__, version_problem
from ..errors import UserError
from . import (
    accesses,
    bench,
    devices,
    doctor,
    explain,
    export,
    export_graph,
    generate,
    inspect,
    isa,
    measure,
    opt,
    phone,
    plan,
    profile,
    records,
    reduce,
    report,
    roofline,
    rpc,
    run,
    stats,
    tune,
    verify,
)
from . import compile as compile_command
from .console import emit
from .ignored_options import refuse_ignored
from .process_setup import prepared_process
from .several_sizes import refuse_taken_apart

COMMANDS: tuple[ModuleType, ...] = (
    compile_command,
    run,
    generate,
    verify,
    explain,
    stats,
    accesses,
    isa,
    plan,
    inspect,
    profile,
    tune,
    records,
    bench,
    roofline,
    report,
    export,
    export_graph,
    opt,
    reduce,
    rpc,
    devices,
    phone,
    measure,
    doctor,
)
_MAY_BE_EMPTY = ("--profiles", "--records")  # an empty value means none, as in their environment variables
INTERRUPTED = 130
PIPE_CLOSED = 141

_DESCRIPTION = """\
Compile ONNX models and torch's exported programs (.pt2) with TVM without a single layout kernel: reshapes, transposes,
slices and the like are eliminated into the kernels around them, and what is left is fused and scheduled for this
machine's CPU."""
_EXAMPLES = """\
first steps:
  smartmem doctor                                is everything installed that is needed?
  smartmem stats models/swin_t.onnx              TVM's default against smartmem: kernels and bytes moved
  smartmem verify models/swin_t.onnx             same results as ONNX Runtime?
  smartmem compile models/swin_t.onnx -o out     compile once ...
  smartmem run out                               ... run many times

`smartmem COMMAND --help` explains a command."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line, without slow imports."""
    raw = argparse.RawDescriptionHelpFormatter
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--traceback",
        action="store_true",
        default=argparse.SUPPRESS,
        help="on errors, show where they come from",
    )
    parser = argparse.ArgumentParser(
        "smartmem", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=raw, parents=[common]
    )
    parser.add_argument("--version", action="version", version=f"smartmem {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS:
        sub = commands.add_parser(
            module.NAME,
            help=module.HELP,
            description=f"{module.HELP[0].upper()}{module.HELP[1:]}.",
            epilog=f"example:\n{module.EXAMPLE}",
            formatter_class=raw,
            parents=[common],
        )
        module.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
        sub.set_defaults(
            execute=module.execute, needs_tvm=module is not doctor, refuse=partial(refuse_ignored, module.NAME, sub)
        )
    return parser


_COLLECT_AFTER = 20_000  # newly allocated objects before a garbage collection


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (``sys.argv`` by default) and return its exit code."""
    args = argparse.Namespace(traceback=False)
    try:
        return _run(args, argv)
    except UserError as error:
        return _fail(args, str(error))
    except KeyboardInterrupt:
        print("smartmem: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit: redirect it to a valid file.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return PIPE_CLOSED
    except Exception as error:
        first = (str(error).strip().splitlines() or ["no message"])[0]
        kind = type(error).__name__
        return _fail(args, f"unexpected {kind} ({first}); run again with --traceback and report what it prints.")


def _run(args: argparse.Namespace, argv: list[str] | None) -> int:
    given = sys.argv[1:] if argv is None else argv
    _check_none_empty(given)
    refuse_taken_apart(given)
    try:
        build_parser().parse_args(argv, namespace=args)
    except SystemExit as done:  # --help, --version, or wrong usage
        sys.stdout.flush()
        return int(done.code or 0)
    args.refuse(args)
    if args.needs_tvm and version_problem() is not None:
        raise UserError(version_problem())
    # Reference counts free the results of passes; a search for cycles would only visit more objects each time.
    gc.set_threshold(_COLLECT_AFTER)
    with prepared_process(show_warnings=args.traceback):
        result = args.execute(args)
    emit(result, args.json)
    if result.follow is not None:
        result.follow()
    return result.exit_code


def _check_none_empty(argv: list[str]) -> None:
    """Refuse empty arguments, which come from unset variables of the shell."""
    for number, each in enumerate(map(str, argv)):
        before = str(argv[number - 1]) if number else ""
        name = each.removesuffix("=") if each.startswith("-") else before if before.startswith("-") else "An argument"
        if (not each or (each.startswith("--") and each.endswith("="))) and name not in _MAY_BE_EMPTY:
            raise UserError(f"{name} is empty; give it a value, or leave it out.")


def _fail(args: argparse.Namespace, sentence: str) -> int:
    if args.traceback:
        traceback.print_exc()
    print("smartmem: error:", " ".join(sentence.split()), file=sys.stderr)
    return UserError.EXIT_CODE

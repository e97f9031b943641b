# SPDX-License-Identifier: Apache-2.0
"""``smartmem reduce``: write the smallest part of a model that still fails."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..whole_file import check_output, whole
from . import argument_types
from .arrays import save_npz
from .console import Result, step, table
from .model import TECHNIQUES, add_compilation, add_input, add_model, make_inputs, options, read_model
from .trial import Failure, Trials
from .verify import add_tolerances, usual_tolerance

if TYPE_CHECKING:
    from rich.console import Console

    from ..tools.reduce import Case

NAME = "reduce"
HELP = "cut a failing model down to the smallest part that still fails, and write it"
EXAMPLE = """\
  smartmem reduce model.onnx -o small.onnx                     wrong, refused, internal error, crash or time-out
  smartmem reduce model.onnx --check outputs                   a pass that changes what the model computes
  smartmem reduce model.onnx --command ./still_fails.sh        as your script says

small.npz, beside small.onnx, gets its input. Trials are in a process of their own. A part counts if it fails as the
model does: the same kind of failure, and the same error but for names and numbers. --command is run with the file
of a part as its last argument, the input beside it (model.onnx, model.npz); exit code 0 says that it still fails."""

_PATIENCE = 300.0  # seconds
_ENDING = ".onnx"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="default: NAME_reduced.onnx in this folder")
    add_input(parser)
    text = "judges instead of this package: a program with arguments, which ends with exit code 0 if FILE still fails"
    parser.add_argument("--command", metavar="CMD", help=text)
    text = f"limit of one trial; a longer one is a time-out (default: {_PATIENCE:g})"
    parser.add_argument("--timeout", type=argument_types.seconds, default=_PATIENCE, metavar="SECONDS", help=text)
    add_tolerances(parser)
    add_compilation(parser)


def execute(args: argparse.Namespace) -> Result:
    """Find out how the model fails, reduce it, and write the result."""
    from ..frontend import onnx_file
    from ..frontend.inputs import id_limits
    from ..tools.reduce import Case, reduce_model

    output = Path(args.output or f"{Path(args.model).stem}_reduced{_ENDING}")
    for path, ending in ((output, _ENDING), (output.with_suffix(".npz"), "")):
        check_output(path, ending, Path(args.input or args.model) if ending == "" else Path(args.model))
    options(args)  # wrong arguments are not a failure of the model
    model = read_model(args)
    onnx_file.refuse_more_than_protobuf(model)
    args.rtol, _ = usual_tolerance(args, model.proto)
    arrays = dict(zip(model.inputs, make_inputs(args, model.inputs, id_limits(model.proto), model.values)))
    model.weights.fill(model.proto)
    case, trials = Case(model.proto, arrays), Trials(args)
    try:
        with step(f"Trying {args.model}"):
            failure = trials.failure(case.model, case.arrays)
        if failure is None:
            raise UserError(_does_not_fail(args))
        count = 0

        def fails(proto, values) -> bool:
            nonlocal count
            count += 1
            return failure.same(trials.failure(proto, values))

        small = reduce_model(case.model, case.arrays, fails, trials.evaluate, _tell)
    finally:
        trials.close()
    _write(output, small)
    data = _data(args, output, case, small, failure, count)
    return Result(data, lambda console: _render(console, data))


def _does_not_fail(args: argparse.Namespace) -> str:
    if args.command is not None:
        return f"{args.model} does not fail: --command does not end with exit code 0 for it; nothing is reduced."
    return (
        f"{args.model} does not fail: it compiles, and its outputs are those of ONNX Runtime within {args.rtol:g}; "
        f"give the options, the input or the --command that it fails with."
    )


def _tell(nodes: int, trials: int) -> None:
    if sys.stderr.isatty():
        print(f"{nodes} nodes after {trials} trials", file=sys.stderr)


def _write(path: Path, case: Case) -> None:
    with whole(path) as partial, whole(path.with_suffix(".npz")) as arrays:
        partial.write_bytes(case.model.SerializeToString())
        save_npz(arrays, case.arrays)


def _data(args: argparse.Namespace, output: Path, before: Case, after: Case, failure: Failure, trials: int) -> dict:
    from ..frontend.walk_graph import count_nodes

    return {
        "model": args.model,
        "output": str(output),
        "failure": failure.kind,
        "message": failure.message,
        "nodes": [count_nodes(case.model)[0] for case in (before, after)],
        "bytes": [case.model.ByteSize() for case in (before, after)],
        "operators": sorted({node.op_type for node in after.model.graph.node}),
        "trials": trials,
        "command": _command(args, output),
    }


def _command(args: argparse.Namespace, output: Path) -> str:
    """Return the command that reproduces the failure of the written part."""
    if args.command is not None:
        return f"{args.command} {shlex.quote(str(output))}"
    words = ["smartmem", "verify", str(output), "--input", str(output.with_suffix(".npz"))]
    words += ["--rtol", f"{args.rtol:g}"] + (["--atol", f"{args.atol:g}"] if args.atol else [])
    usual_values = {"target": "cpu", "precision": "float32", "weights": "stored", "activations": "stored"}
    for name in (*usual_values, "profiles", "records", "check"):
        value, usual = getattr(args, name), usual_values.get(name)
        if value != usual:
            words += (
                [{"profiles": "--no-profiles", "records": "--no-tuned"}[name]] if value == "" else [f"--{name}", value]
            )
    words += [word for name in args.float_weights for word in ("--float", name)]
    words += [f"--no-{name.replace('_', '-')}" for name in TECHNIQUES if not getattr(args, name)]
    words += ["--layout", args.layout] if isinstance(args.layout, str) else []
    return shlex.join(words)


def _render(console: Console, data: dict) -> None:
    rows = [(name, *data[name]) for name in ("nodes", "bytes")]
    console.print(table(data["model"], ("", "before", "after"), rows, numbers=(1, 2)))
    console.print(
        f"Fails still: {data['failure']} ({data['message'].rstrip('.')}).\n"
        f"Operators left: {', '.join(data['operators'])}. {data['trials']} parts tried.\n"
        f"Written to {data['output']}, its input beside it. To see it fail:\n"
        f"  {data['command']}"
    )

# SPDX-License-Identifier: Apache-2.0
"""``smartmem verify``: compare the results with those of ONNX Runtime or torch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import UserError, shape_text
from ..peak_memory import peak_mb
from ..tables.precisions import OF_BFLOAT16, OF_HALF, PRECISIONS
from . import argument_types
from .console import Result, peak_text, step, table
from .model import (
    add_cache,
    add_compilation,
    add_input,
    add_memory_budget,
    add_model,
    compile_model,
    make_inputs,
    with_positions,
)
from .several_sizes import import_sizes, size_text

if TYPE_CHECKING:
    import numpy as np
    import onnx
    import tvm
    from rich.console import Console

NAME = "verify"
HELP = "check that the compiled model computes what ONNX Runtime computes, and torch for its own programs"
EXAMPLE = """\
  smartmem verify models/swin_t.onnx                       on random input, within 1e-4 (half precision: 1e-2)
  smartmem verify model.onnx --input x.npz --rtol 1e-3     on your input, less strictly
  smartmem verify model.onnx --shape 'x:{1,4},3,224,224'   each of several sizes, compiled into one model
  smartmem verify model.onnx --shape x:1..64,3,224,224     an open batch: 1, 64 and some drawn between

An output passes if its largest absolute error is at most ATOL + RTOL * (its largest magnitude); integers and
booleans must be equal, NaN and infinities in the same places. One that does not pass is computed a third time, in
float64 by ONNX's own implementation: it passes if it is right and the reference is not, or if both are as far from the
exact numbers and no --rtol is given. The exit code is 1 if an output does not pass.

With --weights int8 or int4 the model is compiled three times: with the weights of the file, which is compared with the
reference; with the rounded weights as floats; and with their integers, which is compared with those floats. What
rounding itself changes is shown, and fails nothing. The comparison with the reference keeps rows in floats;
the change by rows in bytes is shown, too."""

ROUNDED = "the model with the rounded weights as floats"
_COLUMNS = ("output", "shape", "dtype", "max abs error", "max rel error", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    add_input(parser)
    add_tolerances(parser)
    add_compilation(parser)
    add_memory_budget(parser)
    add_cache(parser)


def add_tolerances(parser: argparse.ArgumentParser) -> None:
    """Add ``--rtol`` and ``--atol``."""
    parser.add_argument(
        "--rtol",
        "--tolerance",
        type=argument_types.tolerance,
        help="error allowed relative to the output's largest magnitude (default: by the numbers computed with, "
        f"{_said()}; models in float16 and bfloat16 as half and bfloat16)",
    )
    text = "absolute error allowed on top (default: 0)"
    parser.add_argument("--atol", type=argument_types.tolerance, default=0.0, help=text)


def _said() -> str:
    return ", ".join(f"{name} {precision.tolerance:g}" for name, precision in PRECISIONS.items())


def usual_tolerance(args: argparse.Namespace, proto: onnx.ModelProto) -> tuple[float, str]:
    """Return the relative tolerance and its reason: ``--rtol``, otherwise that of the coarsest type of numbers.

    The types are that of the precision and those that the model itself computes in.
    """
    from ..frontend.walk_graph import computes_in_half
    from ..frontend.without_bfloat16 import has_bfloat16

    if args.rtol is not None:
        return args.rtol, "as --rtol says"
    own = OF_BFLOAT16 if has_bfloat16(proto) else OF_HALF if computes_in_half(proto) else None
    coarsest = max([PRECISIONS[args.precision], *filter(None, [own])], key=lambda each: each.tolerance)
    return coarsest.tolerance, coarsest.why


def execute(args: argparse.Namespace) -> Result:
    """Run the model and the reference on the same input and compare each output."""
    from ..comparison import compare
    from ..frontend import output_names, reference_name, run_reference
    from ..frontend.inputs import id_limits
    from ..ir.codes import ASKED, WEIGHTS
    from ..ir.public_functions import MAIN
    from ..ir.several_sizes import size_functions

    read = import_sizes(args)  # first: ONNX Runtime crashes on some files that are refused here
    mod, models = read.module, read.to_verify(args.seed)
    names = output_names(mod, (size_functions(mod) or [MAIN])[0])
    if len(models) > 1 and args.input is not None:
        raise UserError("--input has arrays of one size, and several sizes are verified: leave it out, or give one.")
    arrays = [make_inputs(args, each.inputs, id_limits(each.proto), each.values) for each in models]
    if args.input is None:
        arrays = [with_positions(each, given) for each, given in zip(models, arrays, strict=True)]
    rtol, why = usual_tolerance(args, models[0].proto)
    reference = reference_name(models[0])
    with step(f"Running {reference}"):
        expected = [run_reference(each, dict(zip(each.inputs, given))) for each, given in zip(models, arrays)]
    texts = [f" of {size_text(each.inputs)}" if len(models) > 1 else "" for each in models]
    del models, read  # frees their weights, which the module holds in another form
    asked = any(gvar.name_hint.startswith(ASKED) for gvar in mod.get_global_vars())
    in_bytes = args.activations == "int8" or (asked and args.activations == "stored")
    unrounded = {"weights": WEIGHTS[0], "float_weights": (), "activations": "float"}
    rounds = in_bytes or args.weights not in WEIGHTS
    got = _results(args, mod, arrays, **(unrounded if rounds else {}))
    outputs: dict[str, dict] = {}
    for number, text in enumerate(texts):
        both = got[number], expected[number]
        if not len(both[0]) == len(both[1]) == len(names):
            raise UserError(f"{args.model} has {len(both[1])} outputs for {reference} and {len(both[0])} compiled.")
        found = {name: compare(*pair, rtol, args.atol) for name, *pair in zip(names, *both)}
        if not all(each["ok"] for each in found.values()):
            found = _judged(args, number, found, arrays[number], *both, (rtol, args.atol))
        outputs |= {name + text: each for name, each in found.items()}
    rounding: dict[str, float] = {}
    if args.weights not in WEIGHTS:
        floats = {"activations": "float"}
        wanted, got = (_results(args, mod, arrays, rounded_floats=each, **floats) for each in (True, False))
        for number, text in enumerate(texts):
            for name, *both in zip(names, got[number], wanted[number], strict=True):
                outputs[f"{name}{text}, {args.weights}"] = compare(*both, rtol, args.atol, ROUNDED)
    if rounds:
        got = _results(args, mod, arrays) if in_bytes else got
        for number, text in enumerate(texts):
            for name, *both in zip(names, got[number], expected[number], strict=True):
                rounding[name + text] = compare(*both, rtol, args.atol)["max_rel_err"]
    data = {
        "model": args.model,
        "reference": reference,
        "ok": all(each["ok"] for each in outputs.values()),
        "max_abs_err": _worst(outputs, "max_abs_err"),
        "max_rel_err": _worst(outputs, "max_rel_err"),
        "rtol": rtol,
        "rtol_reason": why,
        "atol": args.atol,
        "peak_mb": peak_mb(),
        "outputs": outputs,
        **({"rounding": rounding} if rounds else {}),
    }
    return Result(data, lambda console: _render(console, data), exit_code=0 if data["ok"] else 1)


def _results(args: argparse.Namespace, mod: tvm.IRModule, arrays: list, **changes: object) -> list[list[np.ndarray]]:
    """Return the outputs of each size of the model, compiled with some options changed."""
    compiled = compile_model(args, mod, **changes)
    with step("Running the compiled model"):
        return [compiled.run_whole(given) for given in arrays]


def _judged(
    args: argparse.Namespace, number: int, outputs: dict, arrays: list, got: list, expected: list, allowed: tuple
) -> dict:
    """Return the outputs of the size of this number, and for those that differ, which of the two sides is inexact."""
    from ..comparison import judge_difference
    from ..frontend import run_exactly

    model = import_sizes(args).to_verify(args.seed)[number]
    if model.program is not None:
        return outputs  # torch defines its program; the exported graph is no reference
    with step("Computing what differs a third time, in float64"):
        exact = run_exactly(model, dict(zip(model.inputs, arrays)))
    if exact is None:
        return outputs
    return {
        name: judge_difference(errors, *four, allowed, strict=args.rtol is not None)
        for (name, errors), *four in zip(outputs.items(), got, expected, *exact, strict=True)
    }


def _worst(outputs: dict[str, dict], key: str) -> float:
    return max((each[key] for each in outputs.values()), default=0.0)


def _render(console: Console, data: dict) -> None:
    rows = [
        (
            name,
            shape_text(each["shape"]),
            each["dtype"],
            f"{each['max_abs_err']:.2e}",
            f"{each['max_rel_err']:.2e}",
            each.get("reason", "ok" if each["ok"] else "out of tolerance"),
        )
        for name, each in data["outputs"].items()
    ]
    console.print(table(f"{data['model']} against {data['reference']}", _COLUMNS, rows, numbers=(3, 4)))
    third = [each["exact"] for each in data["outputs"].values() if "exact" in each]
    verdict = "NOT the same within" if not data["ok"] else "Right within" if third else "The same within"
    for name, error in data.get("rounding", {}).items():
        console.print(f"Rounding changes {name} by {error:.2e} of its largest magnitude.")
    console.print(
        f"{verdict} rtol {data['rtol']:g} (of the largest magnitude: {data['rtol_reason']}), atol {data['atol']:g}; "
        f"{peak_text(data)}."
    )

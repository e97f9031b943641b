# SPDX-License-Identifier: Apache-2.0
"""``smartmem opt``: run single passes, by name, on a model or on a module that ``--dump-dir`` wrote."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, reason_of
from .console import Result, step, table
from .model import (
    TARGET_HELP,
    TECHNIQUES,
    add_check,
    add_profiles,
    add_records,
    add_shapes,
    import_model,
    open_profiles,
    open_records,
)

if TYPE_CHECKING:
    import tvm
    from rich.console import Console

    from ..options import Options

NAME = "opt"
HELP = "run passes by name on a model or on a dumped module, and print the module after them"
EXAMPLE = """\
  smartmem opt --list                                  all passes, with their options
  smartmem opt --list --target adreno-740              the pipeline of a target, pass by pass
  smartmem opt model.onnx --pass legalize,eliminate-layout
  smartmem compile model.onnx -o out --dump-dir dump
  smartmem opt dump/05_eliminate.json --pass fuse-rows,fuse-operators -o fused.json
  smartmem opt fused.json --pass 'fuse-attention{on_chip_bytes=65536}' --json

FILE is an ONNX file, a program of torch (.pt2), a module as --dump-dir writes it (.json), or TVMScript (.py),
expressions in which are executed as Python. Passes such as relax.FoldConstant run parts of a module: open modules of
others only if you trust them.
In the .json files of --dump-dir, the numbers of large weights are drawn anew, with their mean, spread and bounds."""

# Options whose switch to turn a pass off is not --no- and the option's name.
_SWITCHES = {
    "caches": "no --cache",
    "memory_budget": "no --memory-budget",
    "precision": "--precision float32",
    "records": "--no-tuned",
}
_SCRIPT, _MODULE = ".py", ".json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    text = "an ONNX or .pt2 file, or a module (.json, .py)"
    parser.add_argument("model", nargs="?", metavar="FILE", help=text)
    text = "passes, or phases of the target's pipeline, in the order in which they run (see --list)"
    parser.add_argument("--pass", dest="passes", metavar="NAME,...", help=text)
    text = "print all passes, with --target the pipeline of the target"
    parser.add_argument("--list", action="store_true", help=text)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the module here: .py to be read, .json for opt")
    text = "print the module on stdout, which is done anyway without --output and --json"
    parser.add_argument("--print", dest="print_module", action="store_true", help=text)
    parser.add_argument("--target", help=TARGET_HELP)
    add_shapes(parser)
    add_profiles(parser)
    add_records(parser)
    add_check(parser)
    parser.add_argument("--no-simplify", dest="simplify", action="store_false", help=TECHNIQUES["simplify"])


def execute(args: argparse.Namespace) -> Result:
    """Print the passes, or run some."""
    if args.list:
        if args.model is not None:
            raise UserError(f"--list takes no file: leave {args.model} out, or --list.")
        return _pipeline(args.target) if args.target is not None else _registry()
    if args.model is None or args.passes is None:
        raise UserError("opt needs a file and --pass: see `smartmem opt --list` for the names of passes.")
    return _run(args)


def _registry() -> Result:
    from ..pass_registry import PASSES

    found = [
        {
            "pass": each.name,
            "summary": each.summary,
            "section": each.section,
            "options": each.own,
            "needs_target": each.needs_target,
        }
        for each in PASSES.values()
    ]
    return Result({"passes": found}, lambda console: _render_registry(console, found))


def _render_registry(console: Console, found: list[dict]) -> None:
    rows = []
    for each in found:
        options = ",".join(f"{key}={value}" for key, value in each["options"].items())
        name = each["pass"] + (f"{{{options}}}" if options else "")
        rows.append((name, each["summary"], each["section"], "yes" if each["needs_target"] else ""))
    console.print(table("Passes", ("name{options}", "what it does", "paper", "by target"), rows))


def _pipeline(text: str) -> Result:
    from ..pipeline import phases_of
    from ..target import parse_target

    found = [
        {"phase": phase.name, "pass": name, "switched_off_by": _switch(phase.option_of(name))}
        for phase in phases_of(parse_target(text))
        for name in phase.passes
    ]
    data = {"target": text, "pipeline": found}
    return Result(data, lambda console: _render_pipeline(console, data))


def _switch(option: str | None) -> str | None:
    """Return the argument that turns off this field of `Options`."""
    return None if option is None else _SWITCHES.get(option, f"--no-{option.replace('_', '-')}")


def _render_pipeline(console: Console, data: dict) -> None:
    rows, last = [], None
    for number, each in enumerate(data["pipeline"], start=1):
        phase = each["phase"]
        rows.append((number, phase if phase != last else "", each["pass"], each["switched_off_by"] or ""))
        last = phase
    title = f"Pipeline for {data['target']}"
    console.print(table(title, ("", "phase", "pass", "switched off by"), rows, numbers=(0,)))


def _run(args: argparse.Namespace) -> Result:
    from ..module_file import module_text, write_module
    from ..options import Options
    from ..target import parse_target
    from ..whole_file import check_output

    target = parse_target(args.target)
    output = Path(args.output) if args.output is not None else None
    if output is not None:
        check_output(output, source=Path(args.model))
        if output.suffix not in (_SCRIPT, _MODULE):
            raise UserError(f"{output} ends neither in {_SCRIPT} nor in {_MODULE}: give it one of these endings.")
    options = Options(
        simplify=args.simplify, profiles=open_profiles(args), records=open_records(args), check=args.check
    )
    passes = _passes(args.passes, target, options)
    mod, done = _applied(args, _read(args), passes, target, options)
    if output is not None:
        write_module(mod, output)
    data = {"model": args.model, "target": str(target), "output": args.output, "passes": done}
    show = args.print_module or output is None
    return Result(data, lambda console: console.out(module_text(mod)) if show else _render_counts(console, data))


def _passes(text: str, target: tvm.target.Target, options: Options) -> list[tuple[str, dict[str, str]]]:
    """Return names and options of the passes, with a phase's name replaced by its passes.

    Raises
    ------
    UserError
        If these options enable no pass of a phase.
    """
    from ..pass_registry import PASSES, parse_passes
    from ..pipeline import phases_of

    phases = {phase.name: phase for phase in phases_of(target)}
    found = []
    for name, own in parse_passes(text):
        if name in PASSES or name not in phases or own:
            found.append((name, own))
            continue
        chosen = phases[name].chosen(options)
        if not chosen:
            raise UserError(f"Phase '{name}' has no pass to run here: name some of {', '.join(phases[name].passes)}.")
        found += [(each, {}) for each in chosen]
    return found


def _read(args: argparse.Namespace) -> tvm.IRModule:
    from ..module_file import read_module

    path = Path(args.model)
    if path.suffix not in (_SCRIPT, _MODULE):
        return import_model(args)
    for option in ("shape", "value"):
        if getattr(args, option):
            raise UserError(
                f"--{option} is for ONNX files and torch's, and {path} has settled {option}s: leave --{option} out."
            )
    with step(f"Reading {path}"):
        return read_module(path)


def _applied(
    args: argparse.Namespace,
    mod: tvm.IRModule,
    names: list[tuple[str, dict[str, str]]],
    target: tvm.target.Target,
    options: Options,
) -> tuple[tvm.IRModule, list[dict]]:
    """Return the module after the passes, and the change of the number of kernels by each pass."""
    import tvm
    import tvm_ffi

    from ..graph_report import KernelCounter
    from ..ir.check_maps import check_maps
    from ..ir.strength_reduction import strength_reduction
    from ..pass_registry import make_pass
    from ..pipeline import output_check

    passes = [make_pass(name, options, target, own) for name, own in names]
    count, done = KernelCounter(), []
    before, check = count(mod), output_check(mod, target, options)
    for (name, _), each in zip(names, passes, strict=True):
        try:
            with (
                step(f"Running {name}"),
                target,
                strength_reduction(options.simplify),
                check_maps(options.check == "maps"),
            ):
                changed = tvm.transform.Sequential([each])(mod)
                if check is not None:
                    check.after(name, mod, [(name, each)], changed)
        except UserError:
            raise
        except Exception as error:  # TVM raises many types
            raise UserError(
                f"Pass '{name}' cannot work on what {args.model} is at this point ({reason_of(error)}): see "
                f"`smartmem opt --list --target {args.target or 'cpu'}` for what comes before it."
            ) from error
        after = count(changed)
        same = bool(tvm_ffi.structural_equal(changed, mod))
        done.append({"pass": name, "changed": not same, "before": before, "after": after})
        mod, before = changed, after
    return mod, done


def _render_counts(console: Console, data: dict) -> None:
    rows = [
        (each["pass"], *(_change(each, key) for key in ("operators", "kernels", "layout_kernels")), each["changed"])
        for each in data["passes"]
    ]
    console.print(table(data["model"], ("pass", "operators", "kernels", "of which layout", "changed"), rows))
    console.print(f"Written to {data['output']}.")


def _change(entry: dict, key: str) -> str:
    before, after = (entry[side][key] for side in ("before", "after"))
    return " -> ".join("?" if each is None else str(each) for each in (before, after))

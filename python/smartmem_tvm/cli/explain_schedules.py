# SPDX-License-Identifier: Apache-2.0
"""``smartmem explain --schedules``: the rule that scheduled each kernel, its share of the time, and its tuning."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import UserError
from ..tune.host import set_threads
from .console import Result, decisions_text, step, table, tuning_text
from .machine_code import COLUMNS, add_machine_code, cells, sentence
from .model import import_model, options, read_model, with_positions
from .slow_kernels import print_slow

if TYPE_CHECKING:
    import tvm
    from rich.console import Console

    from ..frontend import Model
    from ..runtime.kernel_times import KernelTime

_KERNELS = ("", "kernel", "rule", "launches", "us", "share", "bound, us", "of the roofline", "tuned")
_DECISIONS = ("kernel", "strategy", "gain", "decisions")
_MODELLED = " (modelled)"  # beside the gain of a schedule that no device has run
_RULES = ("rule", "kernels", "share", "for")


def explain_schedules(args: argparse.Namespace) -> Result:
    """Schedule the kernels; where there is a device of the target's kind, build them and time one inference.

    Raises
    ------
    UserError
        If no kernel has ``--op`` in its name.
    """
    from ..deploy.tuned import tuning_report
    from ..graph_report import first_launches
    from ..runtime.kernel_bounds import add_bounds, roofline
    from ..runtime.kernel_times import schedule_report
    from ..target import device_of, parse_target

    threads = set_threads(args.threads)
    target, model = parse_target(args.target), read_model(args)
    mod = import_model(args, model)
    missing = None
    try:
        device_of(target)
    except UserError as error:
        missing = str(error)
    made = measured(args, mod, target, model) if missing is None else _schedule(args, mod, target)
    data = {"model": args.model, "target": target.kind.name, "threads": threads, "not_measured": missing}
    with step("Working out bounds"):
        speed, bounds = roofline(made.graph, target)
    data |= add_bounds(schedule_report(made.rules, made.times), bounds, speed)
    data["tuning"] = tuning_report(made.tuning, len(made.rules))
    numbers = first_launches(made.graph)
    for each in data["kernels"]:
        each["number"] = numbers.get(each["kernel"])
        each["tuned"] = data["tuning"]["gains"].get(each["kernel"])
    if args.op is not None:
        data["kernels"] = [each for each in data["kernels"] if args.op.lower() in each["kernel"].lower()]
        if not data["kernels"]:
            raise UserError(f"No kernel has '{args.op}' in its name; leave out --op to see all names.")
    if made.lowered is not None:
        add_machine_code(data, made.lowered, target)
    return Result(data, lambda console: _render(console, data, one_by_one=args.op is not None or args.all))


@dataclass(frozen=True)
class _Made:
    """Kernels of a model: unscheduled, with the rules that scheduled them, their tuning, and any measured times.

    Where no times are measured, `lowered` holds the kernels with their schedules.
    """

    graph: tvm.IRModule
    rules: dict[str, dict]
    tuning: dict[str, dict]
    times: dict[str, KernelTime] | None = None
    lowered: tvm.IRModule | None = None


def measured(args: argparse.Namespace, mod: tvm.IRModule, target: tvm.target.Target, model: Model) -> _Made:
    """Compile a model for a device of this machine, and time the kernels of one inference with random inputs."""
    from ..deploy.build import compile
    from ..frontend import check_inputs, input_spec
    from ..frontend.inputs import id_limits, random_inputs
    from ..runtime.kernel_times import kernel_times

    with step(f"Compiling {args.model}"):
        compiled = compile(mod, target, replace(options(args), cuda_graph=False))
        compiled.build_kernels()
    spec = input_spec(mod)
    arrays = with_positions(model, check_inputs(spec, random_inputs(spec, id_limits(model.proto))))
    with step("Running"):
        times = kernel_times(compiled, compiled.without_caches(arrays))
        return _Made(compiled.graph, compiled.rules, compiled.tuning, times)


def _schedule(args: argparse.Namespace, mod: tvm.IRModule, target: tvm.target.Target) -> _Made:
    from ..deploy.build import lower, optimize
    from ..schedule.schedule_kernels import kernel_rules
    from ..tune.apply_records import tuning_of

    chosen = options(args)
    with step("Running the passes"), target:
        graph = optimize(mod, options=chosen)
        lowered = lower(graph, target, replace(chosen, dump_dir=None)).module
        return _Made(graph, kernel_rules(lowered), tuning_of(lowered), lowered=lowered)


def _render(console: Console, data: dict, one_by_one: bool) -> None:
    kernels = data["kernels"]
    tuned = [(each["kernel"], each["tuned"]) for each in kernels if each["tuned"] is not None]
    gains = {name: f"{facts['gain']:.2f}x{_MODELLED if facts.get('judge') else ''}" for name, facts in tuned}
    more = cells if data.get("mesa") else lambda _: ()
    titles = (*_KERNELS, *(COLUMNS if data.get("mesa") else ()))
    rows = [
        (
            *(str(each["number"] or "-"), each["kernel"], each["rule"]),
            *(*_numbers(each), gains.get(each["kernel"], "-"), *more(each)),
        )
        for each in kernels
    ]
    console.print(table(data["model"], titles, rows, numbers=(0, *range(3, len(titles)))))
    if one_by_one and tuned:
        lines = [(name, t["strategy"], f"{t['gain']:.2f}x", decisions_text(t["decisions"])) for name, t in tuned]
        console.print(table("Tuned kernels", _DECISIONS, lines, numbers=(2,)))
    print_slow(console, data)
    console.print(table("Rules", _RULES, _rules(kernels), numbers=(1, 2)))
    caught = sum(each["catch_all"] for each in kernels)
    console.print(f"{caught} of {len(kernels)} kernels come from rules that take what no other rule takes.")
    if data["not_measured"]:
        console.print(f"Times were not measured: {data['not_measured']}")
    else:
        console.print(
            f"Their share of the time: {data['catch_all_share']:.2%}. Medians of several inferences on target "
            f"{data['target']}, which was idle before and after each kernel. Threads: {data['threads']}."
        )
    console.print(tuning_text(data["tuning"]))
    if data.get("mesa"):
        console.print(sentence(data))
    if tuned and not one_by_one:
        console.print("--op NAME shows what was decided for the kernels that have NAME in their name, --all for all.")


def _numbers(kernel: dict) -> tuple[str, ...]:
    bound = "-" if kernel["bound_seconds"] is None else f"{kernel['bound_seconds'] * 1e6:.1f}"
    if kernel["share"] is None:
        return ("-", "-", "-", bound, "-")
    of_roofline = "-" if kernel["of_roofline"] is None else f"{kernel['of_roofline']:.0%}"
    seconds, share = f"{kernel['seconds'] * 1e6:.1f}", f"{kernel['share']:.2%}"
    return (str(kernel["launches"]), seconds, share, bound, of_roofline)


def _rules(kernels: list[dict]) -> list[tuple]:
    """Return one row for each rule that made a schedule, in the order of their first kernels."""
    groups: dict[str, list[dict]] = {}
    for each in kernels:
        groups.setdefault(each["rule"], []).append(each)
    rows = []
    for rule, made in groups.items():
        share = "-" if made[0]["share"] is None else f"{sum(each['share'] for each in made):.2%}"
        words = ("catch-all: " if made[0]["catch_all"] else "") + made[0]["family"]
        rows.append((rule, len(made), share, words))
    return rows

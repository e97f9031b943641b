# SPDX-License-Identifier: Apache-2.0
"""``smartmem explain --why KERNEL``: one kernel's plan, its price by terms, and the answers of the other rules."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import UserError
from ..tune.host import set_threads
from .console import Result, step, table
from .explain_schedules import measured
from .model import import_model, options, read_model

if TYPE_CHECKING:
    from rich.console import Console

    from ..runtime.kernel_times import KernelTime

_DECISIONS = ("decision", "chosen", "depends on")
_PRICE = ("what it takes", "cycles", "us", "share")
_OTHERS = ("rule", "answer", "its model", "its loops")
_PARTS = {"arithmetic": "arithmetic and calls", "memory": "bytes that must move", "launch": "launch"}


def explain_why(args: argparse.Namespace) -> Result:
    """Schedule the kernels, collect every rule's plan for one of them, and time it if there is such a device.

    Raises
    ------
    UserError
        If there is no such kernel.
    """
    from ..deploy.build import optimize
    from ..runtime.why import why
    from ..target import device_of, parse_target

    threads, target, chosen = set_threads(args.threads), parse_target(args.target), options(args)
    model = read_model(args)
    mod = import_model(args, model)
    with step("Running the passes"):
        graph = optimize(mod, target, chosen)
    with step("Asking the rules"):
        found = why(graph, target, chosen, args.why)
    data = {"model": args.model, "target": target.kind.name, "threads": threads, **found}
    data |= dict.fromkeys(("seconds", "of_roofline", "not_measured"))
    try:
        device_of(target)
    except UserError as error:
        data["not_measured"] = str(error)
    else:
        data |= _time(measured(args, mod, target, model).times.get(data["kernel"]), data["roofline"]["seconds"])
    return Result(data, lambda console: _render(console, data))


def _time(found: KernelTime | None, bound: float | None) -> dict:
    """Return the seconds of a launch within the network, and the part of them that the roofline's bound is."""
    if found is None:
        return {"not_measured": "an inference does not launch it by itself."}
    seconds = found.seconds / found.launches
    return {"seconds": seconds, "of_roofline": bound / seconds if bound and seconds else None}


def _render(console: Console, data: dict) -> None:
    also = ", ".join(str(each) for each in data["launches"][1:])
    console.print(f"{data['model']}, kernel {data['number']} of {data['of']}: {data['kernel']}")
    console.print(f"It is launched again as {also}." if also else "It is launched once in an inference.")
    rows = [(each["role"], each["name"], _shape(each)) for each in data["parameters"]]
    console.print(table("Tensors", ("", "tensor", "shape"), rows))
    operators = [("computes", each) for each in data["operators"]]
    operators += [("reads or writes through", each) for each in data["views"]]
    if operators:
        console.print(table("Operators", ("", "operator"), operators))
    catch_all = " It takes the kernels that no other rule takes, and is not fast." if data["catch_all"] else ""
    console.print(f"Rule: {data['rule']}, for {data['family']}.{catch_all}")
    for each in data["log"]:
        console.print(_noted(each))
    if data["plan"] is not None:
        _print_plan(console, data["plan"])
    _print_roofline(console, data)
    _print_time(console, data)
    if data["others"]:
        rows = [_other(each) for each in data["others"]]
        console.print(table("Other rules, in the order in which they are asked", _OTHERS, rows, numbers=(2, 3)))
    if data["clock"] is not None:
        ghz = data["clock"] / 1e9
        console.print(f"Microseconds are cycles at {ghz:.2f} GHz: at the device's peak each is full of multiply-adds.")


def _print_plan(console: Console, plan: dict) -> None:
    rows = [(name, _values(each), _values(plan["facts"][name])) for name, each in plan["decisions"].items()]
    rows += [(name, _values(each), "-") for name, each in plan["notes"].items()]
    if rows:
        console.print(table("What was decided", _DECISIONS, rows))
    for price in plan["prices"]:
        shared = f", shared by {price['shared']} cores" if price["shared"] > 1 else ""
        title = f"Price by the rule's model ({price['how']}{shared})"
        console.print(table(title, _PRICE, _terms(price), numbers=(1, 2, 3)))
    if not plan["prices"]:
        console.print("The rule has no model of time: it takes what its thresholds say.")
    if plan["loops"] is not None:
        title = "Price by what is counted in its loops (sum), until the core that has most to do is done"
        console.print(table(title, _PRICE, _terms(plan["loops"]), numbers=(1, 2, 3)))


def _terms(price: dict) -> Iterator[tuple[str, ...]]:
    each_us = price["seconds"] * 1e6 / price["cycles"] if price["seconds"] and price["cycles"] else None
    for name, cycles in {**price["terms"], "together": price["cycles"]}.items():
        us = "-" if each_us is None else f"{cycles * each_us:.1f}"
        share = f"{cycles / price['cycles']:.0%}" if price["cycles"] else "-"
        yield name, f"{cycles:,.0f}", us, share


def _other(plan: dict) -> tuple[str, str, str, str]:
    if plan["reason"]:
        return plan["rule"], plan["reason"], "-", "-"
    decided = "; ".join(f"{name}: {_values(values)}" for name, values in {**plan["decisions"], **plan["notes"]}.items())
    models = [_price(each) for each in plan["prices"]]
    loops = "-" if plan["loops"] is None else _price(plan["loops"])
    return plan["rule"], f"would take it ({decided})" if decided else "would take it", " + ".join(models) or "-", loops


def _price(price: dict) -> str:
    if price["seconds"] is not None:
        return f"{price['seconds'] * 1e6:.1f} us"
    return f"{price['cycles'] / price['shared']:,.0f} cycles"


def _print_roofline(console: Console, data: dict) -> None:
    bound = data["roofline"]
    if bound["seconds"] is None:
        console.print(f"Roofline: there is no bound, as {bound['reason']}.")
        return
    parts = ", ".join(f"{_PARTS[name]} {seconds * 1e6:.2f} us" for name, seconds in bound["parts"].items())
    console.print(
        f"Roofline: a launch takes {bound['seconds'] * 1e6:.2f} us at least on {bound['device']}, bound by "
        f"{bound['by']} ({parts})."
    )


def _print_time(console: Console, data: dict) -> None:
    if data["seconds"] is None:
        console.print(f"Time: it was not measured: {data['not_measured']}")
        return
    share = "" if data["of_roofline"] is None else f", of which the bound is {data['of_roofline']:.0%}"
    console.print(
        f"Time: a launch takes {data['seconds'] * 1e6:.2f} us within the network{share}: the median of several "
        f"inferences, with the device idle before and after it. Threads: {data['threads']}."
    )


def _noted(entry: dict) -> str:
    """Say in a sentence what a pass noted of the kernel."""
    said = [f"{key} {value}" for key, value in entry.items() if key not in ("pass", "kernel", "reason") and value]
    reason = f": {entry['reason']}" if entry.get("reason") else ""
    return f"{entry['pass']}: {', '.join(said)}{reason}"


def _values(values: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "-"


def _shape(tensor: dict) -> str:
    return f"{' x '.join(map(str, tensor['shape'])) or 'a number'} {tensor['dtype']}"

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registers, waves and inner loops of kernels for Adreno: the models of this package beside what Mesa's compiler says.

python benchmarks/adreno_registers.py                          # benchmarks/adreno_registers.json, an hour of a core
python benchmarks/adreno_registers.py --only squeezenet 660    # some of it again
python benchmarks/adreno_registers.py --table                  # nothing is compiled: the table of docs/adreno.md
python benchmarks/adreno_networks.py                           # whole networks, as each Adreno gets them

Kernels are those chosen for adreno-740, in both precisions, each compiled for several Adrenos: the models have to hold
for a tile on a device for which it was not chosen, too. Results of the compiler are kept (docs/adreno.md), so that an
interrupted run goes on. No phone is asked.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "adreno_registers.json"
MODELS = {
    **{name: f"models/extra/{name}.onnx" for name in ("squeezenet", "mobilenetv2", "vit_s16")},
    **{name: f"models/{name}.onnx" for name in ("resnext50", "swin_t", "convnext_t")},
}
CHOSEN_FOR, GPUS = "adreno-740", (660, 740, 830)
PRECISIONS = ("float32", "half")
REGISTERS, LOOP = 0.15, 0.2  # most of the compiler's figure that a model may be off


def row(where: dict, plan: dict | None, rule: str, source: str, made: dict) -> dict:
    """Return a kernel as plain data.

    Parameters
    ----------
    where : dict
        ``network``, ``precision``, ``gpu`` and ``kernel``.
    plan : dict or None
        Its plan (`kernel_plans`).
    made : dict
        What the compiler made of it (`KernelCode.as_dict`).
    """
    chosen = (plan or {}).get("chosen") or {}
    (tile, *_), (facts, *_) = (list(chosen.get(key, {}).values()) or [{}] for key in ("decisions", "facts"))
    inner = made["inner_loop"]["classes"] if made["inner_loop"] else None
    loop = sum(inner.values()) - inner["nops"] if inner else None
    private = re.search(r"^\s+half\d* \w+\[", source, re.MULTILINE)  # arrays that a thread has in registers
    compiled = {key: made[key] for key in ("registers", "waves", "scratch")}
    sizes = {"threads": math.prod(made["threads"]), "local_bytes": made["local_bytes"], "halves": bool(private)}
    return {**where, "rule": rule, "tile": tile, "facts": facts, **sizes, **compiled, "loop": loop}


def judged(kernel: dict) -> dict[str, bool] | None:
    """Return whether the models are right about a kernel: ``registers``, ``waves``, ``loop`` if it has a model."""
    from smartmem_tvm.tables.targets import TARGETS
    from smartmem_tvm.tools.isa.predicted import predicted

    core = TARGETS[f"adreno-{kernel['gpu']}"].core
    keys = ("rule", "tile", "facts", "threads", "local_bytes", "halves")
    ours = predicted(*(kernel[key] for key in keys), core)
    if ours is None:
        return None
    found = {"registers": _near(ours.registers, kernel["registers"], REGISTERS), "waves": ours.waves == kernel["waves"]}
    if ours.loop is not None and kernel["loop"] is not None:
        found["loop"] = _near(ours.loop, kernel["loop"], LOOP)
    return found


def _near(ours: int, theirs: int, most: float) -> bool:
    return abs(ours - theirs) <= most * theirs


def shares(kernels: list[dict]) -> dict[str, dict]:
    """Return rule -> kernels, and the share of them about which each model is right; ``all`` for all of them."""
    found: dict[str, list[dict]] = {}
    for each in kernels:
        verdict = judged(each) or {"registers": False, "waves": False}
        for name in (each["rule"] if judged(each) else "others", "all"):
            found.setdefault(name, []).append(verdict)
    return {name: {"kernels": len(each), **_shares(each)} for name, each in sorted(found.items())}


def _shares(verdicts: list[dict]) -> dict[str, float | None]:
    def share(key: str) -> float | None:
        known = [each[key] for each in verdicts if key in each]
        return sum(known) / len(known) if known else None

    return {key: share(key) for key in ("registers", "waves", "loop")}


def table(kernels: list[dict]) -> Iterator[str]:
    """Yield the lines of the table of docs/adreno.md."""
    yield "| rule | kernels | registers within 15 % | waves right | instructions of the inner loop within 20 % |"
    yield "|---|---|---|---|---|"
    for name, each in shares(kernels).items():
        parts = ("-" if each[key] is None else f"{each[key]:.1%}" for key in ("registers", "waves", "loop"))
        yield f"| {name} | {each['kernels']} | {' | '.join(parts)} |"


def compiled(network: str, precision: str, gpus: list[int]) -> list[dict]:
    """Compile the kernels of a network for Adrenos."""
    import smartmem_tvm
    from smartmem_tvm.schedule.schedule_kernels import kernel_plans
    from smartmem_tvm.target import parse_target, target_row
    from smartmem_tvm.tools.isa.compiler import compile_all
    from smartmem_tvm.tools.isa.kernels import kernel_codes
    from smartmem_tvm.tools.isa.network import network_kernels
    from smartmem_tvm.tools.isa.sources import function_of

    target = parse_target(CHOSEN_FOR)
    mod = smartmem_tvm.from_onnx(HERE.parent / MODELS[network])
    made = network_kernels(mod, target, smartmem_tvm.Options(precision=precision))
    sources, plans = made.sources, kernel_plans(made.scheduled)
    found = []
    for gpu in gpus:
        for name, code in kernel_codes(sources, compile_all(sources, gpu)).items():
            if code.code is not None:
                where = {"network": network, "precision": precision, "gpu": gpu, "kernel": name}
                plan, rule = plans.get(function_of(name)), made.facts[name]["rule"]
                found.append(row(where, plan, rule, sources[name], code.as_dict(target_row(target))))
    return found


def main() -> None:
    """Compile all kernels, write the file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some networks, precisions, Adrenos")
    parser.add_argument("--table", action="store_true", help="print the table of the file, and compile nothing")
    args = parser.parse_args()
    known = read(args.into) if args.into.exists() else {"mesa": "", "kernels": []}
    if not args.table:
        known = measure(args.only, args.into, known)
    print("\n".join(table(known["kernels"])))


def measure(only: list[str], path: Path, known: dict) -> dict:
    """Compile what is asked for and write the file after each network."""
    from smartmem_tvm.mesa_folder import mesa_version

    def asked(names) -> list:
        return [each for each in names if str(each) in only] or list(names)

    kernels = known["kernels"]
    for network in asked(MODELS):
        for precision in asked(PRECISIONS):
            start, gpus = time.perf_counter(), asked(GPUS)
            new = compiled(network, precision, gpus)
            kernels = [
                each
                for each in kernels
                if (each["network"], each["precision"]) != (network, precision) or each["gpu"] not in gpus
            ]
            kernels = sorted([*kernels, *new], key=lambda each: [str(each[key]) for key in _ORDER])
            write(path, {"mesa": mesa_version(), "kernels": kernels})
            print(f"{network}, {precision}: {len(new)} kernels, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return {"mesa": mesa_version(), "kernels": kernels}


_ORDER = ("network", "precision", "gpu", "kernel")


def read(path: Path) -> dict:
    """Return the content of the file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, content: dict) -> None:
    """Write the file, a kernel to a line."""
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in content["kernels"])
    path.write_text(f'{{"mesa": {json.dumps(content["mesa"])}, "kernels": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""``smartmem isa``: kernels as Mesa's compilers for Adreno and Mali have them: instructions, registers, waves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from .console import Result, step, table
from .model import add_cache, add_compilation, add_shapes, import_model, options
from .several_sizes import at_each_size, has_lists

if TYPE_CHECKING:
    import tvm
    from rich.console import Console

    from ..tables.targets import Row
    from ..tools.isa.drivers import Driver, Gpu
    from ..tools.isa.kernels import KernelCode

NAME = "isa"
HELP = "show what Mesa's compiler for Adreno or Mali makes of each kernel: instructions, registers, issue time"
EXAMPLE = """\
  smartmem isa --setup                           get Mesa's compiler once: Debian's packages, in a folder of your cache
  smartmem isa models/swin_t.onnx --target adreno-740 --precision half
  smartmem isa models/swin_t.onnx --target adreno-740 --gpu 660      the same kernels on another Adreno
  smartmem isa models/swin_t.onnx --kernel 4     machine code of the inner loop of kernel 4 (or of a name)
  smartmem isa out                               kernels of a folder of `smartmem compile`
  smartmem isa llama.onnx --cache auto           a token of a model that keeps its caches
  smartmem isa --setup --target mali-g57         the same for Mali: Debian's packages for arm64, and qemu to run them
  smartmem isa models/swin_t.onnx --target mali-g57                  registers, full or half threads, spills

No phone is needed. It is Mesa's compiler and not Qualcomm's or Arm's: registers and order differ, and an instruction
that is not needed is not needed in either. Results are kept in the user's cache folder ($SMARTMEM_ISA_CACHE names
another, 0 none), so that what was compiled once is not compiled again. docs/adreno.md and docs/mali.md explain the
columns."""

_TARGET = "adreno-740"
_KERNELS = (
    *("", "kernel", "rule", "times", "instr.", "f32", "f16", "comp.", "func.", "conv.", "moves", "int."),
    *("memory", "texels", "scratch", "regs", "waves", "limit", "inner loop", "issue us", "bound us"),
)
_LEFT = (1, 2, 17)  # columns of words
_WAVES = 16  # the column of waves, in which a kernel for Mali has its threads, full or half


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    what = "an ONNX file, a .pt2 file of torch.export.save, or a folder of `smartmem compile`"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=what)
    add_shapes(parser)
    text = "instead: one kernel's machine code, of its inner loop by basic blocks; KERNEL is a name or a number"
    parser.add_argument("--kernel", metavar="KERNEL", help=text)
    text = "compile for this Adreno or Mali, 660 or G76 say (default: the target's)"
    parser.add_argument("--gpu", metavar="NUMBER", help=text)
    text = "instead: get Mesa's compiler for the target's family; says what it fetches, and its size, before it does"
    parser.add_argument("--setup", action="store_true", help=text)
    add_compilation(parser)
    add_cache(parser)
    parser.set_defaults(target=_TARGET)


def execute(args: argparse.Namespace) -> Result:
    """Get Mesa, or compile the kernels of a model with it."""
    if args.setup == (args.model is not None):
        raise UserError("smartmem isa takes a MODEL, or --setup to get Mesa's compiler; give one of them.")
    if args.setup:
        return _set_up(args.target)
    if has_lists(args) and not Path(args.model).is_dir():
        return at_each_size(args, execute)
    from ..mesa_folder import mesa_version
    from ..tools.isa.compiler import compile_all
    from ..tools.isa.drivers import driver_of
    from ..tools.isa.kernels import kernel_codes

    gpu, row, target = _device(args)
    found = _of_folder(Path(args.model)) if Path(args.model).is_dir() else _of_model(args, target)
    sources = found.sources if args.kernel is None else _one(found.sources, args.kernel)
    with step("Compiling kernels with Mesa"):
        codes = kernel_codes(sources, compile_all(sources, gpu))
    numbers = {name: number for number, name in enumerate(found.sources, 1)}
    kernels = [found.described(numbers[name], code, row) for name, code in codes.items()]
    data = {
        "model": args.model,
        "target": row.name,
        "gpu": gpu,
        "mesa": mesa_version(driver_of(gpu).family),
        "kernels": kernels,
    }
    if args.kernel is None:
        return Result(data, lambda console: _render(console, data))
    (code,) = codes.values()
    data["listing"] = list(code.code.listing(code.code.inner_loop)) if code.code else []
    return Result(data, lambda console: _render_one(console, data))


def _set_up(target: str) -> Result:
    from ..target import parse_target, target_row
    from ..tools.isa.setup import set_up

    row = target_row(parse_target(target))
    if row is None or not row.phone:
        raise UserError(f"Target '{target}' is no Adreno and no Mali; give --setup with {_TARGET} or mali-g57.")
    data = set_up(lambda sentence: print(sentence, file=sys.stderr, flush=True), row.family)
    said = f"Mesa {data['version']} is in {data['folder']}: smartmem isa MODEL --target {row.name} looks at kernels."
    return Result(data, lambda console: console.print(said))


@dataclass(frozen=True)
class _Found:
    """Kernels to look at.

    Attributes
    ----------
    sources : mapping
        OpenCL kernel -> its program, in the order of the network.
    facts : mapping
        OpenCL kernel -> ``rule``, ``launches``, ``bound_seconds`` and ``bound_by``; empty for a compiled folder.
    """

    sources: Mapping[str, str]
    facts: Mapping[str, dict] = field(default_factory=dict)

    def described(self, number: int, code: KernelCode, row: Row) -> dict:
        """Return a kernel as plain data."""
        nothing = dict.fromkeys(("rule", "launches", "bound_seconds", "bound_by"))
        return {"number": number, **code.as_dict(row), **nothing, **self.facts.get(code.name, {})}


def _device(args: argparse.Namespace) -> tuple[Gpu, Row, tvm.target.Target]:
    """Return the GPU to compile for, the row of the target, and the target.

    Raises
    ------
    UserError
        If it is no Adreno and no Mali, or none that Mesa compiles for, or if Mesa is not set up here.
    """
    import tvm

    from ..deploy.manifest import read_manifest
    from ..target import parse_target, target_row
    from ..tools.isa.compiler import gpu_of, mali_of, require

    if Path(args.model).is_dir():
        text = read_manifest(Path(args.model), elsewhere=True, several=True)["target"]
        target, named = tvm.target.Target(text), f"The target of {args.model}"
    else:
        target, named = parse_target(args.target), f"Target '{args.target}'"
    row = target_row(target)
    own = gpu_of(row) or mali_of(row)
    if own is None:
        raise UserError(
            f"{named} is no Adreno and no Mali, and Mesa's compilers here know no other GPU; give --target {_TARGET} "
            f"or mali-g57."
        )
    gpu = _named(args.gpu, own) if args.gpu else own
    require(gpu)  # before kernels are scheduled, which may take minutes
    return gpu, row, target


def _named(text: str, own: Gpu) -> Gpu:
    """Return the GPU of the target's family that a user names: ``660``, ``G76``."""
    from ..tools.isa.drivers import driver_of

    if not driver_of(own).numbered:
        return text.upper()
    if not text.isdecimal():
        raise UserError(f"--gpu {text} is no number of an Adreno, which the target is; give 660 say.")
    return int(text)


def _of_folder(folder: Path) -> _Found:
    from ..deploy.manifest import check_files, read_manifest
    from ..tools.isa.sources import folder_programs

    manifest = read_manifest(folder, elsewhere=True, several=True)
    check_files(folder, manifest)
    sources = folder_programs(folder, manifest["library"])
    if not sources:
        raise UserError(f"There is no OpenCL source in {folder}; give the ONNX file that it was compiled from.")
    return _Found(sources)


def _of_model(args: argparse.Namespace, target: tvm.target.Target) -> _Found:
    from ..tools.isa.network import network_kernels

    mod = import_model(args)
    with step("Scheduling kernels, and generating OpenCL"):
        found = network_kernels(mod, target, options(args))
    return _Found(found.sources, found.facts)


def _one(sources: Mapping[str, str], kernel: str) -> dict[str, str]:
    from ..tools.isa.sources import named

    name = named(kernel, sources)
    return {name: sources[name]}


def _render(console: Console, data: dict) -> None:
    made = [each for each in data["kernels"] if not each["refused"]]
    numbers = [number for number in range(len(_KERNELS)) if number not in _LEFT]
    titles, driver = list(_KERNELS), _driver(data)
    titles[_WAVES] = driver.holds
    console.print(table(_title(data), titles, map(_row, made), numbers, range(len(titles))))
    for each in data["kernels"]:
        if each["refused"]:
            console.print(f"Kernel {each['number']}, {each['kernel']}, has no code: {each['refused']}.")
    if driver.halves:
        halved = [each["kernel"] for each in made if each["threads_held"] == "half"]
        console.print(f"{len(halved)} of {len(made)} kernels need more than 32 registers, and run half of the threads.")
    spilled = [each["kernel"] for each in made if each["scratch"]]
    console.print(
        f"{len(spilled)} of {len(made)} kernels reach scratch memory"
        + (f": {', '.join(spilled[:5])}{' and others' if len(spilled) > 5 else ''}." if spilled else ".")
    )
    both = [each for each in made if each["issue_seconds"] and each["bound_seconds"]]
    if both:
        issue, bound = (
            sum(each[key] * each["launches"] for each in both) for key in ("issue_seconds", "bound_seconds")
        )
        console.print(
            f"Of {len(both)} kernels whose loops and bounds are known, all launches issue in {issue * 1e3:.2f} ms at "
            f"the peak of {data['target']}; their rooflines add up to {bound * 1e3:.2f} ms."
        )


def _driver(data: dict) -> Driver:
    from ..tools.isa.drivers import driver_of

    return driver_of(data["gpu"])


def _title(data: dict) -> str:
    name = _driver(data).name
    return f"{data['model']}: Mesa {data['mesa']} for {name} {data['gpu']}, kernels chosen for {data['target']}"


def _row(each: dict) -> tuple:
    classes, inner = each["classes"], each["inner_loop"]
    memory = classes["global"] + classes["local"]
    within = f"{each['arithmetic_share']:.0%}" if inner else f"none, {each['arithmetic_share']:.0%}"
    counts = list(classes.values())[: list(classes).index("global")]
    return (
        *(each["number"], each["kernel"], each["rule"] or "-", each["launches"] or "-", each["instructions"], *counts),
        *(memory, classes["texels"], each["scratch"], each["registers"], _held(each), each["limited_by"]),
        *(within, _us(each["issue_seconds"]), _us(each["bound_seconds"])),
    )


def _held(each: dict) -> int | str:
    """Return the waves of a kernel for Adreno, or the threads of one for Mali."""
    return each["waves"] if "waves" in each else each["threads_held"]


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"


def _render_one(console: Console, data: dict) -> None:
    (each,) = data["kernels"]
    if each["refused"]:
        console.print(f"Kernel {each['number']}, {each['kernel']}, has no code: {each['refused']}.")
        return
    inner = each["inner_loop"]
    rows = [(name, count, inner["classes"][name] if inner else "-") for name, count in each["classes"].items() if count]
    console.print(f"{_title(data)}\nKernel {each['number']}: {each['kernel']}, rule {each['rule'] or '-'}")
    console.print(table("Instructions", ("class", "kernel", "a trip of the inner loop"), rows, numbers=(1, 2)))
    trips = f"{inner['trips'] or 'an unknown number of'} trips" if inner else "no loop"
    driver = _driver(data)
    held = f"{each['registers']} {driver.registers}, {_held(each)} {driver.of}"
    console.print(
        f"{held}, limited by "
        f"{each['limited_by']}; {each['local_bytes']} bytes of local memory; {trips}; arithmetic "
        f"{each['arithmetic_share']:.1%}; issue {_us(each['issue_seconds'])} us, bound {_us(each['bound_seconds'])} us."
    )
    console.print("\n".join(data["listing"]))

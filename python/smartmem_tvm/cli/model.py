# SPDX-License-Identifier: Apache-2.0
"""Shared arguments of commands about the model, its inputs and its compilation, and functions that apply them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..tables.precisions import ACTIVATIONS
from ..tables.precisions import PRECISIONS as TABLE
from . import argument_types
from .console import step

if TYPE_CHECKING:
    import numpy as np
    import tvm
    from numpy.typing import ArrayLike

    from ..deploy.compiled import Compiled
    from ..frontend import Model
    from ..frontend.spec import Spec
    from ..pipeline import Options
    from ..tune.profile_store import ProfileStore

_RANGE = re.compile(r"\.\.\d+(?::\d+)?(?:,|$)")

# Field of `pipeline.Options` -> help of its switch. A test compares the names: pipeline imports TVM.
TECHNIQUES = {
    "rewrite": "do not rewrite by the laws of algebra",
    "merge_projections": "do not merge linear layers of one input",
    "eliminate": "keep layout operators as kernels",
    "simplify": "leave composed index maps to TVM's analyzer",
    "fuse": "do not fuse operators",
    "fuse_attention": "keep matmul, softmax and matmul in kernels of their own",
    "merge_chains": "launch each of the small kernels of a long chain, on GPUs",
    "schedule": "generate plain loops: one core, no vectors",
    "winograd": "do 3x3 convolutions on a CPU as they are written, not by transformed tiles",
    "native_functions": "call OpenCL's own exp, erf, tanh and others on phones, which are longer and more exact",
    "textures": "keep all tensors in buffers on targets with textures",
    "layout": "keep the dimensions of tensors in buffers in the model's order",
    "arena": "leave the memory of tensors to TVM's planner",
    "cuda_graph": "have the virtual machine launch kernels one by one, on CUDA and OpenCL",
}


CHECKS = ("maps", "outputs")
_ALL_CACHES = "auto"
_ROWS = re.compile(f"{_ALL_CACHES}:([1-9][0-9]{{0,8}})")  # the most is checked by `frontend.dimensions`
PRECISIONS = tuple(TABLE)  # a test compares these with the pipeline's
PLANNERS = ("reduction-dimension", "fluid", "exact")  # a test compares these, too

TARGET_HELP = "opencl, cuda, a phone's GPU as adreno-740, or any TVM target (default: this machine's CPU)"


def add_model(
    parser: argparse.ArgumentParser, what: str = "an ONNX file, a .pt2 file of torch.export.save, or a GGUF file"
) -> None:
    """Add MODEL, ``--shape`` and ``--value``."""
    parser.add_argument("model", metavar="MODEL", help=what)
    add_shapes(parser)


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Add ``--shape`` and ``--value``."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME:SIZES",
        help="shape of an input whose sizes the model leaves open, as in --shape x:1,3,224,224 (repeatable); "
        "`compile`, `run` and `verify` take lists, between quotes: --shape 'x:{1,4,8},3,224,224', and a range, as in "
        "--shape x:1..64,3,224,224 or ids:1..8,1..128: any batch, any length",
    )
    add_values(parser)


def add_values(parser: argparse._ActionsContainer) -> None:
    """Add ``--value``."""
    text = (
        "compile for one value of an input, which is no input then, as in --value sr=16000 (several numbers: "
        "sizes=1,2,3; repeatable): an If that it decides keeps one branch"
    )
    parser.add_argument("--value", action="append", default=[], metavar="NAME=NUMBER", help=text)


def add_threads(parser: argparse._ActionsContainer) -> None:
    """Add ``--threads``."""
    text = "CPU threads to run on (default: TVM_NUM_THREADS, else one per core)"
    parser.add_argument("--threads", type=argument_types.positive, metavar="N", help=text)


def add_input(parser: argparse.ArgumentParser) -> None:
    """Add ``--input`` and ``--seed``."""
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="an .npz file with one array per model input (or .npy if there is one); default: random",
    )
    parser.add_argument("--seed", type=argument_types.seed, default=0, help="of the random input (default: 0)")


def add_compilation(parser: argparse.ArgumentParser, profiles: bool = True) -> None:
    """Add the target, one switch per technique and, unless `profiles` is false, the profile store."""
    group = parser.add_argument_group("compilation")
    group.add_argument("--target", default="cpu", help=TARGET_HELP)
    if profiles:
        add_profiles(group)
    add_records(group)
    group.add_argument("--dump-dir", metavar="FOLDER", help="write the module after each phase into this folder")
    add_check(group)
    add_techniques(group)


def add_memory_budget(parser: argparse._ActionsContainer) -> None:
    """Add ``--memory-budget``."""
    text = (
        "run within so much memory, 100MB say, for weights and tensors: weights are read from the disk while kernels "
        "run, large ones in slices (on a CPU)"
    )
    parser.add_argument("--memory-budget", type=argument_types.memory, metavar="SIZE", help=text)


def add_cache(parser: argparse._ActionsContainer) -> None:
    """Add ``--cache``."""
    text = (
        "keep an input that comes back with new rows as a cache in the compiled model, and write the new rows only, as "
        "in --cache past_key_values.0.key=present.0.key (repeatable), or --cache auto for all that are found; --cache "
        "auto:2048 gives caches that grow in the file 2,048 rows"
    )
    parser.add_argument("--cache", action="append", default=[], metavar="PAST=PRESENT", help=text)


def parse_caches(texts: list[str]) -> bool | dict[str, str]:
    """Return ``Options.caches`` from the texts of ``--cache``.

    Raises
    ------
    UserError
        If a text is neither ``auto`` nor a pair of names, or a name is repeated.
    """
    if texts == [_ALL_CACHES] or parse_rows(texts) is not None:
        return True
    pairs: dict[str, str] = {}
    for text in texts:
        past, equals, present = text.partition("=")
        if not (past and equals and present):
            raise UserError(
                f"--cache {text} must be the names of an input and an output, as in --cache past=present, or stand "
                f"alone as --cache {_ALL_CACHES}."
            )
        if past in pairs or present in pairs.values():
            raise UserError(f"--cache {text} gives a name twice; give each input and each output once.")
        pairs[past] = present
    return pairs


def parse_rows(texts: list[str]) -> int | None:
    """Return the rows of caches that grow from the texts of ``--cache``: 2048 from ``auto:2048``, else None."""
    found = _ROWS.fullmatch(texts[0]) if len(texts) == 1 else None
    return int(found[1]) if found is not None else None


def add_check(parser: argparse._ActionsContainer) -> None:
    """Add ``--check``."""
    text = "look for faults of this package: in composed index maps, or in the outputs after each phase (slow)"
    parser.add_argument("--check", choices=CHECKS, help=text)


def add_techniques(parser: argparse._ActionsContainer, names: Iterable[str] = TECHNIQUES) -> None:
    """Add ``--precision`` and a switch for each technique."""
    text = (
        "numbers in memory, and with half also in arithmetic, of 16 bits on targets that can; bfloat16 and tf32 "
        "through CUDA's matrix instructions, bfloat16 also on CPUs with AMX (default: float32)"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0], help=text)
    text = (
        "weights of products: integers where the file has them (stored, the default), float, or rounded to "
        "int8 or int4, perhaps with the numbers that share a scale, as in int4:64 (default: int4:32)"
    )
    parser.add_argument("--weights", default="stored", metavar="TYPE", help=text)
    text = (
        "rows that weights in codes are multiplied by, on CPUs: rounded to eight bits where the file asks for it "
        "(accuracy_level 4; stored, the default), wherever weights are in codes (int8), or nowhere (float)"
    )
    parser.add_argument("--activations", choices=ACTIVATIONS, default=ACTIVATIONS[0], help=text)
    text = "a product whose weight is not rounded by --weights, as `smartmem explain` names it (may be repeated)"
    parser.add_argument("--float", dest="float_weights", action="append", default=[], metavar="NAME", help=text)
    text = (
        "how the order of dimensions of tensors in buffers is chosen: by FluidML's dynamic programming or an exact "
        "solver, from what `smartmem profile --layout` measured; or by SmartMem's rule (default with textures; on CPUs "
        "what convolutions pass on lies along its channels)"
    )
    parser.add_argument("--layout", choices=PLANNERS, default=True, help=text)
    for name in names:
        switch = f"--no-{name.replace('_', '-')}"
        parser.add_argument(switch, dest=name, action="store_false", default=True, help=TECHNIQUES[name])


def add_profiles(parser: argparse._ActionsContainer) -> None:
    """Add ``--profiles`` and ``--no-profiles``."""
    text = "what `smartmem profile` measured (default: tuning_logs/<device>.jsonl here, if there is one)"
    parser.add_argument("--profiles", metavar="FILE", help=text)
    text = "decide by the cost model instead of what was measured"
    parser.add_argument("--no-profiles", dest="profiles", action="store_const", const="", help=text)


def add_records(parser: argparse._ActionsContainer) -> None:
    """Add ``--records`` and ``--no-tuned``."""
    text = "what `smartmem tune` found (default: its file in tuning_logs/ here, if there is one)"
    parser.add_argument("--records", metavar="FILE", help=text)
    text = "use the schedules that kernels have without tuning"
    parser.add_argument("--no-tuned", dest="records", action="store_const", const="", help=text)


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return shapes by input name from texts like ``x:1,3,224,224``; a scalar is ``x:``.

    Raises
    ------
    UserError
        If a text has no colon, a size is not a number, or a name is repeated.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, colon, sizes = text.rpartition(":")
        if _RANGE.search(text):
            raise UserError(
                f"--shape {text} leaves a size open, and this command takes one size: give one, or use `smartmem "
                f"compile`, `run`, `verify` or `bench`, which take a range."
            )
        if "{" in sizes:
            raise UserError(
                f"--shape {text} gives a list of sizes, and this command takes one size: give one, or use `smartmem "
                f"compile`, `run`, `verify`, `bench`, `explain`, `stats` or `plan`, which take lists."
            )
        try:
            shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
        except ValueError:
            colon = ""
        if not (name and colon):
            raise UserError(f"--shape {text} must be a name, a colon and sizes, as in --shape x:1,3,224,224.")
        if name in shapes:
            raise UserError(f"--shape gives '{name}' twice; give each input one shape.")
        shapes[name] = shape
    return shapes


def parse_values(texts: list[str]) -> dict[str, bool | int | float | list]:
    """Return numbers by input name from texts like ``sr=16000``, ``sizes=1,2,3`` or ``flag=true``.

    Raises
    ------
    UserError
        If a text has no ``=``, has something other than numbers after it, or a name is repeated.
    """
    values: dict[str, bool | int | float | list] = {}
    for text in texts:
        name, equals, numbers = text.rpartition("=")
        try:
            found = [_number(each) for each in numbers.split(",")]
        except ValueError:
            equals = ""
        if not (name and equals):
            raise UserError(f"--value {text} must be a name, = and a number, or several with commas: --value sr=16000.")
        if name in values:
            raise UserError(f"--value gives '{name}' twice; give each input one value.")
        values[name] = found if len(found) > 1 else found[0]
    return values


def _number(text: str) -> bool | int | float:
    truth = {"true": True, "false": False}.get(text.strip().lower())
    if truth is not None:
        return truth
    try:
        return int(text)
    except ValueError:
        return float(text)


def read_model(args: argparse.Namespace) -> Model:
    """Read the file MODEL, once for all steps of a command."""
    from ..frontend import read_model

    shapes, values, rows = parse_shapes(args.shape), parse_values(args.value), parse_rows(getattr(args, "cache", []))
    with step(f"Reading {args.model}"):
        return read_model(args.model, shapes, values=values, rows=rows)


def make_inputs(
    args: argparse.Namespace, spec: Spec, limits: Mapping[str, int], fixed: Mapping[str, ArrayLike]
) -> list[np.ndarray]:
    """Return checked arrays in the order of the model's inputs: those of ``--input``, otherwise random ones.

    The file may also hold inputs with a fixed value (`fixed`), with that value.
    """
    from ..frontend import check_inputs
    from ..frontend.fixed_inputs import without_fixed
    from ..frontend.inputs import as_stated, random_inputs, read_arrays

    if args.input is None:
        return check_inputs(spec, random_inputs(spec, limits, args.seed))
    given = without_fixed(read_arrays(args.input, list(spec)), fixed)
    return check_inputs(spec, as_stated(spec, given))


def with_positions(model: Model, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return random inputs with positions that follow the rows of caches that grow in the file."""
    if model.original is None:
        return arrays
    given = model.original.placed(dict(zip(model.inputs, arrays, strict=True)))
    return [given[name] for name in model.inputs]


def import_model(args: argparse.Namespace, model: Model | None = None) -> tvm.IRModule:
    """Return the Relax module of MODEL, which may have been read before."""
    from ..frontend import from_onnx

    model = model or read_model(args)
    with step(f"Importing {args.model}"):
        return from_onnx(model)


def import_baseline(args: argparse.Namespace, model: Model | None = None) -> tvm.IRModule:
    """Return the Relax module of TVM's own importer, or of ours if TVM's refuses the file."""
    from ..frontend import from_onnx_as_tvm

    model = model or read_model(args)
    with step(f"Importing {args.model} with TVM's importer"):
        return from_onnx_as_tvm(model)


def options(args: argparse.Namespace) -> Options:
    """Return the pipeline's options from the switches."""
    found = graph_options(args)
    if args.dump_dir is not None:
        try:
            Path(args.dump_dir).mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise UserError(f"Dump folder {args.dump_dir} cannot be made ({err.strerror}); give another.") from err
    bounds = getattr(args, "bounds", False)
    return replace(found, dump_dir=args.dump_dir, records=open_records(args), check=args.check, bounds=bounds)


def graph_options(args: argparse.Namespace) -> Options:
    """Return the options that determine the graph of kernels."""
    from ..pipeline import Options
    from ..requirements import require_precision, require_weights
    from ..target import parse_target

    require_precision(parse_target(args.target), args.precision)
    require_weights(args.weights)
    techniques = {name: getattr(args, name) for name in TECHNIQUES if hasattr(args, name)}
    budget = getattr(args, "memory_budget", None)
    more = {name: getattr(args, name) for name in ("weights", "activations")}
    more |= {"float_weights": tuple(args.float_weights)}
    more |= {"caches": parse_caches(getattr(args, "cache", [])), "profiles": open_profiles(args)}
    return Options(**techniques, **more, precision=args.precision, memory_budget=budget)


def open_profiles(args: argparse.Namespace) -> ProfileStore | None:
    """Return the profile store that the arguments, or otherwise the environment, name; None if there is none.

    Raises
    ------
    UserError
        If the named file does not exist or cannot be read.
    """
    from ..deploy.fill_profiles import device_name, open_store, other_cpu
    from ..target import parse_target
    from ..tune.host import default_store

    named, target = getattr(args, "profiles", ""), parse_target(args.target)
    path = default_store(device_name(target) or other_cpu(target)) if named is None else Path(named) if named else None
    if path is None or (named is None and not path.exists()):
        return None
    if not path.exists():
        raise UserError(f"Profile store {path} does not exist; `smartmem profile MODEL --profiles {path}` makes one.")
    return open_store(path, target)


def open_records(args: argparse.Namespace) -> tvm.transform.Pass | None:
    """Return the pass that applies tuned schedules to kernels; None if the target has none.

    Raises
    ------
    UserError
        If the named file does not exist or cannot be read.
    """
    from ..deploy.tuned import default_records, open_tuned
    from ..target import parse_target

    named, target = getattr(args, "records", ""), parse_target(args.target)
    path = default_records(target) if named is None else Path(named) if named else None
    if path is None or (named is None and not path.exists()):
        return None
    if not path.exists():
        raise UserError(f"Records {path} do not exist; `smartmem tune MODEL --records {path}` makes them.")
    return open_tuned(path, target, getattr(args, "threads", None))


def compile_model(
    args: argparse.Namespace,
    mod: tvm.IRModule,
    observe: Callable[[str, tvm.IRModule], None] | None = None,
    **changes: object,
) -> Compiled:
    """Compile with the options of the arguments; `observe` is called with the module after each graph phase.

    `changes` are options that differ from those of the arguments.
    """
    from ..deploy.build import compile
    from ..target import parse_target

    target = parse_target(args.target)
    with step(f"Compiling {args.model}"):
        return compile(mod, target, replace(options(args), **changes), observe)

# SPDX-License-Identifier: Apache-2.0
"""``smartmem run``: run a compiled folder, or compile and run an ONNX file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, shape_text
from ..peak_memory import peak_mb
from ..tools.bench.plot import require_matplotlib
from ..tools.bench.turns import inference, medians
from ..tune.host import set_threads
from ..whole_file import check_output, whole
from .argument_types import positive
from .arrays import save_npz
from .console import Result, peak_text, step, table, tuning_text
from .model import (
    add_cache,
    add_compilation,
    add_input,
    add_memory_budget,
    add_model,
    add_threads,
    compile_model,
    make_inputs,
)
from .several_sizes import chosen_size, import_sizes

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from ..deploy.compiled import Compiled
    from ..deploy.export import Loaded

NAME = "run"
HELP = "run a compiled folder, or compile an ONNX model and run it"
EXAMPLE = """\
  smartmem run swin                                        a folder made by smartmem compile, random input
  smartmem run model.onnx --input x.npz --output y.npz     arrays in, arrays out, under the model's own names
  smartmem run swin --repeat 50 --threads 1                median latency on one core
  smartmem run several --shape x:4,3,224,224               one of the sizes that a folder was compiled for"""

_COLUMNS = ("output", "shape", "dtype", "min", "mean", "max")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser, "a folder made by `smartmem compile`, or an ONNX or .pt2 file")
    add_input(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the outputs to this .npz file")
    parser.add_argument("--repeat", type=positive, default=10, metavar="N", help="timed runs (default: 10)")
    add_threads(parser)
    text = "with a memory budget: draw what was read and computed when in the last run (.svg, .png or .pdf)"
    parser.add_argument("--timeline", metavar="FILE", help=text)
    text = "of an ONNX file: find the kernel and the index if an access is out of bounds; slow, and for a CPU only"
    parser.add_argument("--check-bounds", dest="bounds", action="store_true", help=text)
    add_compilation(parser)
    add_memory_budget(parser)
    add_cache(parser)


def execute(args: argparse.Namespace) -> Result:
    """Run the model, summarise its outputs and time it."""
    if args.output is not None:
        check_output(Path(args.output), source=Path(args.model))
    if args.timeline is not None:
        require_matplotlib(Path(args.timeline), "--timeline")
        check_output(Path(args.timeline), source=Path(args.model))
    threads = set_threads(args.threads)
    model, names, arrays = _load(args) if Path(args.model).is_dir() else _compile(args)
    with step("Running"):
        outputs = dict(zip(names, model.run_whole(arrays)))
        (latency,) = medians([_inference(model, arrays)], args.repeat, warm_up=1)
    if args.timeline is not None:
        _draw(args, model)
    if args.output is not None:
        with whole(Path(args.output)) as partial:
            save_npz(partial, outputs)
    data = {
        "model": args.model,
        "threads": threads,
        "repeat": args.repeat,
        "latency_ms": latency * 1e3,
        "peak_mb": peak_mb(),
        "tuning": _tuning(model),
        "outputs": {name: _summary(array) for name, array in outputs.items()},
    }
    return Result(data, lambda console: _render(console, data))


def _inference(model: Compiled | Loaded, arrays: list[np.ndarray]) -> Callable[[], object]:
    """Return a function that runs the model once; with an open dimension it cuts the inputs into tiles, too."""
    if model.open:
        return lambda: model.run(*arrays)
    given = model.without_caches(arrays)
    return inference(model.vm, given, model.function_of(given))


def _draw(args: argparse.Namespace, model: Compiled | Loaded) -> None:
    """Draw the timeline of the last run."""
    from ..deploy.streamed import StreamedMachine
    from ..tools.page.timeline_plot import draw_timeline

    if not isinstance(model.vm, StreamedMachine):
        raise UserError("--timeline is for models with a memory budget, which read weights while they run.")
    title = f"{Path(args.model).stem} within {model.vm.memory_plan.bytes / 1e6:.1f} MB"
    with step(f"Drawing {args.timeline}"):
        draw_timeline(model.vm.timeline(), title, Path(args.timeline))


def _load(args: argparse.Namespace):
    from ..deploy.export import load

    with step(f"Loading {args.model}"):
        model = load(args.model, args.memory_budget)
    spec = chosen_size(args, model.sizes, groups=model.open) if model.sizes else model.inputs
    return model, model.manifest["outputs"], make_inputs(args, spec, model.limits, model.values)


def _compile(args: argparse.Namespace):
    from ..frontend import output_names
    from ..frontend.inputs import id_limits
    from ..ir.public_functions import MAIN
    from ..ir.several_sizes import size_functions, tile_groups

    read = import_sizes(args)
    models, mod = read.models, read.module
    functions = size_functions(mod) or [MAIN]
    # Check the input before the costly compilation.
    sizes = {name: model.inputs for name, model in zip(functions, models, strict=True)}
    spec = chosen_size(args, sizes, asked=False, groups=tile_groups(mod))
    arrays = make_inputs(args, spec, id_limits(models[0].proto), models[0].values)
    del models, read  # frees their weights, which the module holds in another form
    return compile_model(args, mod), output_names(mod, functions[0]), arrays


def _tuning(model: Compiled | Loaded) -> dict | None:
    """Return `tuning_report`, computed or from the manifest."""
    from ..deploy.export import Loaded

    if isinstance(model, Loaded):
        return model.manifest.get("tuning")
    from ..deploy.tuned import tuning_report

    return tuning_report(model.tuning, len(model.rules))


def _summary(array: np.ndarray) -> dict:
    facts = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if not array.size:
        return {**facts, "min": None, "mean": None, "max": None}
    return {**facts, "min": array.min(), "mean": float(array.mean()), "max": array.max()}


def _render(console: Console, data: dict) -> None:
    rows = [
        (
            name,
            shape_text(each["shape"]),
            each["dtype"],
            *("-" if each[key] is None else f"{each[key]:.6g}" for key in ("min", "mean", "max")),
        )
        for name, each in data["outputs"].items()
    ]
    console.print(table(data["model"], _COLUMNS, rows, numbers=(3, 4, 5)))
    console.print(
        f"{data['latency_ms']:.2f} ms, the median of {data['repeat']} runs. Threads: {data['threads']}, "
        f"{peak_text(data)}.\n{tuning_text(data['tuning'])}"
    )

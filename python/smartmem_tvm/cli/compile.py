# SPDX-License-Identifier: Apache-2.0
"""``smartmem compile``: compile an ONNX file into a folder that ``smartmem run`` loads."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..peak_memory import peak_mb
from .console import Result, peak_text, step, tuning_text
from .model import add_cache, add_compilation, add_memory_budget, add_model, compile_model, parse_rows
from .several_sizes import import_sizes, weights_text

if TYPE_CHECKING:
    import tvm
    from rich.console import Console

    from ..deploy.compiled import Compiled

NAME = "compile"
HELP = "compile an ONNX model into a folder: library, manifest, explanation"
EXAMPLE = """\
  smartmem compile models/swin_t.onnx -o swin
  smartmem compile model.onnx -o out --shape images:1,3,640,640
  smartmem compile model.onnx -o out --shape 'x:{1,4,8},3,224,224'        three sizes, with one set of weights
  smartmem compile model.onnx -o out --shape x:1..64,3,224,224            any batch of 1 to 64
  smartmem compile llama.onnx -o llama --cache auto                       a decoder, for smartmem generate
  smartmem compile llama.gguf -o llama --cache auto                       the same from a GGUF file
  smartmem compile models/swin_t.onnx -o phone --target adreno-740

The folder holds lib.so (the code, loads with TVM's runtime; for a phone and without an NDK here lib.tar, its object
files), weights.bin (its large constants, arguments of main after the inputs), manifest.json (inputs, outputs, where
each weight is, which kernels are tuned, how to link, versions, checksums) and explain.json (what was done to each
operator). It appears complete or not at all."""


# The next step with code for this machine, and for another one.
_NEXT = ("Run it with: smartmem run {}", "Load {}/lib.so on the device, over TVM RPC.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_model(parser)
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder to write")
    add_compilation(parser)
    add_memory_budget(parser)
    add_cache(parser)


def execute(args: argparse.Namespace) -> Result:
    """Compile and save."""
    from ..deploy.export import check_destination, save
    from ..deploy.record_graph import record_graph
    from ..deploy.signatures import launched
    from ..deploy.tuned import tuning_report
    from ..deploy.weights import constant_bytes
    from ..frontend.inputs import id_limits
    from ..graph_report import explain
    from ..ir.public_functions import MAIN
    from ..ir.several_sizes import size_functions
    from ..target import parse_target

    folder = check_destination(args.output, parse_target(args.target))
    read = import_sizes(args)
    models, mod = read.models, read.module
    limits = id_limits(models[0].proto)
    values = {name: array.tolist() for name, array in models[0].values.items()}
    del models, read  # frees their weights, which the module holds in another form
    rows, before = parse_rows(getattr(args, "cache", [])), record_graph(mod, (size_functions(mod) or [MAIN])[0])
    compiled = compile_model(args, mod)
    names = compiled.sizes or [MAIN]  # of an open batch only some tiles are compiled
    inside = constant_bytes(compiled.graph)
    sizes = [_size_facts(mod, compiled, name, limits) for name in names]
    facts = {
        "model": args.model,
        "values": values,
        **({"rows": rows} if rows is not None else {}),
        **{key: value for key, value in sizes[0].items() if key != "function"},
        **({"sizes": sizes} if compiled.sizes else {}),
        "precision": args.precision,
        "opencl": _opencl(compiled),
        "tuning": tuning_report(compiled.tuning, len(compiled.rules)),
        "memory_bytes": {
            "activations": sum(each["bytes"] for each in compiled.memory.get("storages", ())),
            "weights": sum(each.nbytes for each in compiled.weights) + inside,
        },
        "constant_bytes": inside,
    }
    by_size = {name: launched(compiled.graph, compiled.signatures, name) for name in names}
    explanation = {
        **explain(compiled.graph, names[0]),
        "graphs": {"before": before, "after": record_graph(compiled.graph, names[0])},
        "rules": compiled.rules,
        "memory": compiled.memory,
        "memory_by_size": compiled.size_memory,
        "launched": by_size[names[0]],
        "launched_by_size": {name: by_size[name] for name in compiled.sizes},
    }
    with step(f"Writing {folder}"):
        manifest = save(compiled, folder, facts, explanation)
    seconds = sum(compiled.seconds.values())
    data = {"folder": str(folder), "compile_seconds": seconds, "peak_mb": peak_mb(), "manifest": manifest}
    return Result(data, lambda console: _render(console, data))


def _size_facts(mod: tvm.IRModule, compiled: Compiled, function: str, limits: dict[str, int]) -> dict:
    """Return the entry of the manifest for one size, or for a model of one size."""
    from ..frontend import input_spec, output_names
    from ..graph_report import graph_cost

    cost = graph_cost(compiled.graph, function)
    inputs = [
        {"name": name, "shape": list(shape), "dtype": dtype, "ids_below": limits.get(name)}
        for name, (shape, dtype) in input_spec(mod, function).items()
    ]
    return {
        "function": function,
        "inputs": inputs,
        "outputs": output_names(mod, function),
        "kernels": cost.kernels,
        "layout_kernels": cost.layout_kernels,
        **({"weight_bytes": compiled.size_weights[function]} if compiled.sizes else {}),
    }


def _opencl(compiled: Compiled) -> dict | None:
    """Return the findings of the check of OpenCL kernels; None for other targets."""
    from ..analysis.texel_reads import summed

    if not compiled.texel_reads:
        return None
    reads = summed(compiled.texel_reads.values())
    return {"checked": len(compiled.texel_reads), "whole_texel_reads": reads.whole, "other_texel_reads": reads.partial}


def _opencl_text(found: dict | None) -> str:
    from ..analysis.texel_reads import PARTIAL

    if found is None:
        return ""
    partial = found["other_texel_reads"]
    reads = found["whole_texel_reads"] + sum(partial.values())
    why = "; ".join(f"{count} {PARTIAL[reason]}" for reason, count in partial.items())
    use = f"; of {reads} reads of texels {found['whole_texel_reads']} use all four numbers" if reads else ""
    return f"{found['checked']} OpenCL kernels checked{use}{' (' + why + ')' if why else ''}.\n"


def _sizes_text(manifest: dict) -> str:
    """Return how many sizes a folder holds, or the tiles of an open dimension; empty for one size."""
    if groups := manifest.get("open"):
        first = groups[0]
        tiles = ", ".join(map(str, sorted({each["items"] for group in groups for each in group["tiles"]})))
        how = f"positions, at capacities of {tiles}" if first.get("length") else f"items, in tiles of {tiles}"
        text = f"{first['least']} to {first['most']} {how}; "
        if around := first.get("around"):
            text = f"{around['least']} to {around['most']} items of {text}"
        return text + (f"{len(groups)} other sizes; " if len(groups) > 1 else "")
    sizes = manifest.get("sizes", ())
    return f"{len(sizes)} sizes, " if len(sizes) > 1 else ""


def _render(console: Console, data: dict) -> None:
    manifest = data["manifest"]
    sizes = manifest.get("sizes", [manifest])
    kernels, layout = (sum(each[key] for each in sizes) for key in ("kernels", "layout_kernels"))
    console.print(
        f"{manifest['model']}: {_sizes_text(manifest)}{kernels} kernels, {layout} of them "
        f"layout, compiled in {data['compile_seconds']:.1f} s, {peak_text(data)}.\n"
        + weights_text(manifest)
        + _opencl_text(manifest["opencl"])
        + tuning_text(manifest["tuning"])
        + "\n"
        + (manifest["link"] or _NEXT[bool(manifest["host"])].format(data["folder"]))
    )

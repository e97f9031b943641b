# SPDX-License-Identifier: Apache-2.0
"""``smartmem inspect``: show the contents of a compiled folder and the memory it needs, without running it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .console import Result, megabytes, table, tuning_text

if TYPE_CHECKING:
    from rich.console import Console

NAME = "inspect"
HELP = "say what a compiled folder holds: inputs, outputs, kernels, and the memory that an inference takes"
EXAMPLE = """\
  smartmem inspect swin                a folder of `smartmem compile`, for this machine or another one
  smartmem inspect swin --json         the same for machines

Nothing is run or loaded, and the device that it was compiled for need not be here. `smartmem plan swin` shows which
tensor lies where."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("folder", metavar="DIR", help="a folder of `smartmem compile`")


def execute(args: argparse.Namespace) -> Result:
    """Read the manifest and the plan."""
    from ..deploy.manifest import check_files, read_manifest
    from ..tools.page.read_sources import read_sources
    from ..tools.page.tensors import memory

    folder = Path(args.folder)
    manifest = read_manifest(folder, elsewhere=True, several=True)
    check_files(folder, manifest)
    explanation = read_sources([args.folder], several=True).models[0][2]
    plan = memory(explanation.get("memory") or {}, manifest)
    by_size = explanation.get("memory_by_size", {})
    figures = ("planned_bytes", "live_bytes", "weight_bytes", "storages")
    said = ("model", "target", "precision", "inputs", "values", "outputs", "kernels", "tuning", "link")
    said = (*said, *(each for each in ("sizes", "open", "caches") if manifest.get(each)))
    data = {
        "folder": args.folder,
        **{key: manifest.get(key) for key in said},
        "memory": {key: plan[key] for key in figures},
        **(
            {"live_bytes": {name: memory(each, manifest)["live_bytes"] for name, each in by_size.items()}}
            if by_size
            else {}
        ),
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    return Result(data, lambda console: _render(console, data))


def _render(console: Console, data: dict) -> None:
    rows = [("model", data["model"]), ("target", data["target"]), ("precision", data["precision"])]
    rows += [("open", text) for text in _open(data)]
    name, live = "tile" if "open" in data else "size", data.get("live_bytes", {})
    rows += [(name, _size(each, live)) for each in data.get("sizes", ())]
    rows += [("input", _tensor(each)) for each in data["inputs"] if "sizes" not in data]
    rows += [("fixed input", f"{name} = {value}") for name, value in (data["values"] or {}).items()]
    rows += [("output", name) for name in data["outputs"]]
    rows += [("cache", f"{each['input']}, given back as {each['output']}") for each in data.get("caches", ())]
    rows += [("kernels", data["kernels"])] if "sizes" not in data else []
    rows += [("file", f"{name}, {size:,} bytes") for name, size in data["files"].items()]
    console.print(table(data["folder"], ("", ""), rows))
    console.print(f"{memory_text(data['memory'])}\n{tuning_text(data['tuning'])}")


def memory_text(found: dict) -> str:
    """Return the memory of an inference, of several sizes the largest, as a sentence."""
    if found["planned_bytes"] is None:
        return "The memory that an inference takes is not on record."
    return (
        f"An inference takes {megabytes(found['planned_bytes'])} in {len(found['storages'])} allocations, of which "
        f"{megabytes(found['live_bytes'])} are in use at once, and {megabytes(found['weight_bytes'])} for weights."
    )


def _open(data: dict) -> list[str]:
    """Return the inputs of each group of tiles, with the range of items in its place."""
    from ..ir.several_sizes import open_shape

    sizes, texts = {each["function"]: each["inputs"] for each in data.get("sizes", ())}, []
    for group in data.get("open", ()):
        tile, inputs = group["tiles"][0], []
        for number, each in enumerate(sizes[tile["function"]]):
            inputs.append(_tensor({**each, "shape": open_shape(group, each["shape"], number)}))
        texts.append("; ".join(inputs))
    return texts


def _size(each: dict, live_bytes: dict[str, int]) -> str:
    """Return the inputs of a size, its kernels, the weights that they read, and its memory in use at once."""
    inputs = "; ".join(map(_tensor, each["inputs"]))
    live = f", {megabytes(live_bytes[each['function']])} in use at once" if each["function"] in live_bytes else ""
    return f"{inputs} ({each.get('kernels')} kernels, weights of {megabytes(each.get('weight_bytes', 0))}{live})"


def _tensor(each: dict) -> str:
    return f"{each['name']}: {each['dtype']} {'x'.join(map(str, each['shape']))}"

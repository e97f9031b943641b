# SPDX-License-Identifier: Apache-2.0
"""Save a compiled model as a folder, whole or not at all, and load it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .._version import TVM_PINS, __version__, installed_version
from ..errors import UserError
from ..tvm_lock import one_at_a_time
from ..whole_folder import make_sibling, replace_folder, writable
from .compilers import LIBRARY, OBJECTS
from .manifest import (
    EXPLANATION,
    FORMAT,
    MANIFEST,
    PLAN,
    WEIGHTS,
    cache_plan,
    check_files,
    checksum,
    functions_of,
    input_spec,
    manifest_in,
    outputs_of,
    parameters_of,
    read_manifest,
    streams_of,
)
from .runnable import Runnable

if TYPE_CHECKING:
    import tvm

    from ..planner.preload import PreloadPlan
    from .compiled import Compiled
    from .inference_session import Session
    from .streamed import StreamedMachine
    from .weights import Machine

_LOADED: dict[Path, int] = {}  # library of this process -> inode of the file that was loaded
_OURS = {LIBRARY, OBJECTS, WEIGHTS, MANIFEST, EXPLANATION, PLAN}


@dataclass(frozen=True)
class Loaded(Runnable):
    """A compiled model from a folder.

    Attributes
    ----------
    manifest : dict
        The manifest that `save` wrote.
    vm : tvm.relax.VirtualMachine
        Runs the model on this machine's CPU, or on the first device of the kind that it was compiled for.
    """

    manifest: dict
    vm: Machine

    @property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Input name -> (shape, dtype), in the model's order."""
        return input_spec(self.manifest["inputs"])

    @property
    def sizes(self) -> dict[str, dict[str, tuple[tuple[int, ...], str]]]:
        """Of a model of several sizes: function -> its inputs, as in `inputs`, which are those of the first size."""
        return {each["function"]: input_spec(each["inputs"]) for each in self.manifest.get("sizes", ())}

    @property
    def open(self) -> list[dict]:
        """The tiles of a model with an open dimension (`ir.several_sizes.tile_groups`); none for any other."""
        return self.manifest.get("open", [])

    @property
    def limits(self) -> dict[str, int]:
        """Input name -> exclusive upper bound of its integers, if the model has one (`frontend.inputs.id_limits`)."""
        return {each["name"]: each["ids_below"] for each in self.manifest["inputs"] if each.get("ids_below")}

    @property
    def values(self) -> dict[str, bool | int | float | list]:
        """Inputs of the model's file that were compiled in as constants: name -> numbers."""
        return self.manifest.get("values", {})

    def set_memory_budget(self, budget: int | str | None) -> PreloadPlan:
        """Change the memory budget, for example to ``"60MB"``; with None, to the bytes that keep all weights.

        Raises
        ------
        UserError
            If the model was compiled without a budget, or does not run within this one.
        """
        if not streams_of(self.manifest):
            raise UserError("This model has its weights in memory: compile it with a memory budget first.")
        return self.vm.set_memory_budget(budget)

    @cached_property
    def _first(self) -> Session:
        from .inference_session import Session
        from .several_sizes import SizeChoice
        from .tiles import Tiles, length_of

        sizes = {each["function"]: each for each in self.manifest.get("sizes", ())}
        described, caches = functions_of(self.manifest), cache_plan(self.manifest)
        functions = {name: caches.inputs(name, parameters_of(each)) for name, each in described.items()}
        functions = {name: [*each, *length_of(self.open, name)] for name, each in functions.items()}
        outputs = {name: caches.outputs(name, outputs_of(each)) for name, each in described.items()}
        every = {name: [param["name"] for param in each["inputs"]] for name, each in described.items()}
        choose = SizeChoice(functions) if sizes else None
        tiles, default = Tiles(self.open, functions) if self.open else None, None if sizes else "main"
        return Session(self.vm, functions, default, outputs=outputs, choose=choose, tiles=tiles, every=every)


def check_destination(folder: str | Path, target: tvm.target.Target) -> Path:
    """Refuse a folder that `save` could not write, before time is spent on compiling; change nothing.

    Parameters
    ----------
    target : tvm.target.Target
        The target of the model, whose code must be linked.

    Returns
    -------
    Path
        The resolved folder.

    Raises
    ------
    UserError
        If the folder exists and is neither empty nor a compiled model, if it cannot be written, or if there is no
        compiler to link with.
    """
    from .link import link_for

    folder = Path(folder).resolve()
    _refuse_foreign(folder)
    with writable(folder):
        make_sibling(folder).rmdir()
    link_for(target)
    return folder


@one_at_a_time
def save(compiled: Compiled, folder: str | Path, manifest: Mapping, explanation: Mapping) -> dict:
    """Write a compiled model: the library, its weights, its manifest, and the decisions of the passes.

    The files go into a new folder next to the destination, which is then renamed. So the destination always holds a
    whole model, the old one or the new one.

    Parameters
    ----------
    manifest : mapping
        ``inputs`` (a list of ``name``, ``shape``, ``dtype``), ``outputs`` (a list of names) and any other facts. Of a
        model of several sizes, these are of the first, and ``sizes`` has ``function``, ``inputs`` and ``outputs`` of
        each.

    Returns
    -------
    dict
        The manifest as written: `manifest` with format, versions, target, the library's name, its CPU if not this
        machine's, how to link it if that is left to do, the place of each weight, and SHA-256 sums.

    Raises
    ------
    UserError
        As `check_destination`, and if the model has other functions than ``main``.
    """
    from .link import link_for
    from .outputs import outputs
    from .streamed import write_plan
    from .weights import write_weights

    if list(compiled.functions) != ["main"] and not compiled.sizes:
        names = ", ".join(f"'{name}'" for name in compiled.functions)
        raise UserError(
            f"A folder holds a model of one function, 'main', and this one has {names}: compile a module of one of "
            f"them, called 'main'."
        )

    def own(name: str) -> list[bool]:
        return [each.own for each in outputs(compiled.graph, name, kept=bool(compiled.weight_streams))]

    def held(described: Mapping, name: str) -> dict:
        pairs = [
            {
                "input": each.name,
                "output": described["outputs"][each.output],
                "axis": each.axis,
                **({"sequences": each.sequences} if each.sequences > 1 else {}),
                **({"circular": True} if each.circular else {}),
            }
            for each in caches.get(name, ())
        ]
        return {"caches": pairs} if pairs else {}

    def facts(described: Mapping, name: str) -> dict:
        stream = {"stream": compiled.weight_streams[name]} if name in compiled.weight_streams else {}
        return {"own_outputs": own(name), **held(described, name), **stream}

    caches = compiled.caches.functions
    sizes = [{**each, **facts(each, each["function"])} for each in manifest.get("sizes", ())]
    folder, link = check_destination(folder, compiled.target), link_for(compiled.target)
    with writable(folder):
        partial = make_sibling(folder)
        try:
            link.write(compiled.executable, partial)
            places = write_weights(compiled.weights, partial / WEIGHTS)
            if list(compiled.weight_streams) == ["main"]:
                write_plan(compiled.weight_streams["main"], partial / WEIGHTS, places)
            _write_json(partial / EXPLANATION, explanation)
            full = {
                "format": FORMAT,
                "smartmem_tvm": __version__,
                **{name: installed_version(name) for name in TVM_PINS},
                "target": str(compiled.target),
                "cpu": str(compiled.target.attrs.get("mcpu", "")),
                "host": link.triple,
                "library": link.file,
                "link": link.how,
                **manifest,
                **facts(manifest, compiled.sizes[0] if sizes else "main"),
                **({"sizes": sizes} if sizes else {}),
                **({"open": compiled.open} if compiled.open else {}),
                "weights": places,
                "sha256": {name: checksum(partial / name) for name in (link.file, WEIGHTS, EXPLANATION)},
            }
            _write_json(partial / MANIFEST, full)
            replace_folder(folder, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return full


def load(folder: str | Path, memory_budget: int | str | None = None) -> Loaded:
    """Load a folder that `save` wrote; the weights are mapped into memory, so that processes share them.

    Parameters
    ----------
    memory_budget : int or str, optional
        Another budget for a model that was compiled with one, see `Loaded.set_memory_budget`.

    Raises
    ------
    UserError
        If the folder holds no compiled model, an incomplete or changed one, or one made in another format, by another
        TVM, for another CPU, or for a device that this machine lacks.
    """
    import tvm

    from ..target import device_of, has_textures
    from .weights import Machine, map_weights

    folder = Path(folder)
    manifest = read_manifest(folder, several=True)
    check_files(folder, manifest)
    target = tvm.target.Target(manifest["target"])
    device = device_of(target)  # before the library, which TVM cannot even open without the device's runtime
    code = _library(folder / manifest["library"])
    if "stream" in manifest:
        return Loaded(manifest, _streamed(code, folder, manifest, memory_budget))
    weights = map_weights(folder / WEIGHTS, manifest["weights"])
    takers, caches = list(functions_of(manifest)), cache_plan(manifest)
    return Loaded(manifest, Machine(code, weights, device, has_textures(target), takers, caches))


def _streamed(code: tvm.runtime.Module, folder: Path, manifest: Mapping, budget: int | str | None) -> StreamedMachine:
    from .streamed import StreamedMachine

    file = (folder / WEIGHTS).resolve()

    def check() -> None:
        if not file.is_file() or checksum(file) != manifest["sha256"].get(WEIGHTS):
            raise UserError(f"{file} is missing or not the one that was compiled; put it back, or compile again.")

    return StreamedMachine(code, file, manifest["weights"], streams_of(manifest), budget, check)


def _library(path: Path) -> tvm.runtime.Module:
    """Load the code of a library, also if this process has loaded another one from the same path.

    For a path that it knows, the system's loader would return the library loaded before.
    """
    import tvm

    path = path.resolve()
    file = path.stat().st_ino
    if _LOADED.setdefault(path, file) == file:
        return tvm.runtime.load_module(str(path))
    with tempfile.TemporaryDirectory() as place:
        return tvm.runtime.load_module(shutil.copy(path, place))


def _write_json(path: Path, content: Mapping) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _refuse_foreign(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"Output folder {folder} is a file; give another name.")
    present = {path.name for path in folder.iterdir()}
    if present and (manifest_in(folder) is None or present - _OURS):
        raise UserError(
            f"Output folder {folder} exists and holds more or other than a compiled model; give another name."
        )

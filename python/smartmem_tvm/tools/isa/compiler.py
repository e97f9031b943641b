# SPDX-License-Identifier: Apache-2.0
"""Run Mesa's compilers for Adreno and Mali on OpenCL programs, and keep what they print."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ... import json_data
from ...deploy.binary_cache import BinaryCache, cache_of
from ...errors import UserError
from ...mesa_folder import FOLDER_VARIABLE as MESA_VARIABLE
from ...mesa_folder import MALI, PROGRAM, ROOT, enter, mesa_folder, mesa_problem, mesa_version
from ...tables.targets import Row
from .drivers import GPUS, MALI_GPUS, Driver, Gpu, driver_of, number_of

FOLDER_VARIABLE = "SMARTMEM_ISA_CACHE"
"""Environment variable that names the folder of kept results; ``0`` for none."""
ENDED = "Mesa's compiler ended while it compiled this kernel"
_FORMAT = "1"  # of a kept result
_PREFIX = "MESA: info: "
_NATIVE = "Native code for "
STATISTICS = "MESA_SHADER_KERNEL shader: "
"""What begins the line in which panfrost counts a kernel, behind its code."""
_BLOCK = "block0 {"
_WORDS = re.compile(r" {3}\S|clause_0:")  # Mali's code again, as the words of memory say it
_START = "start-"  # folder of what panfrost makes before the first program, for each GPU
_KERNEL = re.compile(r"^@@KERNEL \S+ threads=(\d+) local=(\d+) private=(\d+)", re.MULTILINE)
_DECLARED = re.compile(r"^__kernel void [^{;]*;\n", re.MULTILINE)
_SIZE = re.compile(r"^// Work group (\d+) (\d+) (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Compiled:
    """What Mesa makes of one OpenCL program with one kernel.

    Attributes
    ----------
    code : str
        Machine code and statistics as ir3 prints them; of Mali the line of statistics, and then the code as its
        compiler has it at last. Empty if it refused.
    threads : int
        Most threads of a thread block, as registers allow.
    local_bytes, scratch_bytes : int
        Local memory of a thread block, and private memory of a thread outside its registers.
    refused : str
        Why there is no code.
    """

    code: str = ""
    threads: int = 0
    local_bytes: int = 0
    scratch_bytes: int = 0
    refused: str = ""


def require(gpu: Gpu) -> None:
    """Refuse a GPU that Mesa does not compile for, and a machine without Mesa.

    Raises
    ------
    UserError
        With the nearest Adreno that it takes, or with the command that gets Mesa.
    """
    if isinstance(gpu, str) and gpu not in MALI_GPUS:
        raise UserError(f"Mali {gpu} was not tried with Mesa's compiler; give --gpu {', '.join(MALI_GPUS)} or none.")
    if not isinstance(gpu, str) and gpu not in GPUS:
        nearest = min(GPUS, key=lambda each: (abs(each - gpu), -each))
        raise UserError(f"Mesa compiles no OpenCL for Adreno {gpu}; give --gpu {nearest}, the nearest that it takes.")
    if problem := mesa_problem(driver_of(gpu).family):
        raise UserError(f"{problem[0].upper()}{problem[1:]}.")


def gpu_of(row: Row | None) -> int | None:
    """Return the number of the Adreno in a row of `tables.targets`; None for other devices."""
    return int(row.name.rpartition("-")[2]) if row is not None and row.family == "adreno" else None


def mali_of(row: Row | None) -> str | None:
    """Return the name of the Mali in a row of `tables.targets` (``"G57"``); None for other devices."""
    return row.name.rpartition("-")[2].upper() if row is not None and row.family == MALI else None


def compile_all(
    sources: Mapping[str, str], gpu: Gpu, observe: Callable[[str], None] = lambda _: None
) -> dict[str, Compiled]:
    """Compile OpenCL programs for an Adreno or a Mali; those that were compiled before are read from the cache.

    Parameters
    ----------
    sources : mapping
        Name -> source of one kernel, with the line ``// Work group X Y Z`` where its size is known.
    observe : callable
        Called with the name of each program that is finished.

    Raises
    ------
    UserError
        If Mesa is not set up here, or cannot be run.
    """
    require(gpu)
    kept, version = (
        cache_of(FOLDER_VARIABLE, "isa", "what Mesa's compiler makes of kernels"),
        mesa_version(driver_of(gpu).family),
    )
    programs = {name: prepared(source) for name, source in sources.items()}
    keys = {name: (_FORMAT, version, str(gpu), program) for name, program in programs.items()}
    found = {name: known for name, key in keys.items() if (known := _known(kept, key)) is not None}
    for name in found:
        observe(name)
    left = {name: programs[name] for name in programs if name not in found}
    while left:
        before = len(left)
        for name, made in _run(dict(left), gpu):
            found[name] = made
            if made.refused != ENDED:  # it may have been killed, or have had too little memory
                kept.store(zlib.compress(json.dumps(asdict(made)).encode()), *keys[name])
            del left[name]
            observe(name)
        if len(left) == before:
            raise UserError("Mesa's compiler ends before it has compiled anything; run `smartmem isa --setup` again.")
    kept.prune()
    return {name: found[name] for name in sources}


def _known(kept: BinaryCache, key: tuple[str, ...]) -> Compiled | None:
    stored = kept.load(*key)
    return Compiled(**json_data.parse(zlib.decompress(stored))) if stored is not None else None


def prepared(source: str) -> str:
    """Return a program that states its size of thread block to the compiler, which counts waves by it.

    Declarations of a network's other kernels are left out, so that the result of a kernel is kept for all networks.
    """
    source = _DECLARED.sub("", source).rstrip() + "\n"
    size = _SIZE.search(source)
    if size is None or "reqd_work_group_size" in source:
        return source
    stated = f"__kernel void __attribute__((reqd_work_group_size({', '.join(size.groups())}))) "
    return source.replace("__kernel void ", stated)


def _run(programs: Mapping[str, str], gpu: Gpu) -> Iterable[tuple[str, Compiled]]:
    """Compile programs in one process; yield each as soon as it is done, and one that ends the process as refused."""
    driver = driver_of(gpu)
    root = mesa_folder(driver.family) / ROOT
    with _work_folder(root / Path(PROGRAM).parent) as folder:
        names = {}
        for number, (name, program) in enumerate(programs.items()):
            path = Path(folder, f"{number}.cl")
            path.write_text(program, encoding="utf-8")
            names[f"/{path.relative_to(root)}"] = name
        cache = _started(root, driver, gpu, Path(folder)) if driver.keeps_start else None
        with _process(root, driver, gpu, list(names), cache) as process:
            try:
                for name, made in read(process.stdout, names):
                    if made is not None:
                        yield name, made
            finally:
                process.kill()


def _process(root: Path, driver: Driver, gpu: Gpu, files: list[str], cache: Path | None) -> subprocess.Popen:
    """Start the program that compiles files; Mesa keeps what it makes in a folder, if one is given."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    environment = {**driver.environment, "PATH": path, driver.gpu_variable: number_of(gpu)}
    if cache is not None:
        environment["MESA_SHADER_CACHE_DIR"] = f"/{cache.relative_to(root)}"
    command = [*enter(), str(root), *driver.starts, f"/{PROGRAM}", *files]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=environment, text=True, errors="replace", **streams)


def _started(root: Path, driver: Driver, gpu: Gpu, work: Path) -> Path:
    """Return a folder with what the driver makes before its first program: 1.5 s of a core in place of 14 under qemu.

    It is a copy: Mesa prints nothing of a kernel that it finds there, so that each run has one without kernels.
    """
    whole = root / Path(PROGRAM).parent / f"{_START}{number_of(gpu)}"
    if not whole.is_dir():
        first = work / "first"
        first.mkdir()
        with _process(root, driver, gpu, [], first) as process:
            process.communicate()
        if not process.returncode:
            with suppress(OSError):  # another process may have been faster
                first.rename(whole)
    return Path(shutil.copytree(whole, work / "start")) if whole.is_dir() else work


def _work_folder(parent: Path) -> tempfile.TemporaryDirectory:
    try:
        return tempfile.TemporaryDirectory(dir=parent)
    except OSError as error:
        raise UserError(
            f"{parent} cannot be written ({error.strerror}), where Mesa reads programs; set {MESA_VARIABLE} to a "
            f"folder of your own, and run `smartmem isa --setup`."
        ) from error


def read(lines: Iterable[str], names: Mapping[str, str]) -> Iterable[tuple[str, Compiled | None]]:
    """Yield the name and result of each program in what the compiler prints.

    None stands for a program that Mesa found compiled: an equal one came before it in the same run.

    Parameters
    ----------
    names : mapping
        File of a program -> its name.
    """
    current, kept, wanted, counted = None, [], False, ""
    for line in (each.removeprefix(_PREFIX) for each in lines):
        if line.startswith("@@FILE "):
            current, kept, wanted, counted = names[line.split()[1]], [], False, ""
        elif current is not None and line.startswith("@@END"):
            yield current, _result(counted + "".join(kept))
            current = None
        elif current is not None:
            if line.startswith((_NATIVE, _BLOCK)):
                kept, wanted = [], True  # of several variants the last one is launched, and of Mali's steps the last
            if line.startswith(STATISTICS):
                counted, wanted = line, False
            ends = line.startswith("shader: ") or (kept[:1] == [f"{_BLOCK}\n"] and _WORDS.match(line))
            wanted = (wanted and not ends) or line.startswith("@@")
            if wanted:
                kept.append(line)
    if current is not None:
        yield current, Compiled(refused=ENDED)


def _result(text: str) -> Compiled | None:
    code, _, told = text.partition("@@")
    found = _KERNEL.search(f"@@{told}")
    if found is not None and not code:
        return None
    if found is None or not code.startswith((_NATIVE, STATISTICS)):
        log = " ".join(told.removeprefix("REFUSED").split())
        return Compiled(refused=log[:300] or "Mesa's compiler printed no code for this kernel")
    return Compiled(code, *map(int, found.groups()))

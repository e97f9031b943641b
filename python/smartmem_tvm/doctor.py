# SPDX-License-Identifier: Apache-2.0
"""Check this machine: report working and faulty parts, and the commands that mend them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smartmem_tvm._version import EXTRAS, ONLY_ON, TVM_PINS, installed_version, pin_command, version_problem
from smartmem_tvm.errors import UserError
from smartmem_tvm.mesa_folder import ADRENO, MALI, mesa_folder, mesa_problem, mesa_version
from smartmem_tvm.tune import json_lines
from smartmem_tvm.tune.host import RECORDS_VARIABLE
from smartmem_tvm.tune.record_lines import judge_of, kind_of

if TYPE_CHECKING:
    from .runtime.opencl import DeviceInfo

_PYTHON = (3, 10)
_DEVICES = ("cuda", "vulkan")
_RECORDS = ".records.jsonl"
_POCL = "Portable Computing Language"
# Distributions whose module has another name. The module counts: xgboost is as good as xgboost-cpu.
_MODULES = {
    "xgboost-cpu": "xgboost",
    "pocl-binary-distribution": "pocl_binary_distribution",
    "iree-base-compiler": "iree",
    "iree-base-runtime": "iree",
    "myst-parser": "myst_parser",
}


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes
    ----------
    name
        The checked item.
    ok
        Whether it is in order.
    detail
        The finding, in a few words.
    remedy
        A command or an action if not `ok`, else empty.
    required
        False for items that only some uses need (tuning, exporting models, a GPU): no reason for a non-zero exit.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True


def diagnose() -> list[Check]:
    """Return all findings, without changing anything; those that the others depend on come first.

    TVM is imported, and its devices are listed, only if the installed pair of packages is the pinned one: another pair
    may crash.
    """
    checks = [_python(), _tvm_pair(), *map(_library, ("numpy", "onnx", "onnxruntime", "rich"))]
    checks += [_extra(name) for name in EXTRAS if _installable(name)]
    checks += [_cores(), _mesa(ADRENO), _mesa(MALI), *_records()]
    if version_problem() is None:
        checks += [_modules(), _llvm(), _linker(), *map(_device, _DEVICES), _opencl_codegen(), *_opencl()]
    return checks


def _python() -> Check:
    found = platform.python_version()
    wanted = ".".join(map(str, _PYTHON))
    ok = sys.version_info >= _PYTHON
    return Check("python", ok, found, "" if ok else f"install Python {wanted} or newer and make a new .venv")


def _tvm_pair() -> Check:
    problem = version_problem()
    found = ", ".join(f"{name} {installed_version(name) or 'missing'}" for name in TVM_PINS)
    return Check("tvm", problem is None, problem or found, "" if problem is None else pin_command())


def _modules() -> Check:
    """Import every module of this package: an installation with missing modules works until one is used."""
    package = importlib.import_module(__package__)
    names = [each.name for each in pkgutil.walk_packages(package.__path__, f"{__package__}.")]
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            if error.name in {_MODULES.get(dist, dist) for dists in EXTRAS.values() for dist in dists}:
                continue  # the missing extra has its own line
            detail = f"module {name} cannot be imported: {error}"
            return Check("smartmem_tvm", False, detail, "pip install --force-reinstall --no-deps smartmem-tvm")
    return Check("smartmem_tvm", True, f"{len(names)} modules in {package.__path__[0]}")


def _library(name: str) -> Check:
    version = installed_version(name)
    return Check(name, version is not None, version or "missing", "" if version else f"pip install {name}")


def _installable(extra: str) -> list[str]:
    here = (sys.platform, platform.machine())
    return [name for name in EXTRAS[extra] if ONLY_ON.get(name, here) == here]


def _extra(name: str) -> Check:
    missing = [dist for dist in _installable(name) if importlib.util.find_spec(_MODULES.get(dist, dist)) is None]
    if not missing:
        return Check(f"extra [{name}]", True, "complete", required=False)
    remedy = f"pip install {' '.join(missing)}"
    return Check(f"extra [{name}]", False, f"missing: {', '.join(missing)}", remedy, required=False)


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("TVM_NUM_THREADS")
    return Check("cpu cores", True, f"{usable} usable" + (f", TVM_NUM_THREADS={limit}" if limit else ""))


def _mesa(family: str) -> Check:
    """Check Mesa's compiler for Adreno or Mali, which only `smartmem isa` needs."""
    name = f"mesa for {family}"
    if problem := mesa_problem(family):
        return _optional(name, problem)
    return Check(name, True, f"Mesa {mesa_version(family)} in {mesa_folder(family)}", required=False)


def _records() -> list[Check]:
    """Count the kernels that commands started here find tuned, and those of them whose times a model made up.

    One line for each file of records, none without any.
    """
    named = os.environ.get(RECORDS_VARIABLE)
    files = sorted(Path("tuning_logs").glob(f"*{_RECORDS}")) if named is None else [Path(named)] if named else []
    return [_records_of(path) for path in files if path.is_file()]


def _records_of(path: Path) -> Check:
    name = f"tuning records {path.name.removesuffix(_RECORDS)}"
    try:
        lines, damaged = json_lines.read(path)
    except UserError as error:
        return Check(name, False, str(error), "name another file with SMARTMEM_RECORDS", required=False)
    runs = {line["run"]: judge_of(line) for line in lines if kind_of(line) == "target"}
    winners = [line for line in lines if kind_of(line) == "winner" and line["run"] in runs]
    measured = {line["workload"] for line in winners if runs[line["run"]] is None}
    modelled = {line["workload"]: runs[line["run"]] for line in winners if line["workload"] not in measured}
    modelled = {workload: judge for workload, judge in modelled.items() if judge is not None}
    found = f"{len(measured)} kernels measured"
    if modelled:
        found += f", {len(modelled)} modelled and not measured, by {', '.join(sorted(set(modelled.values())))}"
    if damaged:
        return Check(name, False, f"{found}; damaged lines: {len(damaged)}", f"smartmem records repair {path}", False)
    return Check(name, True, found, required=False)


def _llvm() -> Check:
    import tvm
    from tvm.target import codegen

    if tvm.get_global_func("target.build.llvm", allow_missing=True) is None:
        return Check("llvm target", False, "this TVM has no LLVM code generator", pin_command())
    cpu = codegen.llvm_get_system_cpu()
    return Check("llvm target", True, f"LLVM {codegen.llvm_version_major()}, -mcpu={cpu}")


def _linker() -> Check:
    """Check the linker, which writes a compiled model as a library; verifying and running in memory need none."""
    from tvm.support import cc

    from .deploy.link import link_for
    from .errors import UserError
    from .target import parse_target

    try:
        compiler = link_for(parse_target("cpu")).compiler
    except UserError:
        detail = "no C++ compiler: `smartmem compile` writes no library for this machine"
        return Check("linker", False, detail, "apt-get install g++, or pip install ziglang", required=False)
    return Check("linker", True, " ".join(compiler.command[1:]) if compiler else cc.get_cc(), required=False)


def _device(kind: str) -> Check:
    import tvm

    if tvm.get_global_func(f"device_api.{kind}", allow_missing=True) is None:
        remedy = f"use the CPU, or load a TVM runtime library for {kind}"
        return Check(f"device {kind}", False, "no device runtime in this TVM", remedy, required=False)
    if not tvm.device(kind, 0).exist:
        return Check(f"device {kind}", False, "no device found", f"install the {kind} driver", required=False)
    return Check(f"device {kind}", True, tvm.device(kind, 0).device_name or "found", required=False)


def _opencl_codegen() -> Check:
    """Check OpenCL's code generator separately from its runtime: the TVM wheel has only the first."""
    import tvm

    if tvm.get_global_func("target.build.opencl", allow_missing=True) is None:
        return Check("opencl code generation", False, "not in this TVM", pin_command(), required=False)
    return Check("opencl code generation", True, "generates kernels", required=False)


def _opencl() -> list[Check]:
    """Check the library, the driver, and each device; the first missing one is the last finding."""
    import _smartmem_opencl

    from .runtime import opencl

    path = _smartmem_opencl.load()
    if problem := _smartmem_opencl.problem():
        return [_optional("opencl library", problem)]
    checks = [Check("opencl library", True, path or "TVM's own", required=False)]
    if problem := opencl.problem():
        return [*checks, _optional("opencl driver", problem)]
    if path is None:
        return [*checks, _device("opencl")]
    return [*checks, _opencl_driver(opencl.library()), *map(_opencl_device, opencl.devices())]


def _opencl_driver(file: str) -> Check:
    """Check the origin of the driver, and for the extra's driver, the linker that it needs."""
    import _smartmem_opencl

    of_extra = file == str(_smartmem_opencl.extra_driver())
    if os.environ.get("SMARTMEM_OPENCL_LIBRARY"):
        detail = f"{file}, named by SMARTMEM_OPENCL_LIBRARY"
    else:
        detail = f"{file}, of the extra [pocl]" if of_extra else f"{file}, the system's"
    if of_extra and shutil.which("ld") is None:
        detail += ", finds no linker `ld` for its kernels"
        return Check("opencl driver", False, detail, "apt-get install binutils", required=False)
    return Check("opencl driver", True, detail, required=False)


def _opencl_device(device: DeviceInfo) -> Check:
    if not device.images:
        images = "no textures"
    elif device.image_from_buffer:
        images = "textures, shared with buffers"
    else:
        images = "textures"
    detail = f"{device.name} ({device.type}), {device.platform}, driver {device.driver}, {images}"
    if device.platform == _POCL and device.driver.startswith("5.0"):
        remedy = "PoCL 5.0 computes some kernels wrong (docs/opencl.md): install PoCL 3.1 or 7.1"
        return Check(f"device opencl:{device.index}", False, detail, remedy, required=False)
    return Check(f"device opencl:{device.index}", True, detail, required=False)


def _optional(name: str, problem: str) -> Check:
    """Return the finding for a sentence of the form ``problem: remedy``."""
    detail, _, remedy = problem.rpartition(": ")
    return Check(name, False, detail or problem, remedy or problem, required=False)

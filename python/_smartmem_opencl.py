# SPDX-License-Identifier: Apache-2.0
"""Gives TVM an OpenCL device, if it has none of its own.

TVM calls `autoload` at the end of ``import tvm``. That is why this is no module of `smartmem_tvm`: a process that only
imports TVM, such as an RPC server, does not load the rest of the package.
"""

from __future__ import annotations

import ctypes
import importlib.util
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent / "smartmem_tvm"
_API = "device_api.opencl"

_library: ctypes.CDLL | None = None
_problem: str | None = None


def autoload() -> None:
    """Do what `load` does; TVM calls this, and prints a warning if it raises, which it does not."""
    load()


def load() -> str | None:
    """Open the OpenCL library, unless TVM has an OpenCL device API already; no driver is touched by that.

    Calling it again changes nothing. It never raises: why it could not load is what `problem` says.

    Returns
    -------
    str or None
        The path of our library, or None if it is not loaded because TVM has OpenCL of its own or there is a problem.
    """
    global _library, _problem
    if _library is None:
        try:
            # The library was compiled against one TVM; another may crash instead of complaining.
            if wrong := _version().version_problem():
                raise ImportError(wrong)
            # Importing TVM may come here itself, and then the library is open already.
            import tvm  # noqa: F401  (its libraries, loaded globally, have what ours leaves open)

            _library, _problem = _library or _open(), None
        except (OSError, ImportError) as error:
            _problem = str(error)
    return None if _library is None else _library._name


def problem() -> str | None:
    """Return one sentence that says why TVM got no OpenCL device API and what to do, or None if it has one."""
    return _problem


def library_path() -> Path:
    """Return where the library is, or would be had it been built."""
    return _PACKAGE / "lib" / "opencl.so"


def extra_driver() -> Path | None:
    """Return the driver that ``pip install 'smartmem-tvm[pocl]'`` brings, None without it.

    It is used where the system's loader finds no device; ``SMARTMEM_OPENCL_LIBRARY`` names it everywhere else.
    """
    found = PathFinder.find_spec("pocl_binary_distribution")
    # It puts the driver where pyopencl looks for one, which need not be installed.
    folder = Path(found.origin).parent.parent / "pyopencl" / ".libs" if found and found.origin else None
    return next(iter(sorted(folder.glob("libpocl-*.so"))), None) if folder else None


def _open() -> ctypes.CDLL | None:
    import tvm_ffi

    if tvm_ffi.get_global_func(_API, allow_missing=True) is not None:
        return None
    path = library_path()
    if not path.exists():
        raise ImportError(_why_not_built(path))
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"the OpenCL library does not load ({error}): reinstall smartmem-tvm, which compiles it anew."
        ) from error
    import _smartmem_opencl_workers

    _smartmem_opencl_workers.install()
    if driver := extra_driver():
        tvm_ffi.get_global_func("smartmem.opencl.extra_driver")(str(driver))
    return library


def _why_not_built(path: Path) -> str:
    reason = path.with_suffix(".txt")
    if not reason.exists():
        return f"there is no OpenCL library {path}: reinstall smartmem-tvm, or run native/build.py in its checkout."
    why = reason.read_text(encoding="utf-8").strip()
    return f"the OpenCL library was not built: {why}; then reinstall smartmem-tvm."


def _version() -> ModuleType:
    """The module ``smartmem_tvm._version``, without the package around it, which would import TVM."""
    spec = importlib.util.spec_from_file_location("_smartmem_opencl_version", _PACKAGE / "_version.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

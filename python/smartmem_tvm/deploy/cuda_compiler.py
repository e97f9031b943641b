# SPDX-License-Identifier: Apache-2.0
"""Compile CUDA source for one GPU with NVIDIA's compiler, as TVM calls it, and cache the binaries on disk."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import tvm
import tvm_ffi
from tvm.support import nvcc

from ..errors import UserError
from .binary_cache import BinaryCache, cache_of
from .cuda_math import with_declarations

CALLBACK = "tvm_callback_cuda_compile"
# The variable by which TVM chooses the compiler, and the format of binary of each compiler.
_MODE = "TVM_CUDA_COMPILE_MODE"
_FORMATS = {"nvrtc": "cubin", "nvcc": "fatbin"}
_one_at_a_time = threading.Lock()


def compiler() -> str:
    """Return ``nvcc`` or ``nvrtc``: the value of ``TVM_CUDA_COMPILE_MODE``, else the first that is installed.

    nvcc comes first, as it starts in less time and its processes share no lock.

    Raises
    ------
    UserError
        If neither is installed, or the variable names another compiler.
    """
    chosen = os.environ.get(_MODE, "").lower()
    if chosen and chosen not in _FORMATS:
        raise UserError(f"{_MODE} is '{chosen}' and must be 'nvcc' or 'nvrtc': correct or unset it.")
    if chosen or shutil.which("nvcc"):
        return chosen or "nvcc"
    if _has_nvrtc():
        return "nvrtc"
    raise UserError(
        "Kernels for CUDA are compiled by nvcc or NVRTC and there is neither: put a CUDA toolkit's nvcc on the PATH, "
        "or run `pip install cuda-bindings` beside a toolkit."
    )


def _has_nvrtc() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:  # no package "cuda", or one without bindings
        return False


@contextmanager
def compiling(target: tvm.target.Target) -> Iterator[None]:
    """While the context is open, let TVM compile CUDA for `target`, in any thread, and cache the binaries on disk.

    ``SMARTMEM_CUDA_CACHE`` names the folder, ``0`` for none; by default it is in the user's cache folder.
    ``SMARTMEM_CUDA_CACHE_MB`` is its largest size in MiB, by default 1024.

    Raises
    ------
    UserError
        As `compiler`, when the first kernel is compiled.
    """
    kept = cache_of("SMARTMEM_CUDA_CACHE", "cuda")
    # TVM looks this function up by name each time it compiles source.
    with _one_at_a_time:
        before = tvm.get_global_func(CALLBACK)
        tvm_ffi.register_global_func(CALLBACK, lambda source: _compile(source, target, kept), override=True)
        try:
            yield
        finally:
            tvm_ffi.register_global_func(CALLBACK, before, override=True)
            kept.prune()


def _compile(source: str, target: tvm.target.Target, kept: BinaryCache) -> bytes:
    """Return the binary of `source`, from the cache or from the compiler."""
    mode, source = compiler(), with_declarations(source)
    with target:  # TVM reads the architecture from the current target, which each thread has its own of
        key = (source, mode, _version(mode), _options(), str(nvcc.get_target_compute_version(target)), tvm.__version__)
        binary = kept.load(*key)
        if binary is None:
            binary = bytes(nvcc.compile_cuda(source, target_format=_FORMATS[mode], compiler=mode))
            kept.store(binary, *key)
    return binary


def _options() -> str:
    """Return the environment variables from which TVM takes the compiler's options."""
    return "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("TVM_"))


@cache
def _version(mode: str) -> str:
    if mode == "nvcc":
        return subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    from cuda.bindings import nvrtc

    return str(nvrtc.nvrtcVersion())

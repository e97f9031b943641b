# SPDX-License-Identifier: Apache-2.0
"""Run the CUDA of matrix kernels on a CPU: its source, with the instructions of PTX as functions of `cuda_on_cpu.h`."""

import ctypes
import fcntl
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx

from smartmem_tvm.deploy.gpu_build import _lower
from smartmem_tvm.deploy.textures import CUDA_PIPELINE

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
FLAGS = ("-std=c++20", "-O1", "-w", "-pthread", "-fPIC")
_TYPES = {"f16": "half", "bf16": "nv_bfloat16", "tf32": "float"}
_GROUP = r"tvm_builtin_ptx_wgmma_{0}_ss_mma_async_sync_aligned_m64n(\d+)k\d+_f32_{0}_{0}_1_1"
_HELD = _GROUP.replace("_ss_", "_rs_")  # the left operand in registers
_BYTES = {"u8": "uint8_t", "s8": "int8_t"}
_OF_BYTES = (
    *(
        (rf"tvm_builtin_ptx_mma_int_sync_\w+_s32_{left}_{right}_s32", f"mma<{one}, {other}>")
        for left, one in _BYTES.items()
        for right, other in _BYTES.items()
    ),
    *(
        (
            rf"tvm_builtin_ptx_wgmma_int_ss_mma_async_sync_aligned_m64n(\d+)k32_s32_{left}_{right}",
            rf"wgmma<{one}, \1, 0, 0, {other}>",
        )
        for left, one in _BYTES.items()
        for right, other in _BYTES.items()
    ),
    *(
        (rf"tvm_builtin_ptx_dp4a_{left.replace('8', '32')}_{right.replace('8', '32')}", f"dp4a<{one}, {other}>")
        for left, one in _BYTES.items()
        for right, other in _BYTES.items()
    ),
    (r"tvm_builtin_ptx_st_vec_shared_v2_b32", "write_pair"),
    (r"tvm_builtin_ptx_st_(?:vec_)?shared_(?:v4_)?b32", "write_words"),
    (r"tvm_builtin_ptx_ld_vec_shared_v4_b32_s32", "read_four"),
)
_NAMES = (
    *_OF_BYTES,
    *((rf"tvm_builtin_ptx_mma_sync_\w+_f32_{name}_{name}_f32", f"mma<{kind}>") for name, kind in _TYPES.items()),
    (r"tvm_builtin_ptx_ld_shared_b32", "load_word"),
    (r"tvm_builtin_ptx_cvt_tf32_f32_rna_tf32_f32", "round_word"),
    (r"tvm_builtin_ptx_ldmatrix_sync_aligned_m8n8_x4_trans_\w+", "ldmatrix<true>"),
    (r"tvm_builtin_ptx_ldmatrix_sync_aligned_m8n8_x4_shared_\w+", "ldmatrix<false>"),
    *((_GROUP.format(name) + r"_(\d)_(\d)", rf"wgmma<{kind}, \1, \2, \3>") for name, kind in _TYPES.items()),
    *((_HELD.format(name) + r"_(\d)", rf"wgmma_held<{kind}, \1, \2>") for name, kind in _TYPES.items()),
    (_GROUP.format("tf32"), r"wgmma<float, \1, 0, 0>"),  # no operand of it is ever transposed
    (r"tvm_builtin_ptx_cp_async_c[ag](?:_src_size)?_async_c[ag]_shared_global_(\d+)", r"cp_async<\1>"),
    (r"tvm_builtin_ptx_cp_async_commit_group\w*", "commit_copies"),
    (r"tvm_builtin_ptx_cp_async_wait_group_async_wait_group_(\d+)\(\)", r"wait_copies(\1)"),
    (r"tvm_builtin_ptx_wgmma_commit_group\w*", "commit_products"),
    (r"tvm_builtin_ptx_wgmma_wait_group\w*_(\d+)\(\)", r"wait_products(\1)"),
    (r"tvm_builtin_ptx_(?:wgmma_fence|fence_proxy|griddepcontrol)\w*\(\);", ""),
    (r"tvm_builtin_ptx_st_vec_shared_v2_f32", "write_pair"),
    (r"tvm_builtin_ptx_ld_vec_shared_v4_f32", "read_four"),
    *((rf"tvm_builtin_ptx_cvt_{name}x2_f32_rn_{name}x2_f32", f"pack<{kind}>") for name, kind in _TYPES.items()),
    (r"tvm_builtin_cuda_warp_reduce_(max|sum)_4", r"of_four_\1"),
    (r"__shared__ (alignas\(\d+\)) ", r"\1 __shared__ "),
    (r"extern __shared__ __align__\(\d+\) (\w+) (\w+)\[\];", r"SHARED(\1, \2);"),
)


def source_of(func: tirx.PrimFunc, target: tvm.target.Target) -> tuple[str, list[tirx.PrimFunc]]:
    """The CUDA of a scheduled kernel, and its kernels as the code generator got them."""
    _, (kernels,) = _lower(tvm.IRModule({"main": func}), target, CUDA_PIPELINE)
    source = tvm.get_global_func("target.build.cuda")(kernels, target).inspect_source()
    return source, [each for _, each in kernels.functions_items()]


def run(func: tirx.PrimFunc, target: tvm.target.Target, arrays: Mapping[str, np.ndarray], folder: Path) -> None:
    """Run a scheduled kernel on arrays, by the names of its buffers; it writes into those of its results."""
    source, kernels = source_of(func, target)
    program, library = folder / "kernel.cc", folder / "kernel.so"
    program.write_text(_program(source, kernels, list(arrays)))
    command = ["g++", *FLAGS, "-shared", str(program), "-o", str(library)]
    subprocess.run([*command, f"-I{_compiled_header().parent}"], check=True)
    ctypes.CDLL(str(library)).all_kernels(*(ctypes.c_void_p(array.ctypes.data) for array in arrays.values()))


@functools.cache
def _compiled_header() -> Path:
    """Return a copy of the header beside its precompiled form, which workers of a test run share.

    Most of the time of compiling a kernel is that of the header: a second of a processor without it, a quarter with it
    (Intel Xeon, GCC 12, 2026-11-28).
    """
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(repr(FLAGS).encode() + version + HEADER.read_bytes()).hexdigest()[:16]
    home = Path(__file__).parents[2] / "build" / "cuda_on_cpu"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / key).exists():
            with tempfile.TemporaryDirectory(dir=home) as folder:
                made = Path(folder) / key
                made.mkdir()
                shutil.copy(HEADER, made)
                subprocess.run(
                    ["g++", *FLAGS, "-x", "c++-header", HEADER.name, "-o", f"{HEADER.name}.gch"], cwd=made, check=True
                )
                made.rename(home / key)
    return home / key / HEADER.name


def _program(source: str, kernels: Sequence[tirx.PrimFunc], names: list[str]) -> str:
    """The kernels one after the other, in a function of the arrays; what is between them has room of its own."""
    bodies = source[source.index('extern "C" __global__') :]
    for name, emulated in _NAMES:
        bodies = re.sub(name, emulated, bodies)
    calls, between = [], set()
    for kernel in sorted(kernels, key=lambda each: str(each.attrs["global_symbol"])):
        name, text = str(kernel.attrs["global_symbol"]), kernel.script()
        bounds = r"(?:__launch_bounds__\(\d+\) )?"  # a single thread has none
        given = re.search(rf"__global__ void {bounds}{name}\(([^)]*)\)", source).group(1).split(",")
        buffers = [each.split()[-1].removesuffix("_ptr") for each in given]
        between |= set(buffers) - set(names)
        arguments = ", ".join(f"({each.split('*')[0]}*){buffer}" for each, buffer in zip(given, buffers, strict=True))
        extents = ", ".join(_extent(text, f"{tag}Idx.x") for tag in ("block", "thread"))
        calls.append(f"  run({extents}, [=] {{ {name}({arguments}); }});")
    rooms = "".join(f"static unsigned char {name}[1 << 24];\n" for name in sorted(between))
    parameters = ", ".join(f"void* {name}" for name in names)
    steps = "\n".join(calls)
    return f'#include "cuda_on_cpu.h"\n{bodies}\n{rooms}extern "C" void all_kernels({parameters}) {{\n{steps}\n}}\n'


def _extent(text: str, tag: str) -> str:
    found = re.search(rf'launch_thread\("{tag}", (?:T\.int64\()?(\d+)', text)
    return found.group(1) if found else "1"

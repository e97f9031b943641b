# SPDX-License-Identifier: Apache-2.0
"""CPU features for GEMMs of bfloat16 (AMX) and bytes (AMX, VNNI), also those that LLVM's name of a CPU leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm.target import codegen

from .errors import UserError

TILES = ("amx-tile", "amx-bf16", "avx512bf16")  # LLVM's names: AMX tiles and products, and rounding of vectors
BYTE_TILES = ("amx-tile", "amx-int8")
ARM_DOTS = ("i8mm", "dotprod")  # dot products of unsigned and signed bytes, and of bytes of one sign
_AS_LINUX_SAYS = {
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "avx512bf16": "avx512_bf16",
    "amx-int8": "amx_int8",
}
_CPUINFO = Path("/proc/cpuinfo")


def has_tiles(target: tvm.target.Target) -> bool:
    """Whether kernels for a CPU can use AMX in bfloat16.

    The code requests the tile registers from Linux, so it runs on Linux only.
    """
    return _on_linux_with(TILES, target)


def has_byte_tiles(target: tvm.target.Target) -> bool:
    """Whether kernels for a CPU can multiply tiles of bytes (AMX int8), on Linux as `has_tiles`."""
    return _on_linux_with(BYTE_TILES, target)


def _on_linux_with(features: Sequence[str], target: tvm.target.Target) -> bool:
    system = str(target.attrs.get("mtriple") or "")
    elsewhere = system and "linux" not in system
    return not elsewhere and all(codegen.target_has_features(each, target) for each in features)


def has_quads(target: tvm.target.Target) -> bool:
    """Whether a CPU multiplies its widest vectors of bytes four by four and adds them to sums (VNNI, i8mm, dotprod)."""
    wide = codegen.target_has_features("avx512f", target)
    features = ("avx512vnni" if wide else "avxvnni", *ARM_DOTS)
    return any(codegen.target_has_features(each, target) for each in features)


def has_pairs(target: tvm.target.Target) -> bool:
    """Whether a CPU multiplies its widest vectors of 16-bit integers two by two (AVX2, AVX-512BW)."""
    wide = codegen.target_has_features("avx512f", target)
    return bool(codegen.target_has_features("avx512bw" if wide else "avx2", target))


def has_fma(target: tvm.target.Target) -> bool:
    """Whether a CPU multiplies and adds with a single rounding: x86 with FMA, and all aarch64."""
    on_arm = str(target.attrs.get("mtriple") or "").startswith("aarch64")
    return on_arm or bool(codegen.target_has_features("fma", target))


def unnamed_features(cpu: str, flags: frozenset[str] | None = None) -> list[str]:
    """Return the features that ``mattr`` must add to ``mcpu`` for `has_tiles` and `has_byte_tiles`.

    They are missing if a virtual machine reports the model number of another CPU.

    Parameters
    ----------
    cpu : str
        LLVM's name of the CPU.
    flags : frozenset of str, optional
        Linux's flags of the CPU; by default those of this machine.
    """
    flags = _flags() if flags is None else flags
    groups = [each for each in (TILES, BYTE_TILES) if all(_AS_LINUX_SAYS[one] in flags for one in each)]
    features = dict.fromkeys(one for each in groups for one in each)
    named = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    return [f"+{each}" for each in features if not codegen.target_has_features(each, named)]


def _flags() -> frozenset[str]:
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


def require_tiles(target: tvm.target.Target | None) -> None:
    """Refuse targets without AMX in bfloat16.

    Raises
    ------
    UserError
        If the target is no CPU with AMX.
    """
    if target is None or target.kind.name != "llvm" or not has_tiles(target):
        name = "llvm" if target is None else str(target.attrs.get("mcpu") or target.kind.name)
        raise UserError(
            f"precision 'bfloat16' needs a CPU that multiplies bfloat16 numbers (AMX, on Linux), which '{name}' is not "
            f"known to be: compile for one that does, as sapphirerapids, or in float32."
        )

# SPDX-License-Identifier: Apache-2.0
"""Mesa's two drivers for phones: how each is started, what it prints, and which GPUs it compiles OpenCL for.

freedreno (Adreno) runs as it is. panfrost (Mali) is only in Debian's packages for arm64, and runs under qemu.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...mesa_folder import ADRENO, MALI

EMULATOR = "qemu"
"""In the root folder: qemu's emulator of arm64."""
Gpu = int | str
"""An Adreno's number (740), or a Mali's name (``"G57"``)."""
GPUS = (610, 618, 660, 702, 730, 740, 750, 830)
"""Adrenos that Mesa 26.2 compiles OpenCL for; its DRM shim knows no 640, 650 and 680, and its OpenCL no 5xx."""
MALI_GPUS = {"G52": "7212", "G57": "9093", "G76": "7211"}
"""Malis -> their product numbers as Mesa's DRM shim takes them; each was compiled for on 2026-11-29."""
_COMMON = {"MESA_SHADER_CACHE_DISABLE": "true", "HOME": "/tmp"}
_AMD64, _ARM64 = "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"


@dataclass(frozen=True)
class Driver:
    """A driver of Mesa.

    Attributes
    ----------
    family : str
        `ADRENO` or `MALI`.
    starts : tuple of str
        Words that start a program in the root folder with the DRM shim in the place of the kernel's driver.
    environment : mapping
    gpu_variable : str
        Environment variable that names the GPU.
    keeps_start : bool
        Whether what it makes before the first program (libclc, its own kernels) is kept for other runs.
    name : str
        The family of its GPUs in words.
    numbered : bool
        Whether its GPUs are known by numbers (740), and not by names (G57).
    registers : str
        What its registers are, in words.
    holds, of : str
        Waves or threads: a core holds more of them where each thread takes fewer registers. The name of a column, and
        the words of a sentence.
    halves : bool
        Whether a core holds all of them, or half, and never another share.
    """

    family: str
    starts: tuple[str, ...]
    environment: Mapping[str, str]
    gpu_variable: str
    keeps_start: bool = False
    name: str = "Adreno"
    numbered: bool = True
    registers: str = "registers of four numbers"
    holds: str = "waves"
    of: str = "waves of 64 threads"
    halves: bool = False


FREEDRENO = Driver(
    ADRENO,
    ("/lib64/ld-linux-x86-64.so.2", "--preload", f"{_AMD64}/libfreedreno_noop_drm_shim.so"),
    {
        **_COMMON,
        "OCL_ICD_VENDORS": f"{_AMD64}/libRusticlOpenCL.so.1",
        "RUSTICL_ENABLE": "freedreno",
        "FD_MESA_DEBUG": "serialc",  # compile in order, on one thread: what is printed belongs to the program before it
        "IR3_SHADER_DEBUG": "disasm,nocache",
    },
    "FD_GPU_ID",
)
PANFROST = Driver(
    MALI,
    (
        *(f"/{EMULATOR}", f"{_ARM64}/ld-linux-aarch64.so.1"),
        *("--preload", f"{_ARM64}/libpanfrost_noop_drm_shim.so"),
    ),
    {
        "HOME": "/tmp",
        "OCL_ICD_VENDORS": f"{_ARM64}/libRusticlOpenCL.so.1",
        "RUSTICL_ENABLE": "panfrost",
        "BIFROST_MESA_DEBUG": "shaders,shaderdb",
    },
    "PAN_GPU_ID",
    keeps_start=True,
    name="Mali",
    numbered=False,
    registers="registers of 32 bits",
    holds="threads",
    of="threads",
    halves=True,
)


def driver_of(gpu: Gpu) -> Driver:
    """Return the driver that compiles for a GPU."""
    return PANFROST if isinstance(gpu, str) else FREEDRENO


def number_of(gpu: Gpu) -> str:
    """Return what the DRM shim calls a GPU."""
    return MALI_GPUS[gpu] if isinstance(gpu, str) else str(gpu)

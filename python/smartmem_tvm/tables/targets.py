# SPDX-License-Identifier: Apache-2.0
"""Devices by name, each a row of figures: limits, caches, bandwidths, peak."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Core:
    """The threads that a core of a phone's GPU holds at once, and what they share.

    Attributes
    ----------
    registers : int
        Registers of `unit` numbers of four bytes that one thread of each of `together` waves have between them.
    unit : int
        Numbers of four bytes of a register: registers are handed out whole.
    most : int
        Most registers of one thread; the compiler spills what is above.
    wave : int
        Threads that issue one instruction together.
    waves : int
        Most waves at once.
    together : int
        Waves that come and go together.
    doubles : bool
        Whether waves have twice as many threads where registers allow it.
    aliases : bool
        Whether the coordinates of a texel may stand in any registers; else they are copied next to each other.
    local_bytes : int
        On-chip memory of all thread blocks of the core, in bytes.
    local_unit : int
        Bytes in which it is handed out.
    """

    registers: int
    unit: int = 4
    most: int = 48
    wave: int = 64
    waves: int = 16
    together: int = 2
    doubles: bool = True
    aliases: bool = False
    local_bytes: int = 32 * 1024
    local_unit: int = 1024


PHONES = ("adreno", "mali")
"""Families of GPUs in phones."""


@dataclass(frozen=True)
class Row:
    """The figures of a device.

    Attributes
    ----------
    name : str
        Name that the user writes.
    kind : str
        Code generator: ``opencl``, ``cuda`` or ``llvm``.
    family : str
        ``adreno``, ``mali`` or empty, for differences between compilers.
    host : str
        LLVM triple of the CPU beside it, empty for the machine that compiles.
    image_width, image_height, image_layers : int
        Most texels of an image in each direction, and most layers of an image array; 0 if there are no images.
    image_pitch : int
        Alignment in texels of the rows of an image that is a view of a buffer; 0 if there are no such images.
    texels : tuple of str
        Element types of a texel of four numbers.
    half : bool
        Whether it has arithmetic in half precision.
    byte_dots : bool
        Whether ``cl_khr_integer_dot_product`` is one instruction for four bytes by four. Mesa's compiler makes
        ``dp4acc`` of it for Adreno 7xx and 8xx, and shifts and products for Mali.
    work_group : int
        Most threads of a thread block.
    local_bytes : int
        On-chip memory of a thread block, in bytes.
    sub_group : int
        Threads that issue one instruction together.
    cores : int
        Units with their own caches, among which thread blocks are distributed.
    registers : int
        Four-byte numbers that a thread may keep before the compiler spills.
    line_bytes : int
        Size of a cache line.
    sector_bytes : int
        Bytes that move at once between caches: a line, or a part of it.
    buffer_l1_bytes, texture_l1_bytes : int
        First-level cache of a core for buffers and for images; 0 if buffers bypass the first level.
    l1_ways, l2_ways : int
        Associativity of the first and of the second level.
    l2_bytes : int
        Second-level cache, shared by all cores; on a CPU the one of a core.
    texture_rows : int
        Rows of an image that share a cache line, so that neighbours in both directions are near.
    bandwidth, l2_bandwidth : float
        Bytes per second, from memory and from the second-level cache.
    buffer_bandwidth, texture_bandwidth : float
        Bytes per second from all first-level caches for buffers, and for images; 0 if there are none.
    buffer_share : float
        Part of `bandwidth` that loads of buffers reach.
    peak : float
        Multiply-adds per second in float32.
    core : Core or None
        Registers, waves and local memory of a core; None where `Processor`'s figures of a large GPU stand for them.
    estimates : frozenset of str
        Unpublished fields: their values are typical of the family, and not to be quoted.
    """

    name: str
    kind: str
    family: str = ""
    host: str = ""
    image_width: int = 0
    image_height: int = 0
    image_layers: int = 0
    image_pitch: int = 0
    texels: tuple[str, ...] = ()
    half: bool = False
    byte_dots: bool = False
    work_group: int = 256
    local_bytes: int = 32 * 1024
    sub_group: int = 1
    cores: int = 1
    registers: int = 255
    line_bytes: int = 64
    sector_bytes: int = 64
    buffer_l1_bytes: int = 0
    texture_l1_bytes: int = 0
    l1_ways: int = 4
    l2_bytes: int = 256 * 1024
    l2_ways: int = 16
    texture_rows: int = 2
    bandwidth: float = 10e9
    l2_bandwidth: float = 50e9
    buffer_bandwidth: float = 0.0
    texture_bandwidth: float = 0.0
    buffer_share: float = 1.0
    peak: float = 100e9
    core: Core | None = None
    estimates: frozenset[str] = frozenset()

    @property
    def phone(self) -> bool:
        """Whether the device is a phone's GPU."""
        return self.family in PHONES

    @property
    def adreno_core(self) -> Core | None:
        """The core of an Adreno, whose waves and registers the models have as its compiler does; else None."""
        return self.core if self.family == "adreno" else None

    @property
    def textures(self) -> bool:
        """Whether tensors may be images."""
        return self.image_width > 0


_KIB = 1024
_PHONE = "aarch64-linux-android"
_BOTH = ("float32", "float16")
# The organisation of the caches is unpublished, and so are the texels that share a line of an image. Mesa's driver has
# the latter for Adreno 6xx (freedreno/fdl/fd6_tiled_memcpy.cc): bits of x and y alternate, so that 64 bytes are 2 x 2
# texels of 16 bytes, or 4 x 2 of 8.
_HIDDEN = frozenset({"l1_ways", "l2_ways", "texture_rows"})
_CACHES = frozenset({"line_bytes", "sector_bytes", "buffer_l1_bytes", "texture_l1_bytes", "l2_bytes"})
_INSIDE = frozenset({"l2_bandwidth", "buffer_bandwidth"})
_SPEEDS = _INSIDE | {"bandwidth", "texture_bandwidth", "peak"}
_ADRENO_ESTIMATES = frozenset({"sub_group", "cores", "registers", "texture_l1_bytes", "l2_bytes", "buffer_share"})
_MALI_ESTIMATES = frozenset({"sub_group", "cores", "buffer_l1_bytes", "texture_l1_bytes", "l2_bytes"})
# Registers, waves and local memory of a core by Mesa's tables of Adreno (freedreno/common/freedreno_devices.py:
# reg_size_vec4, wave_granularity, cs_shared_mem_size, supports_double_threadsize, num_ccu for cores; ir3_compiler.c:
# 16 waves of 64 threads, and 48 registers of four numbers to a thread). benchmarks/adreno_registers.json holds waves
# to what Mesa's compiler says; it gives kernels for the 830 no double waves, and 96 registers to a pair of them.
_A6XX_GEN1_LOW = Core(48, together=1, doubles=False, local_bytes=16 * _KIB)
_A6XX_GEN1 = Core(96)
_A6XX_GEN4 = Core(64)  # gen3 alike
_A7XX = Core(96, aliases=True)  # instruction alias.tex
_A8XX = Core(96, doubles=False, aliases=True)
_A5XX = Core(48, wave=32, doubles=False)
# Mesa, panfrost/lib/pan_props.c: 768 threads of Bifrost's second generation and 1024 of Valhall, half as many of
# kernels with more than 32 of the 64 registers, of 32 bits each (docs/mali.md). Local memory is ordinary memory, which
# bounds no threads.
_BIFROST = Core(96, unit=32, most=2, wave=8, waves=96, together=1, doubles=False, local_bytes=1 << 30)
_VALHALL = Core(64, unit=32, most=2, wave=16, waves=64, together=1, doubles=False, local_bytes=1 << 30)
# Peaks are of public tables (Wikipedia, Adreno; NanoReview), which count a multiply-add as two. Mesa has a 702, too;
# no table has its speed.
_ADRENO = {
    "kind": "opencl",
    "family": "adreno",
    "host": _PHONE,
    # Figures of the drivers, from clinfo on Adreno 505 to 750: 16384x16384 texels, 2048 layers, a pitch of 64 texels,
    # cl_khr_fp16, work-groups of 1024, 32 KiB of local memory, lines of 64 bytes.
    "image_width": 16384,
    "image_height": 16384,
    "image_layers": 2048,
    "image_pitch": 64,
    "texels": _BOTH,
    "half": True,
    "work_group": 1024,
    "local_bytes": 32 * _KIB,
    # Full waves have 64 or 128 threads; the compiler chooses (Snapdragon OpenCL programming guide, waves and fibers).
    "sub_group": 64,
    "line_bytes": 64,
    "sector_bytes": 64,
    "registers": 128,  # estimate: Mesa's compiler can use 192, but more registers reduce occupancy
    # Buffers bypass the first level; the cache of the texture processor is for images (the guide, memory).
    "buffer_l1_bytes": 0,
    # estimate: on Adreno 740 Traverse Research (2025) reads memory two to nearly three times as fast through images
    "buffer_share": 0.4,
}
_MALI = {
    "kind": "opencl",
    "family": "mali",
    "host": _PHONE,
    # From clinfo of Bifrost and Valhall drivers: 65536x65536 texels, 2048 layers, a pitch of 64 texels, cl_khr_fp16,
    # lines of 64 bytes; 32 KiB of local memory, which is ordinary cached memory.
    "image_width": 65536,
    "image_height": 65536,
    "image_layers": 2048,
    "image_pitch": 64,
    "texels": _BOTH,
    "half": True,
    "local_bytes": 32 * _KIB,
    "registers": 64,  # Arm's OpenCL guide for Mali, Bifrost and Valhall: beyond this the compiler spills
    "line_bytes": 64,
    "sector_bytes": 64,
    "buffer_l1_bytes": 16 * _KIB,  # estimate: load/store cache of a shader core
}

_ROWS = (
    Row(
        "adreno-830",
        **_ADRENO,
        core=_A8XX,
        byte_dots=True,
        cores=6,  # Mesa: num_ccu
        texture_l1_bytes=2 * _KIB,  # estimate: as adreno-740
        l2_bytes=256 * _KIB,  # estimate: as adreno-740
        bandwidth=76.8e9,  # estimate: LPDDR5X at 4800 MHz, 64 bits
        l2_bandwidth=422e9,  # estimate: a line a cycle and core at 1100 MHz
        texture_bandwidth=845e9,  # estimate: 48 texels of 16 bytes a cycle at 1100 MHz
        peak=1.69e12,  # estimate: 1536 multiply-adds a cycle at 1100 MHz, as in adreno-740 by public tables
        estimates=_HIDDEN | _SPEEDS | _ADRENO_ESTIMATES,
    ),
    Row(
        "adreno-750",
        **_ADRENO,
        core=_A7XX,
        byte_dots=True,
        cores=6,  # Mesa: num_ccu
        texture_l1_bytes=2 * _KIB,  # estimate: as adreno-740
        l2_bytes=256 * _KIB,  # estimate: as adreno-740
        bandwidth=76.8e9,  # estimate: LPDDR5X at 4800 MHz, 64 bits
        l2_bandwidth=347e9,  # estimate: a line a cycle and core at 903 MHz
        texture_bandwidth=693e9,  # estimate: 48 texels of 16 bytes a cycle at 903 MHz
        peak=1.39e12,  # estimate: 2.77 TFLOP/s at 903 MHz in public tables
        estimates=_HIDDEN | _SPEEDS | _ADRENO_ESTIMATES,
    ),
    Row(
        "adreno-740",
        **_ADRENO,
        core=_A7XX,
        byte_dots=True,
        cores=6,  # Mesa: num_ccu
        texture_l1_bytes=2 * _KIB,  # estimate: 1 KiB in Adreno 640 (Chips and Cheese, 2024)
        l2_bytes=256 * _KIB,  # estimate: drivers report this for related devices
        bandwidth=55e9,  # SmartMem 4.6
        l2_bandwidth=261e9,  # estimate: a line a cycle and core at 680 MHz
        texture_bandwidth=511e9,  # SmartMem 4.6
        peak=2.0e12,  # SmartMem 4.6, "2.0 TMACs/s"; 1536 lanes at 680 MHz would be 1.04e12 (docs/adreno.md)
        estimates=_HIDDEN | _ADRENO_ESTIMATES | {"l2_bandwidth"},
    ),
    Row(
        "adreno-730",
        **_ADRENO,
        core=_A7XX,
        byte_dots=True,
        cores=4,  # Mesa: num_ccu
        texture_l1_bytes=2 * _KIB,  # estimate: as adreno-740
        l2_bytes=256 * _KIB,  # estimate: as adreno-740
        bandwidth=51.2e9,  # estimate: LPDDR5 at 3200 MHz, 64 bits
        l2_bandwidth=209e9,  # estimate: a line a cycle and core at 818 MHz
        texture_bandwidth=419e9,  # estimate: 32 texels of 16 bytes a cycle at 818 MHz
        peak=0.84e12,  # estimate: 1024 multiply-adds a cycle at 818 MHz, two thirds of adreno-740's as Mesa's cores are
        estimates=_HIDDEN | _SPEEDS | _ADRENO_ESTIMATES,
    ),
    Row(
        "adreno-660",
        **_ADRENO,
        core=_A6XX_GEN4,
        cores=3,  # Mesa: num_ccu
        texture_l1_bytes=1 * _KIB,  # estimate: as Adreno 640
        l2_bytes=128 * _KIB,  # estimate: as Adreno 640
        bandwidth=51.2e9,  # estimate: LPDDR5 at 3200 MHz, 64 bits
        l2_bandwidth=161e9,  # estimate: a line a cycle and core at 840 MHz
        texture_bandwidth=322e9,  # estimate: 24 texels of 16 bytes a cycle at 840 MHz
        peak=0.86e12,  # estimate: 1.72 TFLOP/s at 840 MHz in public tables
        estimates=_HIDDEN | _SPEEDS | _ADRENO_ESTIMATES,
    ),
    Row(
        "adreno-650",
        **_ADRENO,
        core=_A6XX_GEN4,
        cores=6,  # estimate: uSPTPs of Adreno 640 (Chips and Cheese, 2024)
        texture_l1_bytes=1 * _KIB,  # estimate: Adreno 640 (Chips and Cheese, 2024)
        l2_bytes=128 * _KIB,  # estimate: Adreno 640 (Chips and Cheese, 2024)
        bandwidth=44e9,  # estimate: LPDDR5 at 2750 MHz, 64 bits
        l2_bandwidth=225e9,  # estimate: a line a cycle and core
        texture_bandwidth=225e9,  # estimate: 24 texels of 16 bytes a cycle at 587 MHz
        peak=0.6e12,  # estimate: 1.2 TFLOP/s at 587 MHz in public tables, which count a multiply-add as two
        estimates=_HIDDEN | _SPEEDS | _ADRENO_ESTIMATES,
    ),
    Row(
        "adreno-618",
        **_ADRENO,
        core=_A6XX_GEN1,
        cores=1,  # Mesa: num_ccu
        texture_l1_bytes=1 * _KIB,  # estimate: as Adreno 640
        l2_bytes=128 * _KIB,  # estimate: as Adreno 640
        bandwidth=14.9e9,  # estimate: LPDDR4X at 1866 MHz, 32 bits
        l2_bandwidth=53e9,  # estimate: a line a cycle and core at 825 MHz
        texture_bandwidth=106e9,  # estimate: 8 texels of 16 bytes a cycle at 825 MHz
        peak=0.21e12,  # estimate: 435 GFLOP/s at 825 MHz in public tables
        estimates=_HIDDEN | _SPEEDS | _ADRENO_ESTIMATES,
    ),
    Row(
        "adreno-610",
        **{**_ADRENO, "local_bytes": 16 * _KIB},  # Mesa: cs_shared_mem_size
        core=_A6XX_GEN1_LOW,
        cores=1,  # Mesa: num_ccu
        texture_l1_bytes=1 * _KIB,  # estimate: as Adreno 640
        l2_bytes=128 * _KIB,  # estimate: as Adreno 640
        bandwidth=13.9e9,  # estimate: public tables of Snapdragon 662
        l2_bandwidth=61e9,  # estimate: a line a cycle and core at 950 MHz
        texture_bandwidth=61e9,  # estimate: 4 texels of 16 bytes a cycle at 950 MHz
        peak=0.137e12,  # estimate: 273 GFLOP/s at 950 MHz in public tables
        estimates=_HIDDEN | _SPEEDS | _ADRENO_ESTIMATES,
    ),
    Row(
        "adreno-540",
        **_ADRENO,
        core=_A5XX,
        cores=4,  # estimate
        texture_l1_bytes=1 * _KIB,  # estimate: as Adreno 640
        l2_bytes=128 * _KIB,  # estimate: as Adreno 640
        bandwidth=29.8e9,  # estimate: LPDDR4X at 1866 MHz, 64 bits
        l2_bandwidth=182e9,  # estimate: a line a cycle and core
        texture_bandwidth=182e9,  # estimate: 16 texels of 16 bytes a cycle at 710 MHz
        peak=0.28e12,  # estimate: 567 GFLOP/s at 710 MHz in public tables, which count a multiply-add as two
        estimates=_HIDDEN | _SPEEDS | _ADRENO_ESTIMATES,
    ),
    Row(
        "mali-g57",  # two cores in Dimensity 700, which SmartMem 4.5 measures
        **_MALI,
        core=_VALHALL,
        work_group=512,  # estimate: drivers of its relatives report 512
        sub_group=16,  # estimate: warps of Valhall
        cores=2,  # estimate: MC2
        texture_l1_bytes=32 * _KIB,  # estimate
        l2_bytes=256 * _KIB,  # estimate: the integrator chooses, per slice
        bandwidth=17.1e9,  # estimate: LPDDR4X at 2133 MHz, 32 bits
        # estimate: 16 bytes, a beat in the counters of its relatives, a cycle and core at 950 MHz
        l2_bandwidth=30e9,
        buffer_bandwidth=121e9,  # estimate: a line a cycle and core (Arm, The Valhall shader core)
        texture_bandwidth=60e9,  # estimate: 4 texels of 8 bytes a cycle and core at 950 MHz
        peak=0.061e12,  # estimate: 32 multiply-adds a cycle and core, at 950 MHz
        estimates=_HIDDEN | _SPEEDS | _MALI_ESTIMATES | {"work_group"},
    ),
    Row(
        "mali-g76",  # ten cores in Kirin 980
        **_MALI,
        core=_BIFROST,
        work_group=384,  # clinfo of Bifrost drivers (Mali-G71, Mali-G52)
        sub_group=8,  # estimate: warps of the late Bifrost
        cores=10,  # estimate: MP10
        texture_l1_bytes=16 * _KIB,  # estimate
        l2_bytes=2048 * _KIB,  # estimate: the integrator chooses, up to 4 MiB
        bandwidth=34.1e9,  # estimate: LPDDR4X at 2133 MHz, 64 bits
        l2_bandwidth=115e9,  # estimate: as mali-g57, at 720 MHz
        buffer_bandwidth=461e9,  # estimate: as mali-g57
        texture_bandwidth=230e9,  # estimate: 2 texels of 16 bytes a cycle and core at 720 MHz
        peak=0.173e12,  # estimate: 24 multiply-adds a cycle and core, at 720 MHz
        estimates=_HIDDEN | _SPEEDS | _MALI_ESTIMATES,
    ),
    Row(
        "opencl",  # limits that every device meets, and no device's special features
        "opencl",
        image_width=16384,  # OpenCL 3.0, CL_DEVICE_IMAGE2D_MAX_WIDTH: at least
        image_height=16384,  # the same
        image_layers=2048,  # CL_DEVICE_IMAGE_MAX_ARRAY_SIZE: at least
        image_pitch=64,  # estimate: as Adreno and Mali
        texels=_BOTH,  # formats that every device must read and write
        work_group=256,  # estimate: most devices allow it, but none is required to
        local_bytes=32 * _KIB,  # CL_DEVICE_LOCAL_MEM_SIZE: at least
        sub_group=32,  # estimate
        cores=8,  # estimate
        registers=128,  # estimate
        buffer_l1_bytes=16 * _KIB,  # estimate
        texture_l1_bytes=16 * _KIB,  # estimate
        l2_bytes=512 * _KIB,  # estimate
        bandwidth=50e9,  # estimate
        l2_bandwidth=100e9,  # estimate
        buffer_bandwidth=200e9,  # estimate
        texture_bandwidth=200e9,  # estimate
        peak=0.5e12,  # estimate
        estimates=_HIDDEN | _CACHES | _SPEEDS | {"image_pitch", "work_group", "sub_group", "cores", "registers"},
    ),
    Row(
        # SXM5, through CUDA. The model was compared with an H100's counters: requests of kernels, traffic between the
        # levels, and reads from memory (docs/memory_accesses.md).
        "h100",
        "cuda",
        image_width=32768,  # clinfo
        image_height=32768,
        image_layers=2048,
        texels=_BOTH,
        half=True,
        work_group=1024,  # CUDA C++ programming guide, compute capability 9.0
        local_bytes=48 * _KIB,  # the same; up to 227 KiB if a kernel requests them
        sub_group=32,
        cores=132,  # NVIDIA H100 architecture whitepaper
        registers=255,  # CUDA C++ programming guide, compute capability 9.0
        line_bytes=128,
        sector_bytes=32,  # Nsight Compute's documentation: sectors
        # 256 KiB in all, with 48 KiB of shared memory; pointer chasing gets slower between 208 and 224 KiB
        buffer_l1_bytes=208 * _KIB,
        texture_l1_bytes=208 * _KIB,  # the same cache
        l2_bytes=50 * _KIB * _KIB,  # whitepaper; two parts, the near one with less latency
        bandwidth=3.35e12,  # whitepaper
        l2_bandwidth=5.5e12,  # estimate: 32 bytes a cycle and core, less losses
        buffer_bandwidth=30e12,  # estimate: 128 bytes a cycle and core
        texture_bandwidth=30e12,  # estimate: 128 bytes a cycle and core
        peak=33.5e12,  # whitepaper: 66.9 TFLOP/s
        estimates=_HIDDEN | _INSIDE | {"buffer_l1_bytes", "texture_l1_bytes", "texture_bandwidth"},
    ),
    Row(
        "cpu",  # one core of a present x86 server
        "llvm",
        sub_group=1,
        cores=1,
        work_group=1,
        local_bytes=0,
        buffer_l1_bytes=32 * _KIB,  # lscpu on AMD EPYC (Zen 3)
        l1_ways=8,
        l2_bytes=512 * _KIB,  # the same
        l2_ways=8,
        bandwidth=20e9,  # estimate: one core's share
        l2_bandwidth=112e9,  # estimate: 32 bytes a cycle
        buffer_bandwidth=224e9,  # estimate: 64 bytes a cycle
        peak=56e9,  # estimate: 16 multiply-adds a cycle at 3.5 GHz
        registers=16,  # x86-64
        estimates=_INSIDE | {"l1_ways", "l2_ways", "bandwidth", "peak"},
    ),
)

TARGETS: dict[str, Row] = {row.name: row for row in _ROWS}

# Code generator -> the row of a target that names no model.
BY_KIND: dict[str, Row] = {"opencl": TARGETS["opencl"], "cuda": TARGETS["h100"], "llvm": TARGETS["cpu"]}


def row_of(kind: str, model: str | None = None) -> Row | None:
    """Return the row of a device by its model, else the row for its code generator, else None."""
    return TARGETS.get(model or "") or BY_KIND.get(kind)

# SPDX-License-Identifier: Apache-2.0
"""The version of this package, the one pair of TVM packages it works with, and its optional packages.

``setup.py`` reads this file, so it imports nothing outside the standard library.
"""

from importlib import metadata

__version__ = "0.1.0"

SCHEDULES = 2
"""Version of the schedules: raise it when kernels get faster or slower, so that stored latencies are measured anew."""

PREPARATION = 1
"""Version of the passes that prepare kernels for their schedules: raise it when they prepare a kernel differently. It
is for stores of unprepared kernels; tuning records are of prepared kernels."""

TVM_PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
"""Distribution name -> the exact version needed.

The TVM wheel sets no upper bound on tvm-ffi, but crashes with 0.1.15: ``save_json``, ``ConvertLayout`` to a
split layout and MetaSchedule's database end in a segmentation fault.
"""

EXTRAS = {
    # xgboost-cpu, because the xgboost wheel pulls a 470 MB NCCL package.
    "tune": ("xgboost-cpu", "psutil", "cloudpickle", "tornado"),
    "rpc": ("psutil", "cloudpickle", "tornado"),
    "plots": ("matplotlib",),
    "exact": ("scipy",),
    "torch": ("torch", "onnxscript"),
    "gguf": ("gguf",),
    "pocl": ("pocl-binary-distribution",),
    "link": ("ziglang",),
    # MNN is not among them: it needs a separate environment (bench/peers/mnn.py).
    "peers": ("openvino", "iree-base-compiler", "iree-base-runtime", "torch", "timm"),
    "models": ("torch", "timm", "transformers", "diffusers", "ultralytics", "conformer", "onnxscript"),
    "docs": ("sphinx", "myst-parser", "numpydoc", "furo"),
}
"""Extra -> distributions that only some uses need: tuning; running on another machine; plots; the exact planner of
layouts; programs of torch; GGUF files; an OpenCL driver for the CPU; a linker for machines without a C++ compiler;
other systems for `bench`; exporting models; the site of `make docs`."""

ONLY_ON = {"pocl-binary-distribution": ("linux", "x86_64")}
"""Distribution -> the only system and processor for which it exists; elsewhere its extra omits it."""


def requirements(extra: str) -> list[str]:
    """Return the requirements of an extra for pip, with markers for the machines that they apply to."""
    marker = "; sys_platform == '{}' and platform_machine == '{}'"
    return [name + (marker.format(*ONLY_ON[name]) if name in ONLY_ON else "") for name in EXTRAS[extra]]


def pin_command() -> str:
    """Return the pip command that installs the pair in `TVM_PINS`."""
    return "pip install " + " ".join(f"{name}=={version}" for name, version in TVM_PINS.items())


def installed_version(distribution: str) -> str | None:
    """Return the installed version of a distribution from its metadata, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def version_problem() -> str | None:
    """Return one sentence that names a wrong TVM pair and its remedy, or None if the pair is the right one.

    Only package metadata is read and TVM is not imported, because a wrong pair may crash.
    """
    found = {name: installed_version(name) for name in TVM_PINS}
    if found == TVM_PINS:
        return None
    pair = " with ".join(f"{name} {version or '(not installed)'}" for name, version in found.items())
    return f"smartmem_tvm does not work on {pair}, a pair that may crash: run `{pin_command()}`."

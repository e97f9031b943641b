# SPDX-License-Identifier: Apache-2.0
"""OpenCL source as TVM writes it, built in children of `fake_driver.run_child`, with a cache folder of the test."""

from pathlib import Path

from opencl_child import fake, load

POCL = "Portable Computing Language"


def source(names: list[str], body: str = "") -> str:
    """Return OpenCL C as TVM writes it: all kernels are declared in front of each kernel."""
    declarations = "".join(f"__kernel void {name}(__global float* a);\n" for name in names)
    kernels = (f"__kernel void {name}(__global float* a) {{\n  a[0] = 1;{body}\n}}\n" for name in names)
    size = "// Work group 64 1 1, grid 16 1 1\n"
    return "".join(f"// Function: {n}\n{size}{declarations}{k}" for n, k in zip(names, kernels, strict=True))


def build(code: str, device: int = 0) -> int:
    """Build a source; return the number of compiled kernels, the others came from the cache."""
    create, build = (load().get_global_func(f) for f in ("ffi.Module.create.opencl", "smartmem.opencl.build"))
    return int(build(create(code.encode(), "cl", {}, {}), device))


def compiled(*names: str, body: str = "") -> int:
    return build(source(list(names), body))


def seen_by_driver(*names: str) -> list[int]:
    return [compiled(*names), fake().calls("build from source"), fake().calls("build from binary")]


def cache(folder: Path, **more: str) -> dict[str, str]:
    return {"SMARTMEM_OPENCL_CACHE": str(folder), **more}


def opencl_module(executable):
    modules = [executable.mod]
    for module in modules:
        modules.extend(module.imports)
    return next(module for module in modules if module.kind == "opencl")

# SPDX-License-Identifier: Apache-2.0
"""Registers, waves and scratch memory of kernels, as Mesa's compiler makes them, beside other facts about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .console import step

if TYPE_CHECKING:
    import tvm

    from ..tools.isa.drivers import Gpu

COLUMNS = ("regs", "waves", "scratch")
"""Titles of `cells`."""


def add_machine_code(data: dict, lowered: tvm.IRModule, target: tvm.target.Target) -> None:
    """Add ``machine_code`` to each kernel of a report for an Adreno or Mali, if Mesa's compiler for it is set up here.

    Parameters
    ----------
    data : dict
        With ``kernels``; gets ``mesa``, the version of the compiler, or None.
    lowered : tvm.IRModule
        The kernels with their schedules.
    """
    data["mesa"] = None
    gpu = _gpu(target)
    if gpu is None:
        return
    from ..mesa_folder import mesa_version
    from ..target import target_row
    from ..tools.isa.compiler import compile_all
    from ..tools.isa.drivers import driver_of
    from ..tools.isa.kernels import kernel_codes
    from ..tools.isa.sources import function_of, kernel_programs

    wanted = {each["kernel"] for each in data["kernels"]}
    with step("Compiling kernels with Mesa"):
        programs = kernel_programs(lowered, target)
        sources = {name: program for name, program in programs.items() if function_of(name) in wanted}
        codes = kernel_codes(sources, compile_all(sources, gpu))
    found: dict[str, list[dict]] = {}
    for name, code in codes.items():
        if code.code is not None:
            found.setdefault(function_of(name), []).append(code.as_dict(target_row(target)))
    driver = driver_of(gpu)
    data["mesa"], data["registers"], data["held"] = mesa_version(driver.family), driver.registers, driver.of
    for each in data["kernels"]:
        each["machine_code"] = _summary(found.get(each["kernel"], []))


def _gpu(target: tvm.target.Target) -> Gpu | None:
    """Return the Adreno or Mali that a target names; None if Mesa cannot compile for it here."""
    from ..mesa_folder import mesa_problem
    from ..target import named_device
    from ..tools.isa.compiler import GPUS, MALI_GPUS, gpu_of, mali_of
    from ..tools.isa.drivers import driver_of

    device = named_device(target)
    gpu = gpu_of(device) or mali_of(device)
    return gpu if gpu in (*GPUS, *MALI_GPUS) and mesa_problem(driver_of(gpu).family) is None else None


def _summary(codes: list[dict]) -> dict | None:
    """Return the most registers, the fewest waves (of Mali threads) and all scratch accesses of a kernel's launches."""
    if not codes:
        return None
    least = max(codes, key=lambda each: each["registers"])
    if "waves" in least:
        least = min(codes, key=lambda each: each["waves"])
    times = [each["issue_seconds"] for each in codes]
    return {
        "instructions": sum(each["instructions"] for each in codes),
        "registers": max(each["registers"] for each in codes),
        "waves": least.get("waves", least.get("threads_held")),
        "limited_by": least["limited_by"],
        "scratch": sum(each["scratch"] for each in codes),
        "issue_seconds": None if None in times else sum(times),
    }


def cells(kernel: Mapping) -> tuple[str, ...]:
    """Return the cells of a kernel in the columns `COLUMNS`."""
    code = kernel.get("machine_code")
    return tuple("-" if code is None else str(code[key]) for key in ("registers", "waves", "scratch"))


def sentence(data: Mapping) -> str:
    """Return what the columns say of all kernels."""
    known = [each["machine_code"] for each in data["kernels"] if each.get("machine_code")]
    spilled = sum(each["scratch"] > 0 for each in known)
    return (
        f"{data['registers'].capitalize()}, {data['held']} and accesses of scratch memory are those of Mesa "
        f"{data['mesa']}; {spilled} of {len(known)} kernels reach scratch memory. smartmem isa shows the rest."
    )

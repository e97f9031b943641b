# SPDX-License-Identifier: Apache-2.0
"""The table of docs/frontend.md: ONNX Runtime's own operators, what is served of each, and what it was held to."""

from __future__ import annotations

from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from smartmem_tvm.frontend.converters import CONVERTERS
from smartmem_tvm.frontend.converters.contrib_parts import PARTS
from smartmem_tvm.frontend.converters.contrib_refused import REFUSED

DOMAIN = "com.microsoft"


def schemas() -> dict:
    """Name -> the newest schema of each operator of ONNX Runtime's own domain that the installed wheel has."""
    found = {}
    for each in runtime.get_all_operator_schema():
        if each.domain == DOMAIN and (each.name not in found or found[each.name].since_version < each.since_version):
            found[each.name] = each
    return found


def on_cpu() -> set[str]:
    """Those of them that have a kernel on the CPU."""
    kernels = runtime.get_all_opkernel_def()
    return {each.op_name for each in kernels if each.domain == DOMAIN and "CPU" in each.provider}


def page() -> str:
    """One row for each operator that is served, then one for each reason to refuse others."""
    kernels = on_cpu()
    rows = ["| operator | refused of it | held to |", "| --- | --- | --- |"]
    for name in sorted(schemas()):
        if f"{DOMAIN}.{name}" not in CONVERTERS:
            continue
        parts = PARTS[f"{DOMAIN}.{name}"]
        without = [f"`{each}`" for each in (*sorted(parts.refused_inputs), *sorted(parts.refused_attributes))]
        rows.append(f"| {name} | {', '.join(without)} | {'ONNX Runtime' if name in kernels else 'its definition'} |")
    rows += ["", "| refused operators | why, and what to do |", "| --- | --- |"]
    for why in dict.fromkeys(REFUSED.values()):
        names = sorted(name.removeprefix(f"{DOMAIN}.") for name, each in REFUSED.items() if each == why)
        rows.append(f"| {', '.join(names)} | {why} |")
    return "\n".join(rows)

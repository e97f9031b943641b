# SPDX-License-Identifier: Apache-2.0
"""Find the multiplications in the assembly of a kernel built for a CPU."""

import tvm


def vector_products(rule, func, mcpu: str) -> tuple[list[str], list[int], str]:
    """Return the lines of assembly, the indices of FMAs among them, and the name of a full vector register."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu})
    library = tvm.compile(rule.apply(func.with_attr("global_symbol", "main"), target).mod, target=target)
    lines = library.mod.inspect_source("asm").splitlines()
    products = [n for n, line in enumerate(lines) if "vfmadd" in line]
    return lines, products, "%zmm" if "512" in mcpu else "%ymm"

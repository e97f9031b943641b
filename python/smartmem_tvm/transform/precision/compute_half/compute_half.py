# SPDX-License-Identifier: Apache-2.0
"""ComputeHalf: kernels compute in half precision, but for sums."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, tirx

from ....ir.graph import Graph, rewrite_graphs
from ....ir.half import FLOAT, LARGEST, exceeds_half
from .half_arithmetic import in_half


@tvm.transform.module_pass(opt_level=0, name="smartmem.ComputeHalf")
class ComputeHalf:
    """Let kernels compute with halves as halves; for devices with ``cl_khr_fp16``, after `StoreHalf`.

    Before::

        acc[i, j] += float(x[i, k]) * float(w[k, j])
        out[i, j] = half(gelu(acc[i, j] + float(b[j])))

    After::

        acc[i, j] += float(x[i, k] * w[k, j])           # sums stay in float32; a schedule may add a few terms in half
        out[i, j] = gelu(half(acc[i, j]) + b[j])

    Sums, values computed from the statistics of a row, and numbers that float16 cannot hold stay in float32
    (`half_arithmetic`).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        return rewrite_graphs(mod, _compute_half)


def _compute_half(graph: Graph) -> list[dict]:
    """Rewrite `graph` in place; return the kernels' parts that stay float32, and why."""
    log, beyond = [], set()
    for node in graph:
        if node.kernel is None or not all(isinstance(s.body, tirx.BufferStore) for s in node.kernel.stages):
            continue
        large = [b for b, arg in zip(node.kernel.inputs, node.args, strict=True) if arg in beyond or _is_large(arg)]
        if exceeds_half(node.kernel, large):
            beyond.add(node.var)
        node.kernel, reasons = in_half(node.kernel, large)
        said = {"pass": "ComputeHalf", "tensor": node.var.name, "computed": FLOAT}
        log += [{**said, "reason": reason} for reason in reasons]
    return log


def _is_large(arg) -> bool:
    """Whether an argument is a weight with finite numbers that float16 cannot hold."""
    if not isinstance(arg, ir.Constant) or str(arg.value.dtype) != FLOAT:
        return False
    numbers = np.abs(arg.value.numpy())
    return bool((np.isfinite(numbers) & (numbers > LARGEST)).any())

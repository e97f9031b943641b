# SPDX-License-Identifier: Apache-2.0
"""Single kernels of 16-bit numbers on a CUDA GPU beside torch: large products (cuBLAS) and attention.

    python benchmarks/half_kernels.py -o benchmarks/half_kernels.json

Inputs and results are of the type itself. Ten launches at a time, torch's from a CUDA graph, in turns; medians.
Errors are against torch in float64, relative to the largest result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from datetime import date
from pathlib import Path

import numpy as np

PRODUCTS = ((4096, 4096, 4096), (1024, 1024, 1024), (8192, 1024, 4096), (128, 768, 3072))  # rows, depth, columns
ATTENTIONS = ((1, 16, 4096, 64), (1, 12, 197, 64), (8, 12, 197, 64), (1, 8, 1024, 80))  # batch, heads, tokens, width
_ROUNDS, _LAUNCHES = 15, 10


def main() -> int:
    """Measure each, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--types", nargs="+", default=["float16", "bfloat16"], choices=["float16", "bfloat16"])
    parser.add_argument("--only", choices=["product", "attention"])
    args = parser.parse_args()
    import torch

    from smartmem_tvm.whole_file import whole

    rows = []
    for dtype in args.types:
        for shape in PRODUCTS if args.only != "attention" else ():
            rows.append(product(shape, dtype))
            print(json.dumps(rows[-1]), flush=True)
        for shape in ATTENTIONS if args.only != "product" else ():
            rows.append(attention(shape, dtype))
            print(json.dumps(rows[-1]), flush=True)
    with whole(args.output) as path:
        found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": date.today().isoformat()}
        found["rows"] = rows
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def product(shape: tuple[int, int, int], dtype: str) -> dict:
    """One product, beside torch.matmul."""
    import torch

    rows, depth, columns = shape
    given = numbers(dtype, (rows, depth), (depth, columns))

    ours, found = compiled(lambda op, left, right: op.matmul(left, right), dtype, *given)
    exact = given[0].double() @ given[1].double()
    times = in_turns({"ours": ours, "torch": recorded(lambda: torch.matmul(*given))})
    work = 2e-9 * rows * depth * columns
    rates = {name: work / each for name, each in times.items()}  # GFLOP over milliseconds: TFLOP/s
    return {"kernel": "product", "shape": shape, "type": dtype, "ms": times, "tflops": rates, **errors(found, exact)}


def attention(shape: tuple[int, int, int, int], dtype: str) -> dict:
    """One attention, beside torch's scaled_dot_product_attention."""
    from torch.nn.functional import scaled_dot_product_attention

    given = numbers(dtype, *[shape] * 3)
    scale = shape[3] ** -0.5

    def written(op, q, k, v):
        scores = op.matmul(q, op.permute_dims(k, [0, 1, 3, 2]))
        return op.matmul(op.nn.softmax(op.multiply(scores, constant(scale, dtype)), -1), v)

    ours, found = compiled(written, dtype, *given)
    exact = scaled_dot_product_attention(*(each.double() for each in given))
    times = in_turns({"ours": ours, "torch": recorded(lambda: scaled_dot_product_attention(*given))})
    return {"kernel": "attention", "shape": shape, "type": dtype, "ms": times, **errors(found, exact)}


def constant(value: float, dtype: str):
    """A scalar of the type."""
    from tvm import relax

    return relax.const(value, dtype)


def numbers(dtype: str, *shapes: tuple[int, ...]) -> list:
    """Tensors of normal numbers on the device."""
    import torch

    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for shape in shapes]


def compiled(written, dtype: str, *given):
    """A call that runs a graph of one expression ten times, and what it gives."""
    import torch
    import tvm
    from tvm import relax

    import smartmem_tvm as sm

    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{n}", relax.TensorType(tuple(each.shape), dtype)) for n, each in enumerate(given)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(written(relax.op, *params)))
        builder.emit_func_output(result)
    network = sm.compile(builder.get(), "cuda", sm.Options(cuda_graph=False))
    tensors = [tvm.runtime.from_dlpack(each) for each in given]
    run = network.vm["main"]
    found = torch.from_dlpack(run(*tensors)).double()
    timer = network.vm.time_evaluator("main", network.vm.device, number=_LAUNCHES)
    return (lambda: timer(*tensors).mean * 1e3), found


def recorded(call):
    """A call that launches ten of them from a CUDA graph; milliseconds of one."""
    import torch

    for _ in range(3):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_LAUNCHES):
            call()

    def run() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / _LAUNCHES

    return run


def in_turns(runs: dict) -> dict[str, float]:
    """Medians in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            times[name].append(run())
    return {name: statistics.median(each) for name, each in times.items()}


def errors(found, exact) -> dict[str, float]:
    """How far ours is off."""
    return {"error": float(np.abs((found - exact).cpu().numpy()).max() / np.abs(exact.cpu().numpy()).max())}


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Products of halves with every tile of a Hopper GPU's matrix instructions, beside torch: what tiles are chosen by.

    python benchmarks/matrix_tiles.py -o benchmarks/matrix_tiles.json --jobs 8

Kernels are built side by side and timed one at a time, ten launches together, torch's from a CUDA graph; medians.
`tests/schedule/gpu/matrix/test_tile.py` holds the cost model to what was found.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from datetime import date
from multiprocessing import get_context
from pathlib import Path

from half_kernels import recorded

TARGET = {
    "kind": "cuda",
    "arch": "sm_90a",
    "max_shared_memory_per_block": 49152,
    "max_threads_per_block": 1024,
    "thread_warp_size": 32,
}
SHAPES = (  # rows, columns, depth: ViT-B/16 on 4, 8 and 32 images, ConvNeXt-T on 32
    *((rows, *rest) for rows in (788, 1576, 6304) for rest in ((3072, 768), (768, 3072), (2304, 768), (768, 768))),
    *((6272, 1536, 384), (6272, 384, 1536), (25088, 768, 192), (25088, 192, 768), (100352, 384, 96), (100352, 96, 384)),
)
_ROUNDS, _LAUNCHES = 8, 10


def main() -> int:
    """Build, check and time each product with each tile that fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=4, help="kernels that are built at the same time")
    args = parser.parse_args()
    import torch

    from smartmem_tvm.whole_file import whole

    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool,
    ):
        cases = [(shape, tile) for shape in SHAPES for tile in tiles(shape)]
        built = list(pool.map(built_one, cases, [folder] * len(cases)))
        for shape in SHAPES:
            mine = [(tile, file) for (s, tile), file in zip(cases, built, strict=True) if s == shape]
            rows.append(measured(shape, mine))
            print(json.dumps(rows[-1]), flush=True)
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": date.today().isoformat()}
    with whole(args.output) as path:
        path.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def tiles(shape: tuple[int, int, int]) -> list[tuple]:
    """The candidates for groups of warps with terms of 64, and those in parts where that may pay."""
    import tvm

    from smartmem_tvm.schedule.gpu.matrix.tile import MatrixParams, Shape, divided, fits

    params = MatrixParams.of(tvm.target.Target(TARGET, host="llvm"))
    product = Shape(1, *shape)
    groups = [each for each in params.candidates if each.tile.group and each.tile.depth == 64]
    able = [one for each in groups for one in divided(each, product, params.limits.processors)]
    return [astuple(each.tile) for each in able if fits(each.tile, product, params) and each.tile.splits <= 3]


def built_one(case: tuple, folder: str) -> str:
    """Build the kernel of a case; the file that holds it."""
    import tvm
    from tvm import te

    from smartmem_tvm.deploy.gpu_build import build_kernels
    from smartmem_tvm.deploy.textures import CUDA_PIPELINE
    from smartmem_tvm.schedule.gpu.matrix.matrix import GpuMatrix
    from smartmem_tvm.schedule.gpu.matrix.tile import MatrixTile

    (rows, columns, depth), tile = case
    x, w = te.placeholder((rows, depth), "float16", "x"), te.placeholder((depth, columns), "float16", "w")
    bias, k = te.placeholder((columns,), "float16", "bias"), te.reduce_axis((0, depth), "k")
    total = te.compute((rows, columns), lambda i, j: te.sum((x[i, k] * w[k, j]).astype("float32"), k), "total")
    out = te.compute((rows, columns), lambda i, j: total[i, j].astype("float16") + bias[j], "out")
    target = tvm.target.Target(TARGET, host="llvm")
    schedule = GpuMatrix(tile=MatrixTile(*tile)).apply(te.create_prim_func([x, w, bias, out]), target)
    mod = tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")})
    file = str(Path(folder, f"{'_'.join(map(str, (*case[0], *tile)))}.so"))
    build_kernels(mod, target, CUDA_PIPELINE).export_library(file)
    return file


def measured(shape: tuple[int, int, int], kernels: list[tuple[tuple, str]]) -> dict:
    """Microseconds of torch and of each tile; raises if one is wrong."""
    import torch
    import tvm

    rows, columns, depth = shape
    sizes = (rows, depth), (depth, columns), (columns,)
    x, w, bias = (torch.randn(*size, device="cuda", dtype=torch.float16) for size in sizes)
    exact, turned = x.float() @ w.float() + bias.float(), w.t().contiguous()
    theirs = recorded(lambda: torch.nn.functional.linear(x, turned, bias))
    times = [theirs() * 1e3 for _ in range(_ROUNDS)]
    found = []
    for tile, file in kernels:
        out = torch.full((rows, columns), float("nan"), device="cuda", dtype=torch.float16)
        torch.cuda.synchronize()
        library, device = tvm.runtime.load_module(file), tvm.cuda(0)
        given = [tvm.runtime.from_dlpack(each) for each in (x, w, bias, out)]
        library["main"](*given)
        device.sync()
        if not (error := float((out.float() - exact).abs().max() / exact.abs().max())) < 2e-3:
            raise RuntimeError(f"{shape} with {tile} is wrong by {error:.1e}.")
        seconds = library.time_evaluator("main", device, number=_LAUNCHES, repeat=_ROUNDS)(*given).results
        found.append({"tile": tile, "us": round(statistics.median(seconds) * 1e6, 2)})
    return {"shape": shape, "torch": round(statistics.median(times), 2), "tiles": found}


if __name__ == "__main__":
    sys.exit(main())

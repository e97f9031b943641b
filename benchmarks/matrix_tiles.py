# SPDX-License-Identifier: Apache-2.0
"""Products with the tiles that a Hopper GPU may take, beside torch: what tiles are chosen by.

    python benchmarks/matrix_tiles.py -o benchmarks/matrix_tiles.json --jobs 8       # halves, matrix instructions
    python benchmarks/matrix_tiles.py --type float32 -o benchmarks/float_tiles.json --jobs 16

Kernels are built side by side and timed one at a time, ten launches together, torch's from a CUDA graph; medians.
`tests/schedule/gpu/matrix/test_tile.py` and `tests/schedule/gpu/matmul/test_tile.py` hold the cost models to what was
found.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from half_kernels import recorded

if TYPE_CHECKING:
    from smartmem_tvm.schedule.gpu.launch import GpuRule

TARGET = {
    "kind": "cuda",
    "arch": "sm_90a",
    "max_shared_memory_per_block": 49152,
    "max_threads_per_block": 1024,
    "thread_warp_size": 32,
}
HALVES = (  # rows, columns, depth: ViT-B/16 on 4, 8 and 32 images, ConvNeXt-T on 32
    *((rows, *rest) for rows in (788, 1576, 6304) for rest in ((3072, 768), (768, 3072), (2304, 768), (768, 768))),
    *((6272, 1536, 384), (6272, 384, 1536), (25088, 768, 192), (25088, 192, 768), (100352, 384, 96), (100352, 96, 384)),
)
FLOATS = (  # ALBERT, BERT, ViT-B/16, DenseNet, Swin-T, ResNet, ViT-B/16 on 32 images
    *((128, *rest) for rest in ((16384, 4096), (4096, 16384), (4096, 4096), (768, 768), (3072, 768), (768, 3072))),
    *((197, 2304, 768), (197, 768, 3072), (49, 3072, 768), (196, 1024, 256), (784, 1152, 384), (3136, 288, 96)),
    *((1024, 1024, 1024), (6304, 768, 768)),
)
_ROUNDS, _LAUNCHES = 8, 10
# Of float32: tiles of the same results, all tiles, times the least by the model.
_ALIKE, _CANDIDATES, _TIMES = 3, 36, 1.5


def main() -> int:
    """Build, check and time each product with each tile that fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--type", choices=list(KINDS), default="float16", dest="dtype")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=4, help="kernels that are built at the same time")
    args = parser.parse_args()
    import torch

    from smartmem_tvm.whole_file import whole

    rows, kind = [], KINDS[args.dtype]
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool,
    ):
        cases = [(shape, tile) for shape in kind.shapes for tile in kind.tiles(shape)]
        built = list(pool.map(built_one, cases, [args.dtype] * len(cases), [folder] * len(cases)))
        for shape in kind.shapes:
            mine = [(tile, file) for (s, tile), file in zip(cases, built, strict=True) if s == shape]
            rows.append(measured(shape, mine, args.dtype))
            print(json.dumps(rows[-1]), flush=True)
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": date.today().isoformat()}
    with whole(args.output) as path:
        path.write_text(json.dumps({**found, "rows": rows}) + "\n", encoding="utf-8")
    return 0


@dataclass(frozen=True)
class Kind:
    """Products of one type of numbers.

    Attributes
    ----------
    shapes : tuple of (rows, columns, depth)
    tiles : callable
        Of a shape, what is tried.
    rule : callable
        Of a tile, the rule that makes its kernel.
    error : float
        Of the largest result, that a kernel may make.
    """

    shapes: tuple[tuple[int, int, int], ...]
    tiles: Callable[[tuple[int, int, int]], list[tuple]]
    rule: Callable[[tuple], GpuRule]
    error: float


def float_tiles(shape: tuple[int, int, int]) -> list[tuple]:
    """Of the candidates that the model finds good, some of each size."""
    from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuMatmulParams, candidates, price

    params = GpuMatmulParams()
    timed = sorted((price(tile, 1, *shape, params).cycles, astuple(tile)) for tile in candidates(shape[2], params))
    found: dict[tuple, list] = {}
    for time, tile in timed:
        alike = found.setdefault((*tile[:2], *tile[3:5]), [])
        if len(alike) < _ALIKE and time < _TIMES * timed[0][0]:
            alike.append(tile)
    return [tile for alike in found.values() for tile in alike][:_CANDIDATES]


def float_rule(tile: tuple) -> GpuRule:
    """Without matrix instructions."""
    from smartmem_tvm.schedule.gpu.matmul.matmul import GpuMatmul
    from smartmem_tvm.schedule.gpu.matmul.matmul_tile import GpuTile

    return GpuMatmul(tile=GpuTile(*tile))


def half_rule(tile: tuple) -> GpuRule:
    """By matrix instructions."""
    from smartmem_tvm.schedule.gpu.matrix.matrix import GpuMatrix
    from smartmem_tvm.schedule.gpu.matrix.matrix_tile import MatrixTile

    return GpuMatrix(tile=MatrixTile(*tile))


def half_tiles(shape: tuple[int, int, int]) -> list[tuple]:
    """The candidates for groups of warps with terms of 64, and those in parts where that may pay."""
    import tvm

    from smartmem_tvm.schedule.gpu.matrix.matrix_tile import MatrixParams, Shape, divided, fits

    params = MatrixParams.of(tvm.target.Target(TARGET, host="llvm"))
    product = Shape(1, *shape)
    groups = [each for each in params.candidates if each.tile.group and each.tile.depth == 64]
    able = [one for each in groups for one in divided(each, product, params.limits.processors)]
    return [astuple(each.tile) for each in able if fits(each.tile, product, params) and each.tile.splits <= 3]


KINDS = {
    "float16": Kind(HALVES, half_tiles, half_rule, 2e-3),
    "float32": Kind(FLOATS, float_tiles, float_rule, 1e-5),
}


def built_one(case: tuple, dtype: str, folder: str) -> str:
    """Build the kernel of a case; the file that holds it."""
    import tvm
    from tvm import te

    from smartmem_tvm.deploy.gpu_build import build_kernels
    from smartmem_tvm.deploy.textures import CUDA_PIPELINE

    (rows, columns, depth), tile = case
    x, w = te.placeholder((rows, depth), dtype, "x"), te.placeholder((depth, columns), dtype, "w")
    bias, k = te.placeholder((columns,), dtype, "bias"), te.reduce_axis((0, depth), "k")
    total = te.compute((rows, columns), lambda i, j: te.sum((x[i, k] * w[k, j]).astype("float32"), k), "total")
    out = te.compute((rows, columns), lambda i, j: total[i, j].astype(dtype) + bias[j], "out")
    target = tvm.target.Target(TARGET, host="llvm")
    schedule = KINDS[dtype].rule(tile).apply(te.create_prim_func([x, w, bias, out]), target)
    mod = tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")})
    file = str(Path(folder, f"{'_'.join(map(str, (*case[0], *tile)))}.so"))
    build_kernels(mod, target, CUDA_PIPELINE).export_library(file)
    return file


def measured(shape: tuple[int, int, int], kernels: list[tuple[tuple, str]], name: str) -> dict:
    """Microseconds of torch and of each tile; raises if one is wrong."""
    import torch
    import tvm

    rows, columns, depth = shape
    dtype, most = getattr(torch, name), KINDS[name].error
    sizes = (rows, depth), (depth, columns), (columns,)
    x, w, bias = (torch.randn(*size, device="cuda", dtype=dtype) for size in sizes)
    exact, turned = x.double() @ w.double() + bias.double(), w.t().contiguous()
    theirs = recorded(lambda: torch.nn.functional.linear(x, turned, bias))
    times = [theirs() * 1e3 for _ in range(_ROUNDS)]
    found = []
    for tile, file in kernels:
        out = torch.full((rows, columns), float("nan"), device="cuda", dtype=dtype)
        torch.cuda.synchronize()
        library, device = tvm.runtime.load_module(file), tvm.cuda(0)
        given = [tvm.runtime.from_dlpack(each) for each in (x, w, bias, out)]
        library["main"](*given)
        device.sync()
        if not (error := float((out - exact).abs().max() / exact.abs().max())) < most:
            raise RuntimeError(f"{shape} with {tile} is wrong by {error:.1e}.")
        seconds = library.time_evaluator("main", device, number=_LAUNCHES, repeat=_ROUNDS)(*given).results
        found.append({"tile": tile, "us": round(statistics.median(seconds) * 1e6, 2)})
    return {"shape": shape, "torch": round(statistics.median(times), 2), "tiles": found}


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Normalisations of whole images on a CUDA GPU, a group of threads for each row and in pieces: where pieces begin.

    python benchmarks/long_rows.py -o benchmarks/long_rows.json

Four normalisations behind each other, in a CUDA graph; microseconds of one, medians. `pays_in_pieces` in
`schedule/gpu/rows/split_reduction.py` is the line between the two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from datetime import date
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np

ROWS, IMAGES = (1, 8, 32, 60), ((256, 4), (512, 7), (160, 14), (320, 14), (128, 28), (64, 56))  # channels, height
_LAYERS, _RUNS = 4, 200


def main() -> int:
    """Measure each shape both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--precision", default="half", choices=["half", "float32"])
    args = parser.parse_args()
    import torch

    from smartmem_tvm.whole_file import whole

    rows = []
    for count, (channels, height) in product(ROWS, IMAGES):
        times = {way: microseconds(count, channels, height, way, args.precision) for way in ("once", "pieces")}
        rows.append({"rows": count, "length": channels * height * height, **times})
        print(json.dumps(rows[-1]), flush=True)
    found = {"device": torch.cuda.get_device_name(), "precision": args.precision, "date": date.today().isoformat()}
    with whole(args.output) as path:
        path.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def microseconds(count: int, channels: int, height: int, way: str, precision: str) -> float:
    """One normalisation of `count` images."""
    import smartmem_tvm as sm
    from smartmem_tvm.schedule.gpu.rows import rows as rule
    from smartmem_tvm.tools.bench.turns import inference

    images = np.random.default_rng(0).standard_normal((count, channels, height, height)).astype("float32")
    with patch.object(rule, "pays_in_pieces", lambda *_: way == "pieces"):
        compiled = sm.compile(network(*images.shape), "cuda", sm.Options(precision=precision, cuda_graph=True))
    run, times = inference(compiled.vm, [images]), []
    for _ in range(_RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1e6 / _LAYERS, 2)


def network(count: int, channels: int, height: int, width: int):
    """Normalisations over all elements of an image, with a factor for each channel."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((count, channels, height, width), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for seed in range(_LAYERS):
                y = normalised(builder, y, (count, channels, height, width), seed)
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


def normalised(builder, x, shape: tuple[int, ...], seed: int):
    """One normalisation and its factor."""
    from tvm import relax

    emit, op = builder.emit, relax.op
    flat = emit(op.reshape(x, (shape[0], 1, shape[1] * shape[2] * shape[3])))
    mean, variance = emit(op.mean(flat, [2], True)), emit(op.variance(flat, [2], True))
    deviation = emit(op.sqrt(emit(op.add(variance, relax.const(1e-5)))))
    normal = emit(op.divide(emit(op.subtract(flat, mean)), deviation))
    factor = np.random.default_rng(seed).random((shape[1], 1, 1)).astype("float32")
    return emit(op.multiply(emit(op.reshape(normal, shape)), relax.const(factor)))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Single operators, and pairs of an operator and a view, beside ONNX Runtime on one thread, in turns.

    python benchmarks/operator_speed.py
    python benchmarks/operator_speed.py --only "lstm of 512 units" --threads 16 -o FILE
    python benchmarks/operator_speed.py --only "transposed, 1d" "dilated"

Networks of the audit have what their authors chose; here are windows, strides, axes and shapes that others choose. The
least of some rounds of each. Results go to operator_speed.json; `render.py audit` writes the page. Exit code 1 if one
is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.whole_file import whole

RESULTS = Path(__file__).resolve().parent / "operator_speed.json"
_ROUNDS, _LEAST_SECONDS, _TOLERANCE = 8, 0.05, 1e-4


@dataclass(frozen=True)
class Case:
    """A chain of operators: each reads what the one before computes, and constants.

    Attributes
    ----------
    shape : tuple of int
        Of the input, standard normal numbers.
    nodes : tuple
        Name of an operator, its constants (arrays, or shapes of weights) and its attributes.
    """

    shape: tuple[int, ...]
    nodes: tuple[tuple[str, tuple, dict], ...]

    def model(self) -> onnx.ModelProto:
        """The ONNX model, with random weights."""
        rng, nodes, known, last = np.random.default_rng(0), [], [], "x"
        for number, (name, constants, attributes) in enumerate(self.nodes):
            names = []
            for each in constants:
                array = each if isinstance(each, np.ndarray) else _weights(rng, each)
                names.append(f"c{len(known)}")
                known.append(numpy_helper.from_array(array, names[-1]))
            nodes.append(helper.make_node(name, [last, *names], [f"t{number}"], **attributes))
            last = f"t{number}"
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(nodes, "case", [given], [onnx.ValueInfoProto(name=last)], known)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def _weights(rng, shape) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")


def one(shape, name, *constants, **attributes) -> Case:
    """A single operator."""
    return Case(shape, ((name, constants, attributes),))


def then(first: Case, name, *constants, **attributes) -> Case:
    """An operator behind a case."""
    return Case(first.shape, (*first.nodes, (name, constants, attributes)))


def _ints(*values) -> np.ndarray:
    return np.array(values, "int64")


_IMAGE, _PIXELS, _SCALES = (1, 64, 28, 28), (1, 64, 32, 32), np.array([1, 1, 2, 2], "float32")
_CONV = one(_IMAGE, "Conv", (64, 64, 3, 3), pads=[1] * 4)
_POINTS = one(_IMAGE, "Conv", (64, 64, 1, 1))
CASES = {
    "transposed 4 x 4, stride 2": one(_PIXELS, "ConvTranspose", (64, 32, 4, 4), strides=[2, 2], pads=[1] * 4),
    "transposed 3 x 3, stride 2": one(
        _PIXELS, "ConvTranspose", (64, 32, 3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]
    ),
    "transposed 2 x 2, stride 2": one(_PIXELS, "ConvTranspose", (64, 32, 2, 2), strides=[2, 2]),
    "transposed 8 x 8, stride 4": one(_PIXELS, "ConvTranspose", (64, 32, 8, 8), strides=[4, 4], pads=[2] * 4),
    "transposed, depthwise": one(_PIXELS, "ConvTranspose", (64, 1, 4, 4), strides=[2, 2], pads=[1] * 4, group=64),
    "transposed, 1d": one((1, 128, 400), "ConvTranspose", (128, 64, 16), strides=[8], pads=[4, 4]),
    "transposed, 3d": one((1, 32, 8, 16, 16), "ConvTranspose", (32, 16, 2, 2, 2), strides=[2, 2, 2]),
    "1d, depthwise": one((1, 256, 1000), "Conv", (256, 1, 31), pads=[15, 15], group=256),
    "1d, dilated": one((1, 64, 2000), "Conv", (64, 64, 3), pads=[8, 8], dilations=[8]),
    "1d, stride 5": one((1, 1, 16000), "Conv", (256, 1, 10), strides=[5]),
    "3d": one((1, 16, 16, 28, 28), "Conv", (32, 16, 3, 3, 3), pads=[1] * 6),
    "3d, depthwise": one((1, 64, 8, 28, 28), "Conv", (64, 1, 3, 3, 3), pads=[1] * 6, group=64),
    "1 x 7": one((1, 128, 17, 17), "Conv", (128, 128, 1, 7), pads=[0, 3, 0, 3]),
    "dilated": one((1, 128, 28, 28), "Conv", (128, 128, 3, 3), pads=[6] * 4, dilations=[6, 6]),
    "three groups, stride 2": one((1, 96, 28, 28), "Conv", (96, 32, 3, 3), pads=[1] * 4, group=3, strides=[2, 2]),
    "depthwise 7 x 7, stride 2": one((1, 96, 56, 56), "Conv", (96, 1, 7, 7), pads=[3] * 4, group=96, strides=[2, 2]),
    "depthwise 1 x 11": one((1, 96, 56, 56), "Conv", (96, 1, 1, 11), pads=[0, 5, 0, 5], group=96),
    "two filters for a channel": one(_IMAGE, "Conv", (128, 1, 3, 3), pads=[1] * 4, group=64),
    "patches of 16": one((1, 3, 224, 224), "Conv", (192, 3, 16, 16), strides=[16, 16]),
    "7 x 7, stride 4": one((1, 3, 224, 224), "Conv", (64, 3, 7, 7), strides=[4, 4], pads=[3] * 4),
    "3 x 3, then shuffled pixels": then(
        one(_PIXELS, "Conv", (256, 64, 3, 3), pads=[1] * 4), "DepthToSpace", blocksize=2, mode="CRD"
    ),
    "1 x 1, then shuffled pixels": then(
        one((1, 64, 56, 56), "Conv", (48, 64, 1, 1)), "DepthToSpace", blocksize=4, mode="CRD"
    ),
    "3 x 3, then cropped": then(_CONV, "Slice", _ints(1, 1), _ints(26, 27), _ints(2, 3)),
    "3 x 3, then turned round": then(_CONV, "Slice", _ints(-1), _ints(-9999), _ints(3), _ints(-1)),
    "1 x 1, then of another shape": then(one((1, 60, 27, 27), "Conv", (60, 60, 1, 1)), "Reshape", _ints(1, 27, 60, 27)),
    "1 x 1, then padded": then(_POINTS, "Pad", _ints(0, 0, 1, 1, 0, 0, 2, 2)),
    "1 x 1, then enlarged": then(_POINTS, "Resize", np.array([], "float32"), _SCALES, mode="linear"),
    "pooled after 3 x 3": then(_CONV, "AveragePool", kernel_shape=[2, 2], strides=[2, 2]),
    "maximum of 13 x 13": one((1, 256, 20, 20), "MaxPool", kernel_shape=[13, 13], pads=[6] * 4, strides=[1, 1]),
    "matmul of many rows": one((20000, 32), "MatMul", (32, 32)),
    "matmul of few rows": one((4, 1024), "MatMul", (1024, 4096)),
    "matmul of many columns": one((64, 64), "MatMul", (64, 20000)),
    "matmul with a vector": one((5000, 512), "MatMul", (512, 1)),
    "matmul, then transposed": then(one((196, 384), "MatMul", (384, 384)), "Transpose", perm=[1, 0]),
    "matmul, then of another shape": then(one((100, 63), "MatMul", (63, 77)), "Reshape", _ints(1, 70, 110)),
    "softmax over channels": one((1, 21, 128, 128), "Softmax", axis=1),
    "mean of the first axis": one((2000, 256), "ReduceMean", axes=[0]),
    "maximum of the middle axis": one((16, 500, 64), "ReduceMax", axes=[1]),
    "short rows normalised": one((1, 3136, 32), "LayerNormalization", (32,), (32,)),
    "long rows normalised": one((1, 50, 4096), "LayerNormalization", (4096,), (4096,)),
    "local response": one((1, 96, 55, 55), "LRN", size=5),
    "reflected border": one((1, 64, 64, 64), "Pad", _ints(0, 0, 3, 3, 0, 0, 3, 3), mode="reflect"),
    "cubic": one((1, 16, 64, 64), "Resize", np.array([], "float32"), _SCALES, mode="cubic"),
    "lstm of 512 units": one((50, 1, 512), "LSTM", (1, 2048, 512), (1, 2048, 512), (1, 4096), hidden_size=512),
    "lstm of 100 units, both ways, three sequences": one(
        (40, 3, 64), "LSTM", (2, 400, 64), (2, 400, 100), (2, 800), hidden_size=100, direction="bidirectional"
    ),
    "gru of 256 units, four sequences": one(
        (50, 4, 256), "GRU", (1, 768, 256), (1, 768, 256), (1, 1536), hidden_size=256, linear_before_reset=1
    ),
    "transposed tensor": one((64, 256, 196), "Transpose", perm=[2, 1, 0]),
}


def main() -> int:
    """Measure what the command line asks for, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES), metavar="NAME")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    args = parser.parse_args()
    if args.threads > 1 and args.output == RESULTS:
        parser.error(f"{RESULTS.name} is of one thread: name another file for {args.threads} with -o.")
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tune.host import set_threads

    set_threads(args.threads)

    rows = json.loads(args.output.read_text(encoding="utf-8"))["rows"] if args.output.exists() else {}
    for name in args.only:
        rows[name] = measure(CASES[name], args.threads)
        with whole(args.output) as path:
            path.write_text(
                json.dumps({"machine": machine(args.threads), "rows": rows}, indent=1) + "\n", encoding="utf-8"
            )
        print(name, json.dumps(rows[name]), flush=True)
    return 0 if all(rows[name]["error"] < _TOLERANCE for name in args.only) else 1


def measure(case: Case, threads: int = 1) -> dict:
    """Least microseconds of ONNX Runtime and of ours, the error between them, and the rules that made the kernels."""
    import onnxruntime
    import tvm

    import smartmem_tvm as sm
    from smartmem_tvm.target import host_target
    from smartmem_tvm.tools.bench.turns import inference

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    given = np.random.default_rng(1).standard_normal(case.shape).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.onnx")
        onnx.save(case.model(), path)
        session = onnxruntime.InferenceSession(path, options)
        compiled = sm.compile(sm.from_onnx(path), tvm.target.Target({**host_target().export(), "num-cores": threads}))
    (want,), found = session.run(None, {"x": given}), compiled.run(given)[0]
    runs = {"onnxruntime": lambda: session.run(None, {"x": given}), "ours": inference(compiled.vm, [given])}
    return {
        "microseconds": least(runs),
        "error": float(np.abs(found - want).max() / (np.abs(want).max() or 1.0)),
        "rules": sorted({rule["name"] for rule in compiled.rules.values()}),
        "date": date.today().isoformat(),
    }


def least(
    runs: dict[str, Callable], clock: Callable[[], float] = time.perf_counter, seconds: float = _LEAST_SECONDS
) -> dict[str, float]:
    """The least microseconds of each by a clock, in turns of so many seconds."""
    found = dict.fromkeys(runs, float("inf"))
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            run()
            end = clock() + seconds
            while True:
                start = clock()
                run()
                now = clock()
                found[name] = min(found[name], (now - start) * 1e6)
                if now > end:
                    break
    return found


if __name__ == "__main__":
    sys.exit(main())

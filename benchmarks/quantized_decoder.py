# SPDX-License-Identifier: Apache-2.0
"""Weights in four bits: tokens and prompts of a stack of 109 million weights, beside ONNX Runtime, in turns.

    python benchmarks/quantized_decoder.py
    python benchmarks/quantized_decoder.py --rows 1 32 --target haswell -o FILE

The stack has the matrices of a decoder of 12 layers of 768, with 2,048 and a vocabulary of 32,000, in ``MatMulNBits``
with blocks of 32; gates stand in the place of attention. Rows are float32, or bytes (``accuracy_level`` 4). The least
processor time of one thread of some rounds. Results go to quantized_decoder.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from operator_speed import least

from smartmem_tvm.whole_file import whole

RESULTS = Path(__file__).resolve().parent / "quantized_decoder.json"
LAYERS, WIDTH, INNER, VOCABULARY, BLOCK = 12, 768, 2048, 32000, 32
_LEAST_SECONDS = 0.5


class Stack:
    """A graph that grows node by node, and computes in float64 what it stands for."""

    def __init__(self, rows: int, level: int):
        self.rows, self.level, self.nodes, self.known = rows, level, [], []
        self.random = np.random.default_rng(0)
        self.values = {"x": self.random.standard_normal((rows, WIDTH)).astype("float32").astype("float64")}

    def op(self, name: str, *inputs: str, value: np.ndarray, **attributes) -> str:
        """One operator, whose result is `value`."""
        self.nodes.append(helper.make_node(name, list(inputs), [f"t{len(self.nodes)}"], **attributes))
        self.values[self.nodes[-1].output[0]] = value
        return self.nodes[-1].output[0]

    def constant(self, array: np.ndarray) -> str:
        """A constant."""
        self.known.append(numpy_helper.from_array(array, f"c{len(self.known)}"))
        return self.known[-1].name

    def product(self, x: str, depth: int, columns: int) -> str:
        """A product with random codes of four bits."""
        blocks = depth // BLOCK
        packed = self.random.integers(0, 256, (columns, blocks, BLOCK // 2)).astype("uint8")
        scales = ((0.5 + self.random.random((columns, blocks))) * 0.2 / np.sqrt(depth)).astype("float32")
        codes = np.stack([packed & 15, packed >> 4], -1).reshape(columns, depth).astype("float64") - 8
        value = self.values[x] @ (codes * np.repeat(scales, BLOCK, 1)).T
        given = {"K": depth, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": self.level}
        parts = (self.constant(each) for each in (packed, scales))
        return self.op("MatMulNBits", x, *parts, value=value, domain="com.microsoft", **given)

    def times(self, a: str, b: str) -> str:
        """A product of numbers."""
        return self.op("Mul", a, b, value=self.values[a] * self.values[b])

    def gate(self, a: str, b: str) -> str:
        """``sigmoid(a) * b``."""
        return self.times(self.op("Sigmoid", a, value=1 / (1 + np.exp(-self.values[a]))), b)

    def norm(self, x: str) -> str:
        """A layer norm."""
        value = self.values[x]
        centred = value - value.mean(-1, keepdims=True)
        value = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5)
        ones, zeros = self.constant(np.ones(WIDTH, "float32")), self.constant(np.zeros(WIDTH, "float32"))
        return self.op("LayerNormalization", x, ones, zeros, value=value, axis=-1)


def stack(rows: int, level: int, layers: int = LAYERS) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """Return a model, an input, and the result in float64."""
    graph, x = Stack(rows, level), "x"
    for _ in range(layers):
        h = graph.norm(x)
        q, k, v = (graph.product(h, WIDTH, WIDTH) for _ in range(3))
        mixed = graph.product(graph.gate(q, graph.gate(k, v)), WIDTH, WIDTH)
        x = graph.op("Add", x, mixed, value=graph.values[x] + graph.values[mixed])
        h = graph.norm(x)
        inner = graph.gate(graph.product(h, WIDTH, INNER), graph.product(h, WIDTH, INNER))
        inner = graph.product(inner, INNER, WIDTH)
        x = graph.op("Add", x, inner, value=graph.values[x] + graph.values[inner])
    last = graph.product(graph.norm(x), WIDTH, VOCABULARY)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, WIDTH))
    found = helper.make_tensor_value_info(last, TensorProto.FLOAT, (rows, VOCABULARY))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_graph(graph.nodes, "stack", [given], [found], graph.known)
    return helper.make_model(made, opset_imports=imports, ir_version=8), graph.values["x"], graph.values[last]


def measure(rows: int, cpu: str | None) -> dict:
    """Least microseconds, and the largest difference from float64, of each system."""
    import onnxruntime
    import tvm

    import smartmem_tvm as sm
    from smartmem_tvm.target import host_target
    from smartmem_tvm.tools.bench.turns import inference

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    host = {"kind": "llvm", "mcpu": cpu} if cpu else dict(host_target().export())
    target, runs, results = tvm.target.Target({**host, "num-cores": 1}), {}, {}
    for level, name in ((0, "floats"), (4, "bytes")):
        model, x, exact = stack(rows, level)
        x = x.astype("float32")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        compiled = sm.compile(sm.from_onnx(model), target)
        runs[f"ours, {name}"] = inference(compiled.vm, [x])
        runs[f"onnxruntime, {name}"] = lambda session=session, x=x: session.run(None, {"x": x})
        results[f"ours, {name}"], results[f"onnxruntime, {name}"] = compiled.run(x)[0], session.run(None, {"x": x})[0]
    size = np.abs(exact).max()
    return {
        "microseconds": {name: round(each, 1) for name, each in least(runs, time.thread_time, _LEAST_SECONDS).items()},
        "error": {name: float(np.abs(each - exact).max() / size) for name, each in results.items()},
        "date": date.today().isoformat(),
    }


def main() -> int:
    """Measure what the command line asks for, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 12, 32, 128], metavar="ROWS")
    parser.add_argument("--target", metavar="CPU", help="LLVM's name of a processor; this machine's by default")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args()
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tune.host import set_threads

    set_threads(1)
    found = json.loads(args.output.read_text(encoding="utf-8"))["rows"] if args.output.exists() else {}
    for rows in args.rows:
        key = f"{rows}, {args.target}" if args.target else str(rows)
        found[key] = measure(rows, args.target)
        with whole(args.output) as path:
            path.write_text(json.dumps({"machine": machine(1), "rows": found}, indent=1) + "\n", encoding="utf-8")
        print(key, json.dumps(found[key]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

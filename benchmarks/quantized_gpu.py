#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights in four and eight bits, and products of bytes, on an NVIDIA GPU beside half.

Weights: single products, and a token of a Llama of a billion. Bytes: single products, ResNet-50 and BERT-base as QDQ.

python benchmarks/quantized_gpu.py                       # everything, within four minutes, but products of bytes
python benchmarks/quantized_gpu.py --only products       # one step
python benchmarks/quantized_gpu.py --only "byte products" "byte files" "resnet50" "bert"
python benchmarks/quantized_gpu.py --target opencl --small    # small sizes, on any device

It prints a JSON object for each row, and goes on after a failure, which is a row with `error`. Each step is a process
with a time limit of its own. Times are medians of rounds of launches in a row, in turns where rows are compared, with
CUDA graphs. A token is a decode step at the last place of caches of 256 rows; the rows before are constants, so that
all kernels but the first and the last are in one CUDA graph. Results are compared with float64 (products), and with
this package's float32 on the CPU (a network of two layers).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import quantized
from decoder_network import Decoder, _Writer
from onnx import TensorProto, helper

import smartmem_tvm as sm
from smartmem_tvm.target import device_of, parse_target

GROUP = 32
"""Numbers that share a scale."""
STEPS = {"products": 80, "check": 60, "few layers": 90, "network": 150}
"""Step -> seconds after which it is given up; all of them together get `TOTAL`."""
BYTES = {"byte products": 60, "byte files": 75, "resnet50": 100, "bert4": 100, "bert": 150}
"""The same for products of bytes, each by itself."""
BATCH = 32
BYTE_PRODUCTS = (
    (4096, 768, 768),
    (4096, 768, 3072),
    (4096, 3072, 768),
    (128, 768, 3072),
    (1024, 1024, 1024),
    (4096, 4096, 4096),
    (4, 1024, 4096),
)
"""Rows, depth, columns: of BERT-base at batch 32, and square ones."""
TOTAL = 230
PRODUCTS = ((1, 2048, 8192), (1, 8192, 2048), (1, 2048, 32000), (4, 2048, 8192), (8, 2048, 8192), (128, 2048, 8192))
"""Rows, depth, columns. 2048 x 8192 stays in the last-level cache between launches; 2048 x 32000 does in four bits."""


def main() -> int:
    """Run the steps, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda", help="a TVM target (default: %(default)s)")
    parser.add_argument("--only", choices=[*STEPS, *BYTES], nargs="+", help="some steps", metavar="STEP")
    parser.add_argument("--small", action="store_true", help="small sizes, to try the script on another device")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        for name in args.only:
            for row in _STEPS[name](args.target, args.small):
                print(json.dumps(row), flush=True)
        return 0
    begin = time.monotonic()
    for name in args.only or STEPS:
        left = BYTES.get(name, TOTAL - (time.monotonic() - begin))
        if left < 10:
            print(json.dumps({"step": name, "error": "no time left"}), flush=True)
            continue
        _in_a_process(name, args, min({**STEPS, **BYTES}[name], left))
    print(json.dumps({"step": "all", "seconds": round(time.monotonic() - begin, 1)}), flush=True)
    return 0


def _in_a_process(name: str, args: argparse.Namespace, limit: float) -> None:
    command = [sys.executable, __file__, "--here", "--only", name, "--target", args.target]
    try:
        done = subprocess.run([*command, *(["--small"] if args.small else [])], timeout=limit, check=False)
        if done.returncode:
            print(json.dumps({"step": name, "error": f"it ended with {done.returncode}"}), flush=True)
    except subprocess.TimeoutExpired:
        print(json.dumps({"step": name, "error": f"it took longer than {limit:.0f} seconds"}), flush=True)


def attempted(row: dict, make: Callable[[], dict]) -> dict:
    """Return a row with what `make` found, or with the error."""
    begin = time.monotonic()
    try:
        row = {**row, **make()}
    except Exception as error:  # whatever it is, the other rows are worth having
        lines = traceback.format_exception_only(error)[-1].strip().splitlines()
        place = traceback.extract_tb(error.__traceback__)[-1]
        row = {**row, "error": f"{lines[-1][:300]} ({Path(place.filename).name}:{place.lineno})"}
    return {**row, "wall": round(time.monotonic() - begin, 1)}


# -- models --------------------------------------------------------------------------------------------------------


class Coded(_Writer):
    """Writes matrices of products as MatMulNBits."""

    def __init__(self, sizes: Decoder, bits: int = 4):
        super().__init__(sizes)
        self.bits, self.coded = bits, {}

    def matrix(self, rows: int, columns: int) -> str:
        """Return the name of a matrix in codes; one of the same numbers is the operand of MatMul here."""
        blocks, many = rows // GROUP, GROUP * self.bits // 8
        codes = np.frombuffer(self.random.bytes(columns * blocks * many), "uint8").reshape(columns, blocks, many)
        # Codes are evenly drawn, so that their spread is the root of a twelfth of their range.
        scale = 12**0.5 / (2**self.bits * rows**0.5)
        scales = np.full((columns, blocks), scale, "float32") * self.random.uniform(0.8, 1.2, (columns, blocks))
        name = self.constant(codes)
        self.coded[name] = self.constant(scales.astype("float32").reshape(-1)), rows, columns
        return name

    def emit(self, op: str, *inputs: str, name: str = "", **attrs) -> str:
        """Return the result of an operator; a MatMul by a matrix in codes is a MatMulNBits."""
        if op != "MatMul" or inputs[1] not in self.coded:
            return super().emit(op, *inputs, name=name, **attrs)
        scales, rows, columns = self.coded[inputs[1]]
        options = {"K": rows, "N": columns, "bits": self.bits, "block_size": GROUP, "domain": "com.microsoft"}
        return super().emit("MatMulNBits", inputs[0], inputs[1], scales, name=name, **options)

    def product(self, rows: int) -> onnx.ModelProto:
        """Return one product."""
        sizes = self.sizes
        self.emit("MatMul", "x", self.matrix(sizes.width, sizes.inner), name="y")
        return self._model(("x", [rows, sizes.width]), ("y", [rows, sizes.inner]), TensorProto.FLOAT)

    def parts(self, x: str, *widths: int) -> list[str]:
        """Return the parts of one product."""
        whole = self.emit("MatMul", x, self.matrix(self.sizes.width, sum(widths)))
        names = [f"{whole}_{n}" for n in range(len(widths))]
        self.nodes.append(helper.make_node("Split", [whole, self.ints(*widths)], names, axis=-1))
        return names

    def layer(self, x: str, number: int, cos: str, sin: str, mask: str) -> str:
        """Return a layer whose queries, keys and values are one product, as are gates and what they multiply."""
        sizes = self.sizes
        width = sizes.key_heads * sizes.head
        q, k, v = self.parts(self.norm(x), sizes.width, width, width)
        q, k, v = self.heads(q, sizes.heads), self.heads(k, sizes.key_heads), self.heads(v, sizes.key_heads)
        x = self.attended(x, number, (q, k, v), cos, sin, mask)
        return self.gated(x, *self.parts(self.norm(x), sizes.inner, sizes.inner))

    def step(self) -> onnx.ModelProto:
        """Return a decode step: the token of the last place of caches whose other rows are constants."""
        sizes = self.sizes
        table = self.constant(self.random.standard_normal((sizes.vocabulary, sizes.width), "float32"))
        x = self.emit("Gather", table, "input_ids", axis=0)
        at = self.constant(np.array([[sizes.capacity - 1]], "int64"))
        self.nodes.append(helper.make_node("Identity", [at], ["position_ids"]))
        for name in sizes.caches:
            values = self.random.standard_normal(sizes.cache, "float32")
            self.nodes.append(helper.make_node("Identity", [self.constant(values)], [name]))
        (cos, sin), mask = self.angles(), self.mask()
        for number in range(sizes.layers):
            x = self.layer(x, number, cos, sin, mask)
        self.emit("MatMul", self.norm(x), self.matrix(sizes.width, sizes.vocabulary), name="logits")
        return self._model(("input_ids", [1, 1]), ("logits", [1, 1, sizes.vocabulary]), TensorProto.INT64)

    def _model(self, given: tuple, found: tuple, kind: int) -> onnx.ModelProto:
        x, y = (
            helper.make_tensor_value_info(given[0], kind, given[1]),
            helper.make_tensor_value_info(found[0], 1, found[1]),
        )
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph(self.nodes, "coded", [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def llama(layers: int, small: bool = False) -> Decoder:
    """Return the sizes of a Llama: a billion parameters with 16 layers."""
    if small:
        return Decoder(320, 128, layers, 4, 2, 256, 32)
    return Decoder(32000, 2048, layers, 32, 8, 8192, 256)


# -- times ---------------------------------------------------------------------------------------------------------


class Runner:
    """A compiled model with its inputs on the device."""

    def __init__(self, compiled: sm.Compiled, x: np.ndarray):
        self.compiled, vm = compiled, compiled.machine()
        self.main, self.tensors, self.device = vm["main"], vm.tensors([x]), device_of(compiled.target)
        self.run(3)

    def run(self, times: int) -> float:
        """Return the seconds of an inference, of `times` in a row."""
        start = time.perf_counter()
        for _ in range(times):
            self.main(*self.tensors)
        self.device.sync()
        return (time.perf_counter() - start) / times

    @property
    def facts(self) -> dict:
        """Kernels, those of each CUDA graph, bytes of weights, and launches of each rule."""
        rules: dict[str, int] = {}
        for each in self.compiled.rules.values():
            rules[each["name"]] = rules.get(each["name"], 0) + 1
        weights = sum(each.tensor.numpy().nbytes for each in self.compiled.weights)
        return {"graphs": list(self.compiled.kernels_per_graph), "weights_mb": round(weights / 1e6, 1), "rules": rules}


def in_turns(runners: dict[str, Runner], times: int, rounds: int = 7) -> dict[str, float]:
    """Return the median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            seconds[name].append(runner.run(times))
    return {name: statistics.median(each) for name, each in seconds.items()}


def built(mod, target: str, x: np.ndarray, weights: str, precision: str = "half") -> Runner:
    """Return a compiled model."""
    options = sm.Options(precision=precision, weights=weights)
    return Runner(sm.compile(mod, parse_target(target), options), x)


# -- steps ---------------------------------------------------------------------------------------------------------


def products(target: str, small: bool) -> Iterator[dict]:
    """Yield single products: four bits, eight bits, and half."""
    precision = "half" if target == "cuda" else "half-storage"
    for rows, depth, columns in ((1, 256, 512), (4, 256, 512), (40, 256, 512)) if small else PRODUCTS:
        row = {"step": "products", "rows": rows, "depth": depth, "columns": columns}
        yield attempted(row, lambda sizes=(rows, depth, columns): _product(target, precision, *sizes))


def _product(target: str, precision: str, rows: int, depth: int, columns: int) -> dict:
    runners, found = {}, {}
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, depth)).astype("float32")
    for name, bits, weights in (("int4", 4, "stored"), ("int8", 8, "stored"), ("half", 4, "float")):
        writer = Coded(Decoder(width=depth, inner=columns), bits)
        try:
            runners[name] = built(sm.from_onnx(writer.product(rows)), target, x, weights, precision)
            found[f"{name}_error"] = _error(runners[name].compiled, x, _weight(writer))
            found[f"{name}_rules"] = list(runners[name].facts["rules"])
        except Exception as error:
            found[f"{name}_failed"] = str(error)[-300:]
    times = in_turns(runners, 50)
    found |= {f"{name}_us": round(1e6 * seconds, 2) for name, seconds in times.items()}
    if "int4" in times and "half" in times:
        found["int4_over_half"] = round(times["int4"] / times["half"], 3)
    return found


def _error(compiled: sm.Compiled, x: np.ndarray, weight: np.ndarray) -> float:
    exact = x.astype("float64") @ weight
    (y,) = compiled.run(x)
    return float(np.abs(y - exact).max() / np.abs(exact).max())


def _weight(writer: Coded) -> np.ndarray:
    """Return the only matrix of a writer as float64, (depth, columns)."""
    arrays = [onnx.numpy_helper.to_array(each) for each in writer.weights]
    codes, scales = arrays[0], arrays[1].reshape(*arrays[0].shape[:2], 1)
    if writer.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], -1)
    numbers = (codes.astype("float32") - 2 ** (writer.bits - 1)) * scales
    return numbers.reshape(len(codes), -1).T.astype("float64")


def check(target: str, small: bool) -> Iterator[dict]:
    """Yield the scores of a network of two layers beside float32 on the CPU."""
    sizes = Decoder(1000, 256, 2, 8, 2, 512, 64)
    mod, ids = sm.from_onnx(Coded(sizes).step()), np.array([[7]])
    exact = sm.compile(mod, options=sm.Options(weights="float")).run(ids)[0]
    ways = {"stored": ("half", "float32"), "float": ("half",)} if target == "cuda" else {"stored": ("float32",)}
    for weights, precisions in ways.items():
        for precision in precisions:

            def make(weights=weights, precision=precision) -> dict:
                runner = built(mod, target, ids, weights, precision)
                (scores,) = runner.compiled.run(ids)
                found = float(np.abs(scores - exact).max() / np.abs(exact).max())
                return {"difference": found, **runner.facts}

            yield attempted({"step": "check", "weights": weights, "precision": precision}, make)


def few_layers(target: str, small: bool) -> Iterator[dict]:
    """Yield times of a token of networks with one and with four layers: the difference is that of three layers."""
    for layers in (1, 4):
        yield attempted({"step": "few layers", "layers": layers}, lambda n=layers: _token(target, llama(n, small)))


def network(target: str, small: bool) -> Iterator[dict]:
    """Yield times of a token of the whole network."""
    yield attempted({"step": "network", "layers": 16}, lambda: _token(target, llama(2 if small else 16, small)))


def _token(target: str, sizes: Decoder) -> dict:
    precision, ids = "half" if target == "cuda" else "half-storage", np.array([[7]])
    begin = time.monotonic()
    mod, runners = sm.from_onnx(Coded(sizes).step()), {}
    found: dict = {"import_seconds": round(time.monotonic() - begin, 1)}
    for name, weights in (("int4", "stored"), ("half", "float")):
        begin = time.monotonic()
        try:
            runners[name] = built(mod, target, ids, weights, precision)
            found[f"{name}_facts"] = runners[name].facts
            alone = in_turns({name: runners[name]}, 20, 3)[name]  # a figure, if the other one takes too long
            print(json.dumps({"step": "token", "layers": sizes.layers, "system": name, "ms": 1e3 * alone}), flush=True)
        except Exception as error:
            found[f"{name}_failed"] = str(error)[-300:]
        found[f"{name}_compile_seconds"] = round(time.monotonic() - begin, 1)
        gc.collect()
    times = in_turns(runners, 20)
    found |= {f"{name}_ms": round(1e3 * seconds, 4) for name, seconds in times.items()}
    if len(times) == 2:
        found["int4_over_half"] = round(times["int4"] / times["half"], 3)
    return found


# -- products of bytes ---------------------------------------------------------------------------------------------


def byte_products(target: str, small: bool) -> Iterator[dict]:
    """Yield single products of unsigned bytes by signed ones with a requantization, beside half."""
    for rows, depth, columns in BYTE_PRODUCTS[-1:] if small else BYTE_PRODUCTS:
        row = {"step": "byte products", "rows": rows, "depth": depth, "columns": columns}
        yield attempted(row, lambda sizes=(rows, depth, columns): _byte_product(target, *sizes))


def _byte_product(target: str, rows: int, depth: int, columns: int) -> dict:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (rows, depth)).astype("uint8")
    w = random.integers(-127, 128, (depth, columns)).astype("int8")
    scale = (random.random(columns) * 1e-4 + 1e-5).astype("float32")
    known = {"sx": np.float32(0.02), "zx": np.uint8(120), "w": w, "sw": scale, "zw": np.zeros(columns, "int8")}
    known |= {"sy": np.float32(0.02), "zy": np.uint8(128)}
    node = helper.make_node("QLinearMatMul", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["y"])
    integers = _single(node, known, TensorProto.UINT8, (rows, depth), (rows, columns))
    exact = (x.astype("float64") - 120) @ w.astype("float64")
    ratio = (np.float32(0.02) * scale) / np.float32(0.02)
    want = np.clip(np.rint(exact.astype("float32") * ratio) + 128, 0, 255).astype("uint8")
    floats, kind = {"w": (w * scale).astype("float16")}, TensorProto.FLOAT16
    half = _single(helper.make_node("MatMul", ["x", "w"], ["y"]), floats, kind, (rows, depth), (rows, columns))
    given = ((x.astype("float32") - 120) * 0.02).astype("float16")
    runners = {"int8": built(sm.from_onnx(integers), target, x, "stored", "float32")}
    (got,) = runners["int8"].compiled.run(x)
    found = {"different": int((got != want).sum()), "rules": list(runners["int8"].facts["rules"])}
    runners["half"] = built(sm.from_onnx(half), target, given, "float", "float32")
    times = in_turns(runners, 50)
    found |= {f"{name}_us": round(1e6 * seconds, 2) for name, seconds in times.items()}
    return found | {"int8_over_half": round(times["int8"] / times["half"], 3)}


def _single(node, known: dict, kind: int, shape: tuple, result: tuple) -> onnx.ModelProto:
    weights = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in known.items()]
    given, found = (helper.make_tensor_value_info(*each) for each in (("x", kind, shape), ("y", kind, result)))
    graph = helper.make_graph([node], "product", [given], [found], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


FILES = Path(tempfile.gettempdir()) / "smartmem_bytes"
"""Where `byte_files` writes the networks."""


def byte_files(target: str, small: bool) -> Iterator[dict]:
    """Yield the networks that were written: ResNet-50 and BERT-base over 128 tokens, in floats and quantized."""
    layers = {"bert4": 1 if small else 4, "bert": 1 if small else 12}
    makes = {name: partial(quantized.bert, number) for name, number in layers.items()}
    makes = {"resnet50": quantized.resnet50, **makes}
    for name, make in makes.items():
        yield attempted({"step": "byte files", "network": name}, lambda name=name, make=make: _quantized(name, make()))


def _quantized(name: str, model: onnx.ModelProto) -> dict:
    folder = FILES / name
    folder.mkdir(parents=True, exist_ok=True)
    known = {each.name for each in model.graph.initializer}
    others = [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] not in known]
    some = {"op_types_to_quantize": ["MatMul"], "nodes_to_exclude": others}
    some |= {"extra_options": {"OpTypesToExcludeOutputQuantization": ["MatMul"]}}  # as for GPUs: operands only
    some = {} if name == "resnet50" else some
    path = quantized.static(folder, model, "QDQ", **some)
    return {"bytes": path.stat().st_size, "float_bytes": (folder / "float.onnx").stat().st_size}


def resnet50(target: str, small: bool) -> Iterator[dict]:
    """Yield ResNet-50 in bytes beside half."""
    yield attempted({"step": "resnet50"}, lambda: _network("resnet50", target, 1 if small else BATCH))


def bert4(target: str, small: bool) -> Iterator[dict]:
    """Yield four layers of BERT-base in bytes beside half."""
    yield attempted({"step": "bert4"}, lambda: _network("bert4", target, 1 if small else BATCH))


def bert(target: str, small: bool) -> Iterator[dict]:
    """Yield BERT-base in bytes beside half."""
    yield attempted({"step": "bert"}, lambda: _network("bert", target, 1 if small else BATCH))


def _network(name: str, target: str, batch: int, kinds: tuple[str, ...] = ("bytes", "float")) -> dict:
    runners: dict = {}
    found: dict = {"batch": batch}
    for kind in kinds:
        model = _at_batch(FILES / name / f"{kind}.onnx", batch)
        shape = tuple(each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim)
        x = np.random.default_rng(9).standard_normal(shape).astype("float32")
        begin = time.monotonic()
        runners[kind] = built(sm.from_onnx(model), target, x, "stored", "half" if target == "cuda" else "half-storage")
        found |= {f"{kind}_compile_seconds": round(time.monotonic() - begin, 1), f"{kind}_facts": runners[kind].facts}
        (found_now,) = runners[kind].compiled.run(x)
        alone = in_turns({kind: runners[kind]}, 10, 3)[kind]  # a figure, if the other one takes too long
        print(json.dumps({"step": name, "system": kind, "ms": round(1e3 * alone, 4)}), flush=True)
        want = _exactly(FILES / name / f"{kind}.onnx", x[:1])
        found[f"{kind}_difference"] = float(np.abs(found_now[:1] - want).max() / np.abs(want).max())
    times = in_turns(runners, 10)
    found |= {f"{kind}_ms": round(1e3 * seconds, 4) for kind, seconds in times.items()}
    return found | ({"bytes_over_half": round(times["bytes"] / times["float"], 3)} if len(times) == 2 else {})


def _at_batch(path: Path, batch: int) -> onnx.ModelProto:
    """Return a network with another first dimension."""
    model = onnx.load(path)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return onnx.shape_inference.infer_shapes(model)


def _exactly(path: Path, x: np.ndarray) -> np.ndarray:
    """Return ONNX Runtime's result."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(path, options).run(None, {"x": x})[0]


_STEPS = {
    "products": products,
    "check": check,
    "few layers": few_layers,
    "network": network,
    "byte products": byte_products,
    "byte files": byte_files,
    "resnet50": resnet50,
    "bert4": bert4,
    "bert": bert,
}


if __name__ == "__main__":
    sys.exit(main())

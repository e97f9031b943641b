# SPDX-License-Identifier: Apache-2.0
"""Quantized networks beside ONNX Runtime, same file, and beside our own float network, on one thread, in turns.

    python benchmarks/quantized.py
    python benchmarks/quantized.py --only "bert dynamic" --target haswell -o FILE
    pip install openvino; python benchmarks/quantized.py --openvino

The networks are small ones of each kind, with random weights, quantized by ``onnxruntime.quantization``: a BERT of two
layers (dynamic), a residual network, one of depthwise convolutions, and a vision transformer of two layers (static, as
QDQ and as QLinear operators), and four whole networks, as QDQ: ResNet-50, MobileNetV2, YOLOv8n, and ViT-S. The least
of some rounds of each, and with ``--openvino`` those of OpenVINO on the same file. Results go to quantized.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import onnx
from operator_speed import least
from written_network import Graph

from smartmem_tvm.whole_file import whole

RESULTS = Path(__file__).resolve().parent / "quantized.json"
_TOKENS, _CALIBRATIONS = 128, 3
_LEAST_SECONDS = 0.1


def bert(layers: int = 2, width: int = 768) -> onnx.ModelProto:
    """Layers of BERT-base over 128 tokens."""
    graph, x = Graph((1, _TOKENS, width)), "x"
    for _ in range(layers):
        x = graph.encoder(x, _TOKENS, width, width // 64)
    return graph.model(x)


def vit(layers: int = 2, width: int = 384) -> onnx.ModelProto:
    """Layers of ViT-S over the patches of a picture."""
    graph, tokens = Graph((1, 3, 224, 224)), 196
    x = graph.conv("x", 3, width, 16, 16)
    shape = graph.constant(np.array([1, width, tokens], "int64"))
    x = graph.op("Transpose", graph.op("Reshape", x, shape), perm=[0, 2, 1])
    for _ in range(layers):
        x = graph.op("Add", x, graph.attention(graph.norm(x, width), tokens, width, width // 64))
        inner = graph.linear(graph.gelu(graph.linear(graph.norm(x, width), width, 4 * width)), 4 * width, width)
        x = graph.op("Add", x, inner)
    return graph.model(graph.linear(graph.op("ReduceMean", graph.norm(x, width), axes=[1]), width, 100))


def resnet() -> onnx.ModelProto:
    """A residual network of one block for each number of channels."""
    graph = Graph((1, 3, 112, 112))
    x = graph.op("Relu", graph.conv("x", 3, 64, 7, 2))
    x = graph.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for into, out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        stride = 1 if into == out else 2
        inner = graph.conv(graph.op("Relu", graph.conv(x, into, out, 3, stride)), out, out, 3)
        x = graph.op("Relu", graph.op("Add", inner, x if stride == 1 else graph.conv(x, into, out, 1, 2)))
    return _classified(graph, x, 512)


def mobilenet() -> onnx.ModelProto:
    """A network of depthwise convolutions: some blocks of MobileNetV2."""
    graph = Graph((1, 3, 112, 112))
    x, into = _relu6(graph, graph.conv("x", 3, 32, 3, 2)), 32
    for out, stride, factor in ((16, 1, 1), (24, 2, 6), (24, 1, 6), (32, 2, 6), (64, 2, 6), (64, 1, 6), (96, 1, 6)):
        wide = x if factor == 1 else _relu6(graph, graph.conv(x, into, into * factor, 1))
        wide = _relu6(graph, graph.conv(wide, into * factor, into * factor, 3, stride, into * factor))
        inner = graph.conv(wide, into * factor, out, 1)
        x, into = graph.op("Add", inner, x) if into == out and stride == 1 else inner, out
    return _classified(graph, x, 96)


def resnet50() -> onnx.ModelProto:
    """ResNet-50 without batch normalizations, which convolutions have taken in."""
    graph = Graph((1, 3, 224, 224))
    x = graph.op("Relu", graph.conv("x", 3, 64, 7, 2))
    x, into = graph.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for stride in (first, *[1] * (blocks - 1)):
            inner = graph.op("Relu", graph.conv(x, into, width, 1))
            inner = graph.conv(graph.op("Relu", graph.conv(inner, width, width, 3, stride)), width, 4 * width, 1)
            beside = x if into == 4 * width else graph.conv(x, into, 4 * width, 1, stride)
            x, into = graph.op("Relu", graph.op("Add", inner, beside)), 4 * width
    return _classified(graph, x, into)


def mobilenetv2() -> onnx.ModelProto:
    """MobileNetV2 without batch normalizations."""
    graph = Graph((1, 3, 224, 224))
    x, into = _relu6(graph, graph.conv("x", 3, 32, 3, 2)), 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, out, blocks, first in table:
        for stride in (first, *[1] * (blocks - 1)):
            wide = x if factor == 1 else _relu6(graph, graph.conv(x, into, into * factor, 1))
            wide = _relu6(graph, graph.conv(wide, into * factor, into * factor, 3, stride, into * factor))
            inner = graph.conv(wide, into * factor, out, 1)
            x, into = graph.op("Add", inner, x) if into == out and stride == 1 else inner, out
    return _classified(graph, _relu6(graph, graph.conv(x, into, 1280, 1)), 1280)


def yolov8n() -> onnx.ModelProto:
    """YOLOv8n at 640 x 640 without batch normalizations, up to boxes and scores of 80 classes."""
    graph = Graph((1, 3, 640, 640))
    x = _split_block(graph, _silu(graph, _silu(graph, "x", 3, 16, 3, 2), 16, 32, 3, 2), 32, 32, 1)
    fine = _split_block(graph, _silu(graph, x, 32, 64, 3, 2), 64, 64, 2)
    middle = _split_block(graph, _silu(graph, fine, 64, 128, 3, 2), 128, 128, 2)
    x = _split_block(graph, _silu(graph, middle, 128, 256, 3, 2), 256, 256, 1)
    pooled = [_silu(graph, x, 256, 128)]
    for _ in range(3):
        pooled.append(graph.op("MaxPool", pooled[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    coarse = _silu(graph, graph.op("Concat", *pooled, axis=1), 512, 256)
    middle = _split_block(graph, graph.op("Concat", _doubled(graph, coarse), middle, axis=1), 384, 128, 1, False)
    first = _split_block(graph, graph.op("Concat", _doubled(graph, middle), fine, axis=1), 192, 64, 1, False)
    x = graph.op("Concat", _silu(graph, first, 64, 64, 3, 2), middle, axis=1)
    second = _split_block(graph, x, 192, 128, 1, False)
    x = graph.op("Concat", _silu(graph, second, 128, 128, 3, 2), coarse, axis=1)
    third = _split_block(graph, x, 384, 256, 1, False)
    found = [_detected(graph, *each) for each in ((first, 64, 80), (second, 128, 40), (third, 256, 20))]
    boxes, scores = (graph.op("Concat", *parts, axis=2) for parts in zip(*found))
    split = graph.constant(np.array([1, 4, 16, -1], "int64"))
    sides = graph.op("Softmax", graph.op("Transpose", graph.op("Reshape", boxes, split), perm=[0, 2, 1, 3]), axis=1)
    bins = graph.constant(np.arange(16, dtype="float32").reshape(1, 16, 1, 1))
    sides = graph.op("ReduceSum", graph.op("Mul", sides, bins), graph.constant(np.array([1], "int64")), keepdims=0)
    return graph.model(graph.op("Concat", sides, graph.op("Sigmoid", scores), axis=1))


def _silu(graph: Graph, x: str, into: int, out: int, size: int = 1, stride: int = 1) -> str:
    x = graph.conv(x, into, out, size, stride)
    return graph.op("Mul", x, graph.op("Sigmoid", x))


def _split_block(graph: Graph, x: str, into: int, out: int, blocks: int, adds: bool = True) -> str:
    """Two halves, of which the second one goes through some blocks; the results of all side by side."""
    sizes = graph.constant(np.array([out // 2, out // 2], "int64"))
    node = onnx.helper.make_node("Split", [_silu(graph, x, into, out), sizes], [], f"n{len(graph.nodes)}", axis=1)
    node.output.extend([f"t{len(graph.nodes)}.{half}" for half in range(2)])
    graph.nodes.append(node)
    parts = list(node.output)
    for _ in range(blocks):
        x = _silu(graph, _silu(graph, parts[-1], out // 2, out // 2, 3), out // 2, out // 2, 3)
        parts.append(graph.op("Add", parts[-1], x) if adds else x)
    return _silu(graph, graph.op("Concat", *parts, axis=1), (2 + blocks) * (out // 2), out)


def _doubled(graph: Graph, x: str) -> str:
    return graph.op("Resize", x, "", graph.constant(np.array([1, 1, 2, 2], "float32")), mode="nearest")


def _detected(graph: Graph, x: str, channels: int, side: int) -> tuple[str, str]:
    """Four sides of 16 numbers, and scores, of each place of one scale."""
    found = []
    for inner, out in ((64, 64), (80, 80)):
        y = graph.conv(_silu(graph, _silu(graph, x, channels, inner, 3), inner, inner, 3), inner, out, 1)
        found.append(graph.op("Reshape", y, graph.constant(np.array([1, out, side * side], "int64"))))
    return found[0], found[1]


def vit_s() -> onnx.ModelProto:
    """The twelve layers of ViT-S."""
    return vit(12)


def _relu6(graph: Graph, x: str) -> str:
    return graph.op("Clip", x, *(graph.constant(np.float32(each)) for each in (0, 6)))


def _classified(graph: Graph, x: str, channels: int) -> onnx.ModelProto:
    x = graph.op("Flatten", graph.op("GlobalAveragePool", x))
    return graph.model(graph.op("Gemm", x, graph.weight(channels, 100, depth=channels), graph.weight(100, depth=25)))


def dynamic(folder: Path, model: onnx.ModelProto) -> Path:
    """The network with bytes as weights, whose activations are quantized by their own range."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    onnx.save(model, folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "bytes.onnx", per_channel=True, weight_type=QuantType.QInt8)
    return folder / "bytes.onnx"


def static(folder: Path, model: onnx.ModelProto, form: str, **options) -> Path:
    """The network quantized by the ranges of some random inputs; `form` is QDQ or QOperator."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = [np.random.default_rng(n).standard_normal(_shape(model)) for n in range(_CALIBRATIONS)]

        def get_next(self):
            return {"x": self.left.pop().astype("float32")} if self.left else None

    onnx.save(model, folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "bytes.onnx",
        Reader(),
        quant_format=getattr(QuantFormat, form),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        **options,
    )
    return folder / "bytes.onnx"


def _shape(model: onnx.ModelProto) -> tuple[int, ...]:
    return tuple(each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim)


NETWORKS: dict[str, tuple[Callable, Callable]] = {
    "bert dynamic": (bert, dynamic),
    **{
        f"{make.__name__} {form}": (make, lambda folder, model, form=form: static(folder, model, form))
        for make in (resnet, mobilenet, vit)
        for form in ("QDQ", "QOperator")
    },
    **{
        f"{make.__name__} QDQ": (make, lambda folder, model: static(folder, model, "QDQ"))
        for make in (resnet50, mobilenetv2, yolov8n, vit_s)
    },
}


def main() -> int:
    """Measure what the command line asks for, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--target", metavar="CPU", help="LLVM's name of a processor; this machine's by default")
    parser.add_argument("--openvino", action="store_true", help="measure OpenVINO on the same file, too")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the quantized and float files there")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args()
    from smartmem_tvm.tools.bench.machine_facts import machine
    from smartmem_tvm.tune.host import set_threads

    set_threads(1)
    rows = json.loads(args.output.read_text(encoding="utf-8"))["rows"] if args.output.exists() else {}
    for name in args.only:
        key = f"{name}, {args.target}" if args.target else name
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if args.keep is None else args.keep / name.replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
            rows[key] = measure(*NETWORKS[name], folder, args.target, args.openvino)
        with whole(args.output) as path:
            path.write_text(json.dumps({"machine": machine(1), "rows": rows}, indent=1) + "\n", encoding="utf-8")
        print(key, json.dumps(rows[key]), flush=True)
    return 0


def measure(make: Callable, quantize: Callable, folder: Path, cpu: str | None, openvino: bool = False) -> dict:
    """Least microseconds of processor time: ONNX Runtime on the quantized file, ours, both float networks."""
    import onnxruntime
    import tvm

    import smartmem_tvm as sm
    from smartmem_tvm.target import host_target
    from smartmem_tvm.tools.bench.turns import inference

    model = make()
    path = quantize(folder, model)
    given = np.random.default_rng(9).standard_normal(_shape(model)).astype("float32")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    sessions = {file: onnxruntime.InferenceSession(folder / f"{file}.onnx", options) for file in ("float", "bytes")}
    host = {"kind": "llvm", "mcpu": cpu} if cpu else dict(host_target().export())
    target = tvm.target.Target({**host, "num-cores": 1})
    ours = {file: sm.compile(sm.from_onnx(folder / f"{file}.onnx"), target) for file in sessions}
    want, found = sessions["bytes"].run(None, {"x": given})[0], ours["bytes"].run(given)[0]
    runs = {
        "onnxruntime": lambda: sessions["bytes"].run(None, {"x": given}),
        "onnxruntime float": lambda: sessions["float"].run(None, {"x": given}),
        "ours": inference(ours["bytes"].vm, [given]),
        "our float": inference(ours["float"].vm, [given]),
    }
    if openvino:
        runs["openvino"] = _openvino(folder / "bytes.onnx", given)
    return {
        "microseconds": {name: round(each, 1) for name, each in least(runs, time.process_time, _LEAST_SECONDS).items()},
        "error": float(np.abs(found - want).max() / (np.abs(want).max() or 1.0)),
        "bytes of file": path.stat().st_size,
        "date": date.today().isoformat(),
    }


def _openvino(path: Path, given: np.ndarray) -> Callable[[], None]:
    """OpenVINO on a file, on one thread; what is not of integers is computed in float32."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda: request.infer({0: given}, share_inputs=True, share_outputs=True)


if __name__ == "__main__":
    sys.exit(main())

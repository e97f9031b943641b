# SPDX-License-Identifier: Apache-2.0
"""Whole files of each kind, small ones."""

import contextlib
import io
import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from attention_model import attention_model
from helpers import constant, legal, module, op
from small_network import network
from smartmem_tvm import light
from smartmem_tvm.cli import main
from smartmem_tvm.module_file import write_module
from smartmem_tvm.tune.profile_store import ProfileStore
from smartmem_tvm.tune.records import Records, circumstances

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 1})


def _shapes() -> onnx.ModelProto:
    """Shape arithmetic, and operators whose results are as large as a constant says."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"], axis=0),
        helper.make_node("Concat", ["rows", "four"], ["new"], axis=0),
        helper.make_node("Reshape", ["x", "new"], ["flat"]),
        helper.make_node("Expand", ["flat", "wide"], ["expanded"]),
        helper.make_node("Tile", ["expanded", "twice"], ["tiled"]),
        helper.make_node("ConstantOfShape", ["wide"], ["zeros"], value=helper.make_tensor("v", 1, [1], [0.5])),
        helper.make_node("Pad", ["zeros", "pads"], ["padded"]),
        helper.make_node("Slice", ["padded", "zero", "two", "zero", "one"], ["sliced"]),
        helper.make_node("Constant", [], ["c"], value_float=2.0),
        helper.make_node("Mul", ["sliced", "c"], ["scaled"]),
        helper.make_node("ReduceSum", ["tiled", "zero"], ["sum"]),
        helper.make_node("Add", ["scaled", "sum"], ["added"]),
        helper.make_node("Softmax", ["added"], ["y"], axis=-1),
    ]
    numbers = {"zero": [0], "one": [1], "two": [2], "four": [4], "wide": [2, 2, 4], "twice": [1, 1, 1]}
    numbers["pads"] = [0, 0, 0, 0, 0, 0]
    constants = [numpy_helper.from_array(np.array(each, "int64"), name) for name, each in numbers.items()]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 4]), ("y", [2, 2, 4]))]
    graph = helper.make_graph(nodes, "shapes", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _branches() -> onnx.ModelProto:
    """A model with an If, whose branches are graphs of their own, a convolution and a function of its own."""
    value = helper.make_tensor_value_info
    branches = {
        name: helper.make_graph(
            [helper.make_node(kind, ["conv"], [f"{name}_y"])], name, [], [value(f"{name}_y", 1, None)]
        )
        for name, kind in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("If", ["condition"], ["chosen"], **branches),
        helper.make_node("twice", ["chosen"], ["y"], domain="own"),
    ]
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    function = helper.make_function("own", "twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("float32")
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array(True), "condition")]
    ends = [value("x", 1, [1, 3, 6, 6]), value("y", 1, [1, 4, 6, 6])]
    graph = helper.make_graph(nodes, "branches", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[function])


def _loops() -> onnx.ModelProto:
    """A model with a Loop, a Scan and a sequence."""
    value = helper.make_tensor_value_info
    loop = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["stays"]),
            helper.make_node("Gather", ["x", "i"], ["row"]),
            helper.make_node("Add", ["state", "row"], ["sum"]),
            helper.make_node("Neg", ["sum"], ["kept"]),
        ],
        "loop",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state", 1, [3])],
        [value("stays", TensorProto.BOOL, []), value("sum", 1, [3]), value("kept", 1, [3])],
    )
    scan = helper.make_graph(
        [helper.make_node("Mul", ["before", "part"], ["after"]), helper.make_node("Tanh", ["after"], ["each"])],
        "scan",
        [value("before", 1, [3]), value("part", 1, [3])],
        [value("after", 1, [3]), value("each", 1, [3])],
    )
    nodes = [
        helper.make_node("Loop", ["trips", "", "first"], ["last", "rows"], body=loop),
        helper.make_node("Scan", ["last", "rows"], ["product", "scanned"], body=scan, num_scan_inputs=1),
        helper.make_node("SplitToSequence", ["scanned", "sizes"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "one"], ["part"]),
        helper.make_node("SequenceInsert", ["parts", "part"], ["more"]),
        helper.make_node("SequenceErase", ["more", "one"], ["fewer"]),
        helper.make_node("ConcatFromSequence", ["fewer"], ["joined"], axis=0),
        helper.make_node("Add", ["joined", "product"], ["y"]),
    ]
    numbers = {"trips": 4, "one": 1, "sizes": [3, 1]}
    constants = [numpy_helper.from_array(np.array(each, "int64"), name) for name, each in numbers.items()]
    constants.append(numpy_helper.from_array(np.ones(3, "float32"), "first"))
    graph = helper.make_graph(nodes, "loops", [value("x", 1, [4, 3])], [value("y", 1, [4, 3])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _light() -> onnx.ModelProto:
    """The attention model without the numbers of its weight."""
    recipe = light.Recipe(0.0, 1.0, -3.0, 3.0, 1)
    return light.strip(attention_model(), {"weight": recipe})


@cache
def models() -> list[bytes]:
    """ONNX models."""
    found = [attention_model(), _shapes(), _branches(), _loops(), _light(), network()]
    for each in found:
        if not light.is_light(each):
            onnx.checker.check_model(each)
    return [each.SerializeToString() for each in found]


def _written(write) -> bytes:
    """What a function writes into the file that it is given."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "file.json")
        return (Path(folder) / "file.json").read_bytes()


def _module() -> tvm.IRModule:
    weight = constant(40, 30)
    return module(lambda x: op.nn.relu(op.matmul(op.permute_dims(x), weight)), (40, 6))


def kernel(size: int) -> tvm.IRModule:
    """One that adds numbers."""
    mod = legal(lambda x: op.add(x, x), (size,))
    return tvm.IRModule({"main": next(f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc))})


@cache
def modules() -> list[bytes]:
    """Modules as JSON."""
    return [_written(lambda path: write_module(_module(), path))]


@cache
def records() -> list[bytes]:
    """Records of two kernels, one of which turned out wrong."""

    def write(path: Path) -> None:
        found = Records(path, circumstances(TARGET, 1), {"date": "d", "command": "c", "device": "CPU", "driver": ""})
        for size in (4, 8):
            schedule = Schedule(kernel(size))
            schedule.annotate(schedule.get_loops(schedule.get_sblock("T_add"))[0], "pragma_x", 1)
            arguments = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
            workload = found.commit_workload(kernel(size))
            record = ms.database.TuningRecord(schedule.trace, workload, [1e-3, 2e-3], TARGET, arguments)
            found.commit_tuning_record(record)
            found.commit_winner(record, 1e-3, 2e-3)
        found.commit_wrong(record, "differs")

    return [_written(write)]


@cache
def profiles() -> list[bytes]:
    """Measured latencies of two kernels."""

    def write(path: Path) -> None:
        store = ProfileStore(path, TARGET, 1)
        for size in (4, 8):
            store.add(kernel(size)["main"], size * 1e-6, "session")

    return [_written(write)]


@cache
def compiled() -> dict[str, bytes]:
    """The files of a compiled model."""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(attention_model(), f"{folder}/m.onnx")
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["compile", f"{folder}/m.onnx", "-o", f"{folder}/out", "--no-tuned"]) == 0
        return {path.name: path.read_bytes() for path in Path(folder, "out").iterdir()}


def manifests() -> list[bytes]:
    """Of a compiled model."""
    return [_on_one_line(compiled()["manifest.json"])]


def explanations() -> list[bytes]:
    """Of a compiled model."""
    return [_on_one_line(compiled()["explain.json"])]


def _on_one_line(content: bytes) -> bytes:
    return json.dumps(json.loads(content)).encode()


def results() -> list[bytes]:
    """Of a benchmark, of a measurement, and of kernels."""
    systems = {"smartmem": {"latency_ms": {"median": 1.0, "p90": 2.0}, "kernels": 3, "relative_error": 1e-6}}
    steps = [{"system": "smartmem", "label": "all", "latency_ms": 1.0}]
    row = {"model": "tiny", "fingerprint": "f", "systems": systems, "ablation": steps, "threads": 2, "machine": {}}
    kernels = [{"kernel": "matmul", "seconds": 1e-3, "launches": 2}]
    measured = {"folder": "out", "model": "tiny", "target": "llvm", "latency_ms": {"median": 1.0}, "kernels": kernels}
    layers = [{"kernels": ["matmul"], "wrong": True}]
    measured |= {"outputs": {"y": {"max_rel_err": 0.0}}, "layers": layers, "correct": True, "replays": 3, "threads": 1}
    return [json.dumps(each).encode() for each in ({"format": 1, "rows": [row]}, measured)]


def summaries() -> list[bytes]:
    """What a tracker says."""
    servers = [{"key": "server:pixel", "addr": ["127.0.0.1", 9090]}, {"key": "server:board", "addr": ["::1", 9091]}]
    queues = {"pixel": {"free": 1, "pending": 0}, "x": {"free": 0, "pending": 2}}
    return [json.dumps([0, {"server_info": servers, "queue_info": queues}]).encode()]


def devices() -> list[bytes]:
    """What a server says of its devices, and of itself."""
    phone = {"kind": "opencl", "index": 0, "name": "QUALCOMM Adreno(TM) 740", "driver": "Compiler E031", "half": True}
    phone |= {"image2d_width": 16384, "max_work_group_size": 1024, "compute_units": 2}
    about = {"tvm": "0.27", "smartmem": "0.1", "machine": "aarch64", "system": "Linux", "cores": 8}
    return [json.dumps(each).encode() for each in ([phone, {"kind": "cpu", "index": 0, "name": "x"}], about)]


@cache
def arrays() -> list[bytes]:
    """Arrays in files of numpy's."""
    one, several = io.BytesIO(), io.BytesIO()
    np.save(one, np.zeros((2, 3), "float32"))
    np.savez(several, x=np.zeros((2, 3), "float32"), y=np.arange(4))
    return [one.getvalue(), several.getvalue()]

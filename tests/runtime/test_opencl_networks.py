# SPDX-License-Identifier: Apache-2.0
"""Networks on an OpenCL device through our pipeline and through TVM's default one, against ONNX Runtime."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import helper, numpy_helper
from tvm import tirx

import smartmem_tvm as sm
from smartmem_tvm.frontend import check_inputs, read_model, run_onnxruntime
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.pipeline import lower_phases, run_phases
from smartmem_tvm.runtime.launches import count_launches
from smartmem_tvm.target import device_of, parse_target
from smartmem_tvm.tools.bench.systems import largest_error

PIPELINES = {"smartmem": sm.compile, "tvm": sm.compile_baseline}
TARGET = parse_target("opencl")


class Network:
    """An ONNX graph that grows node by node; weights are random, and always the same."""

    def __init__(self, *shape, dtype="float32"):
        self.random = np.random.default_rng(0)
        self.nodes, self.weights, self.outputs = [], [], []
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.input = helper.make_tensor_value_info("x", kind, shape)

    def add(self, op, *inputs, outputs=1, **attributes):
        """Append a node; its inputs are names or constant arrays. Returns the name of its output, or several."""
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        read = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(helper.make_node(op, read, names, **attributes))
        return names if outputs > 1 else names[0]

    def constant(self, array) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape):
        return (self.random.standard_normal(shape) / np.sqrt(shape[-1])).astype("float32")

    def model(self, *outputs) -> onnx.ModelProto:
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "network", [self.input], results, self.weights)
        opset = [helper.make_opsetid("", 17)]
        untyped = helper.make_model(graph, opset_imports=opset, ir_version=8)
        return onnx.shape_inference.infer_shapes(untyped)


def convolutions():
    """A strided and a depthwise convolution, batch norm, both poolings, a linear layer."""
    net = Network(1, 3, 20, 20)
    x = net.add("Conv", "x", net.weight(16, 3, 3, 3), net.weight(16), strides=[2, 2], pads=[1, 1, 1, 1])
    stats = [net.weight(16) for _ in range(3)]
    x = net.add("BatchNormalization", x, *stats, np.abs(net.weight(16)) + 1)
    x = net.add("Relu", x)
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = net.add("Conv", x, net.weight(16, 1, 3, 3), group=16, pads=[1, 1, 1, 1])
    x = net.add("Relu", net.add("Conv", x, net.weight(32, 16, 1, 1), net.weight(32)))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.model(net.add("Gemm", x, net.weight(10, 32), net.weight(10), transB=1))


def attention():
    """Layer norm as one operator, heads, softmax, residual, gelu."""
    net = Network(1, 9, 24)
    x = net.add("LayerNormalization", "x", net.weight(24), net.weight(24), axis=-1)
    qkv = net.add("Add", net.add("MatMul", x, net.weight(24, 72)), net.weight(72))
    qkv = net.add("Transpose", net.add("Reshape", qkv, np.array([1, 9, 3, 2, 12])), perm=[2, 0, 3, 1, 4])
    q, k, v = (net.add("Squeeze", each, np.array([0])) for each in net.add("Split", qkv, outputs=3, axis=0))
    scores = net.add("MatMul", net.add("Mul", q, np.float32(0.3)), net.add("Transpose", k, perm=[0, 1, 3, 2]))
    y = net.add("MatMul", net.add("Softmax", scores, axis=-1), v)
    y = net.add("Reshape", net.add("Transpose", y, perm=[0, 2, 1, 3]), np.array([1, 9, 24]))
    x = net.add("Add", "x", net.add("MatMul", y, net.weight(24, 24)))
    gelu = net.add("Mul", x, net.add("Add", net.add("Erf", net.add("Mul", x, np.float32(0.7))), np.float32(1)))
    return net.model(net.add("MatMul", gelu, net.weight(24, 24)))


def embedding():
    """A gather by the input, and a norm that arrives in pieces: several reductions in one kernel."""
    net = Network(2, 7, dtype="int64")
    x = net.add("Gather", net.weight(50, 12), "x")
    centred = net.add("Sub", x, net.add("ReduceMean", x, axes=[-1]))
    variance = net.add("ReduceMean", net.add("Mul", centred, centred), axes=[-1])
    normal = net.add("Div", centred, net.add("Sqrt", net.add("Add", variance, np.float32(1e-5))))
    return net.model(net.add("Mul", normal, net.weight(12)), net.add("ReduceMax", normal, axes=[1]))


def windows():
    """A roll, as a shifted window has it, windows, and a matmul that reads through both."""
    net = Network(1, 8, 8, 6)
    x = "x"
    for axis in (1, 2):
        head = net.add("Slice", x, np.array([3]), np.array([8]), np.array([axis]))
        tail = net.add("Slice", x, np.array([0]), np.array([3]), np.array([axis]))
        x = net.add("Concat", head, tail, axis=axis)
    x = net.add("Transpose", net.add("Reshape", x, np.array([1, 2, 4, 2, 4, 6])), perm=[0, 1, 3, 2, 4, 5])
    return net.model(net.add("MatMul", net.add("Reshape", x, np.array([4, 16, 6])), net.weight(6, 10)))


def choices():
    """A sort, for which TVM has kernels of its own, and a reduction to a pair."""
    net = Network(4, 33)
    largest, places = net.add("TopK", "x", np.array([5]), outputs=2, axis=-1)
    return net.model(largest, places, net.add("ArgMax", "x", axis=1))


NETWORKS = [convolutions, attention, embedding, windows, choices]


def grouped():
    """With TVM's rule for reductions, threads read sums that others hold in registers."""
    net = Network(1, 16, 5, 5)
    return net.model(net.add("Relu", net.add("Conv", "x", net.weight(32, 4, 1, 1), net.weight(32), group=4)))


def running_sum():
    """With the kernel that TVM dispatches to, threads read without a barrier what others write."""
    net = Network(4, 330)
    return net.model(net.add("CumSum", "x", np.array(1)))


def reference(model):
    arrays = check_inputs(model.inputs, random_inputs(model.inputs, id_limits(model.proto)))
    return arrays, run_onnxruntime(model, dict(zip(model.inputs, arrays, strict=True)))


def require_device():
    device_of(TARGET)  # raises with a sentence that says what to install


@pytest.mark.device
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_network_computes_what_onnx_runtime_computes(network, pipeline):
    require_device()
    model = read_model(network())
    arrays, expected = reference(model)
    compiled = PIPELINES[pipeline](sm.from_onnx(model), TARGET)
    assert largest_error(compiled.run(*arrays), expected) < 1e-5


@pytest.mark.parametrize("network", [grouped, running_sum], ids=lambda network: network.__name__)
def test_what_tvms_default_pipeline_computes_wrong(network):
    require_device()
    model = read_model(network())
    arrays, expected = reference(model)
    assert largest_error(sm.compile(sm.from_onnx(model), TARGET).run(*arrays), expected) < 1e-5


@pytest.mark.device
def test_tvms_pipeline_with_textures():
    require_device()
    net = Network(1, 8, 10, 10)
    x = net.add("Relu", net.add("Conv", "x", net.weight(16, 8, 3, 3), net.weight(16)))
    model = read_model(net.model(net.add("Conv", x, net.weight(8, 16, 3, 3))))
    arrays, expected = reference(model)
    compiled = sm.compile_baseline(sm.from_onnx(model), parse_target("qcom/adreno-opencl-texture"))
    assert largest_error(compiled.run(*arrays), expected) < 1e-5


def test_weights_go_to_the_device_once():
    require_device()
    net = Network(1, 256)
    weight = net.weight(256, 256)
    compiled = sm.compile(sm.from_onnx(net.model(net.add("MatMul", "x", weight))), TARGET)
    assert len(compiled.weights) == 1
    x = np.ones((1, 256), "float32")
    first, second = compiled.run(x), compiled.run(x)
    np.testing.assert_allclose(first[0], x @ weight, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(first[0], second[0])
    here = {tensor.device.dlpack_device_type() for tensor in compiled.vm._weights}
    assert here == {tvm.opencl(0).dlpack_device_type()}


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_no_kernel_is_one_thread(network):
    graph = sm.compile(sm.from_onnx(network()), TARGET).graph
    with TARGET:
        scheduled = run_phases(graph, lower_phases(TARGET)[:1], sm.Options())
    kernels = [func for _, func in scheduled.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert len(kernels) == sm.graph_cost(graph).kernels
    assert all(min(threads(func)) > 1 for func in kernels)


def threads(func: tirx.PrimFunc) -> list[int]:
    """Threads of each device kernel of a function: of each outermost loop over groups of threads."""
    found: list[dict] = []

    def visit(loop: tirx.For):
        if loop.thread_binding is None:
            return
        tag = str(loop.thread_binding.thread_tag)
        if tag.startswith("blockIdx") and (not found or any(t.startswith("threadIdx") for t in found[-1])):
            found.append({})
        found[-1][tag] = max(int(loop.extent), found[-1].get(tag, 1))

    tvm_ffi.structural_walk(func.body, (tirx.For, visit), order="pre")
    return [math.prod(sizes.values()) for sizes in found]


@pytest.mark.device
def test_launches_are_counted_on_the_device():
    require_device()
    compiled = sm.compile(sm.from_onnx(attention()), TARGET)
    x = np.ones((1, 9, 24), "float32")
    assert count_launches(compiled, [x]).total() == sm.graph_cost(compiled.graph).kernels


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_swin_t(pipeline):
    require_device()
    model = read_model(Path(__file__).parents[2] / "models" / "swin_t.onnx")
    arrays, expected = reference(model)
    compiled = PIPELINES[pipeline](sm.from_onnx(model), TARGET)
    compiled.build_kernels()
    assert largest_error(compiled.run(*arrays), expected) < 1e-4

# SPDX-License-Identifier: Apache-2.0
"""Open dimensions on GPUs: OpenCL on PoCL beside ONNX Runtime, and the kernels for CUDA, run on a CPU."""

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import ir, tirx

import smartmem_tvm
from cuda_on_cpu import run as run_on_cpu
from open_models import N, behind, check, dims, drawn, drawn_chain, expected, layers, model, sentence, weights
from smartmem_tvm.deploy import export
from smartmem_tvm.frontend import from_onnx, input_spec, output_names
from smartmem_tvm.graph_report import graph_cost
from smartmem_tvm.ir.graph import CALL_TIR
from smartmem_tvm.ir.kernel import substitute
from smartmem_tvm.ir.public_functions import MAIN
from smartmem_tvm.ir.several_sizes import size_functions, takes_length
from smartmem_tvm.options import Options
from smartmem_tvm.pipeline import phases_of, run_phases
from smartmem_tvm.schedule import schedule_kernels
from smartmem_tvm.schedule.gpu.end_blocks import with_ends

CUDA = tvm.target.Target(
    {
        "kind": "cuda",
        "arch": "sm_80",
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
        "thread_warp_size": 32,
    },
    host="llvm",
)
WINDOWS = model(
    [
        ("Conv", ["x", "a"], "c", {"pads": [1, 1], "strides": [2]}),
        ("Relu", ["c"], "r", {}),
        ("MaxPool", ["r"], "p", {"kernel_shape": [3], "pads": [1, 1]}),
        ("GlobalAveragePool", ["p"], "g", {}),
        ("Add", ["p", "g"], "y", {}),
    ],
    [1, 3, N],
    {"a": weights(4, 3, 3)},
)


def opened(proto, span, target="opencl"):
    return smartmem_tvm.compile(from_onnx(proto, dims(proto, span)), target)


@pytest.mark.parametrize("seed", range(2))
def test_drawn_numbers_of_items(seed):
    random = np.random.default_rng(seed)
    proto = layers(int(random.integers(3, 20)), depth=2)
    found = opened(proto, "1..7")
    check(proto, found, random.permutation(np.arange(1, 8)))
    sizes = {each["items"]: each["function"] for each in found.open[0]["tiles"]}
    for items in (1, max(sizes)):
        alone = graph_cost(smartmem_tvm.optimize(from_onnx(proto, dims(proto, items)), "opencl"))
        assert graph_cost(found.graph, sizes[items]).kernels == alone.kernels


@pytest.mark.parametrize(("proto", "span"), [(sentence(), (3, 13)), (WINDOWS, (5, 11))])
def test_drawn_lengths_also_in_recorded_runs(proto, span):
    least, most = span
    found = opened(proto, f"{least}..{most}")
    random = np.random.default_rng(most)
    check(proto, found, (least, most, *random.integers(least, most, 2)))
    for length in random.integers(least, most, 6):  # each capacity ran before: its kernels are recorded
        x = drawn(proto, int(length), int(length))
        np.testing.assert_allclose(found.run(x)[0], expected(proto, x), rtol=1e-4, atol=1e-5)


def test_a_folder_and_a_second_session(tmp_path):
    proto = sentence()
    mod = from_onnx(proto, dims(proto, "7..9"))
    compiled = smartmem_tvm.compile(mod, "opencl")

    def described(name):
        found = [{"name": n, "shape": list(s), "dtype": d} for n, (s, d) in input_spec(mod, name).items()]
        return {"function": name, "inputs": found, "outputs": output_names(mod, name)}

    sizes = [described(name) for name in compiled.sizes]
    export.save(compiled, tmp_path / "out", {**sizes[0], "sizes": sizes}, {})
    loaded = export.load(tmp_path / "out")
    for each in (loaded, loaded.session(), compiled.session()):
        for length in (8, 7, 9, 8, 7):
            x = drawn(proto, length, length)
            np.testing.assert_allclose(each.run(x)[0], expected(proto, x), rtol=1e-4, atol=1e-5)


def unwritten(ty):
    """Memory that no kernel wrote: not a number, and for integers a row that there is."""
    dtype = str(ty.dtype.dtype)
    return np.full([int(dim) for dim in ty.shape], np.nan if dtype.startswith("float") else 1, dtype)


def cuda_outputs(mod, function, arrays, folder):
    """Run the kernels of a function for CUDA, one after the other, on the CPU."""
    func = mod[function]
    known = dict(zip(func.params, arrays, strict=True))
    for number, binding in enumerate(each for block in func.body.blocks for each in block.bindings):
        call = binding.value
        if isinstance(call, ir.TupleGetItem):
            known[binding.var] = known[call.tuple_value][int(call.index)]
            continue
        if not isinstance(call, ir.Call) or call.op != CALL_TIR:
            known[binding.var] = known[call]
            continue
        read = [known[each] if isinstance(each, ir.Var) else each.value.numpy() for each in call.args[1].fields]
        types = call.ty_args[0]
        several = hasattr(types, "fields")
        made = [unwritten(each) for each in (types.fields if several else [types])]
        kernel = mod[call.args[0]]
        given = [np.ascontiguousarray(each) for each in (*read, *made)]
        place = folder / str(number)
        place.mkdir(parents=True)
        # Arrays are found by the names of buffers, and several may have one name.
        names = {each: tirx.decl_buffer(each.shape, each.dtype, f"arg{at}") for at, each in enumerate(kernel.params)}
        kernel = tirx.PrimFunc(list(names.values()), substitute(kernel.body, names), attrs=kernel.attrs)
        kernel = kernel.with_attr("global_symbol", "main")
        run_on_cpu(kernel, CUDA, {p.name: each for p, each in zip(kernel.params, given, strict=True)}, place)
        known[binding.var] = given[len(read) :] if several else given[-1]
    return known[func.body.body]


def scheduled(proto, span, options):
    """The module for CUDA after the schedules."""
    graph = smartmem_tvm.optimize(from_onnx(proto, dims(proto, span)), CUDA, options)
    phases = phases_of(CUDA)
    names = [each.name for each in phases]
    first = len(names) - 1 - names[::-1].index("schedule")
    with CUDA:
        return run_phases(graph, phases[first : first + 1], options, first=first)


def check_on_cpu(proto, mod, lengths, folder, tolerance=1e-3):
    """Run the kernels of the largest capacity with NaN behind the lengths, and in all memory that is not written."""
    axis = next(axis for axis, dim in enumerate(proto.graph.input[0].type.tensor_type.shape.dim) if dim.dim_param)
    function = size_functions(mod)[-1]
    capacity = int(mod[function].params[0].ty.shape[axis])
    for length in lengths:
        x = drawn(proto, length, length)
        given = behind(x, capacity, axis) if length < capacity else x
        found = cuda_outputs(mod, function, [given, np.array([length])], folder / str(length))
        wanted = expected(proto, x)
        found = found[tuple(slice(size) for size in wanted.shape)]
        assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


def ending(mod):
    """The kernels whose thread blocks may end at once."""
    kernels = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
    return [func for func in kernels if "thread_return" in func.script()]


@pytest.mark.device
def test_kernels_for_cuda(tmp_path):
    proto = sentence()
    check_on_cpu(proto, scheduled(proto, "9..13", Options()), (9, 11), tmp_path)


def feed_forward(width, inner, random):
    """Attention, a norm, two layers and a residual, of every position, as the layers of encoders are."""
    nodes = [*sentence(width, 2).graph.node[:-1]]
    old = {each.name: numpy_helper.to_array(each) for each in sentence(width, 2).graph.initializer}
    nodes = [(each.op_type, list(each.input), each.output[0], attributes(each)) for each in nodes]
    nodes += [
        ("MatMul", ["l", "up"], "u", {}),
        (str(random.choice(["Relu", "Tanh", "Sigmoid"])), ["u"], "a", {}),
        ("MatMul", ["a", "down"], "d", {}),
        ("Add", ["d", "l"], "r", {}),
        ("LayerNormalization", ["r", "scale", "bias"], "f", {}),
        ("MatMul", ["f", "last"], "y", {}),
    ]
    made = {"up": weights(width, inner, seed=6), "down": weights(inner, width, seed=7), "last": weights(width, 5)}
    return model(nodes, [1, N], {**old, **made}, TensorProto.INT64)


def attributes(node):
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


@pytest.mark.device
@pytest.mark.parametrize("seed", range(4))
def test_blocks_behind_the_length_end_at_once(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(schedule_kernels, "with_ends", lambda func, _: with_ends(func, 1))
    random = np.random.default_rng(seed)
    width, inner = 2 * int(random.integers(4, 40)), int(random.integers(5, 100))
    most = int(random.choice([48, 61, 64]))
    proto = feed_forward(width, inner, random)
    precision, tolerance = (("float32", 1e-3), ("half", 3e-2))[seed % 2]
    mod = scheduled(proto, f"33..{most}", Options(precision=precision))
    assert len(ending(mod)) >= 4
    check_on_cpu(proto, mod, [33, *map(int, random.integers(34, most, 1))], tmp_path, tolerance)


@pytest.mark.device
@pytest.mark.parametrize("seed", range(6))
def test_drawn_chains_for_cuda(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(schedule_kernels, "with_ends", lambda func, _: with_ends(func, 1))
    random = np.random.default_rng(seed)
    while not takes_length(from_onnx(proto := drawn_chain(random), dims(proto, "17..40"))["main_0"]):
        pass
    check_on_cpu(proto, scheduled(proto, "17..40", Options()), [17, int(random.integers(18, 40))], tmp_path)


def test_caches_stay_refused():
    x, y = (helper.make_tensor_value_info(name, 1, ["n", 4]) for name in "xy")
    proto = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], MAIN, [x], [y]))
    with pytest.raises(smartmem_tvm.UserError, match="Caches are of one size"):
        smartmem_tvm.compile(from_onnx(proto, {"x": ("1..4", 4)}), "opencl", Options(caches=True))

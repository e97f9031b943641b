# SPDX-License-Identifier: Apache-2.0
"""The registered pipeline, its options, and its passes one by one."""

import re
import subprocess
import sys
import time

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from helpers import assert_same_results, bindings, calls, legalize, module, nodes, op, random, run
from smartmem_tvm.deploy.memory_plan import memory_plan
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.pipeline import Options, graph_phases, lower_phases, phases_of, run_phases
from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.transform import (
    EliminateLayout,
    FuseOperators,
    FuseRows,
    LowerRotations,
    MergeProjections,
    SplitReductions,
    VectorizeMath,
)

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
TOKENS, SIZE = 6, 8


def constant(*shape, seed=0):
    return relax.const(random(shape, seed=seed)[0] / 2)


def block(x):
    """Attention of one head with its projections, norm and residual."""
    normal = op.nn.layer_norm(x, constant(SIZE), constant(SIZE), axes=[-1])
    q, k, v = (op.add(op.matmul(normal, constant(SIZE, SIZE, seed=s)), constant(SIZE, seed=s)) for s in range(3))
    scores = op.multiply(op.matmul(q, op.permute_dims(k)), relax.const(0.3))
    mixed = op.reshape(op.permute_dims(op.matmul(op.nn.softmax(scores), v)), (TOKENS, SIZE))
    return op.add(x, op.nn.gelu(mixed))


def network() -> tvm.IRModule:
    return module(block, (TOKENS, SIZE))


@pytest.fixture(scope="module")
def expected():
    return run(legalize(network()), *random((TOKENS, SIZE)))[0]


def result(executable) -> np.ndarray:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, random((TOKENS, SIZE)))).numpy()


def test_for_someone_who_only_imported_the_package():
    """A fresh process needs only `import smartmem_tvm`, and then TVM's own functions."""
    program = """
import numpy as np, tvm, smartmem_tvm
from tvm import relax
x = relax.Var("x", relax.TensorType((4, 6), "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    with builder.dataflow():
        y = builder.emit_output(relax.op.nn.relu(relax.op.permute_dims(x)))
    builder.emit_func_output(y)
assert relax.get_pipeline("smartmem") is not None
executable = tvm.compile(builder.get(), tvm.target.Target("llvm"), relax_pipeline="smartmem")
a = np.random.rand(4, 6).astype("float32") - 0.5
b = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(a)).numpy()
assert (b == np.maximum(a.T, 0)).all()
print("same")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "same"), done.stderr


def test_compile_with_the_pipeline_by_name(expected):
    executable = tvm.compile(network(), TARGET, relax_pipeline="smartmem")
    np.testing.assert_allclose(result(executable), expected, rtol=1e-5, atol=1e-5)


def test_get_pipeline_with_options(expected):
    pipeline = relax.get_pipeline("smartmem", eliminate=False, schedule=False)
    executable = tvm.compile(network(), TARGET, relax_pipeline=pipeline)
    np.testing.assert_allclose(result(executable), expected, rtol=1e-5, atol=1e-5)


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match=re.escape("unknown option ['elliminate']")) as caught:
        relax.get_pipeline("smartmem", elliminate=False)
    assert "eliminate" in str(caught.value).split("knows")[1]


def traces(mod, lowered) -> dict:
    """Return the traces of each technique in the compiled module."""
    passes = {entry["pass"] for entry in read_log(mod)}
    constants = [c for b in bindings(mod) for c in b.value.args[1].fields if isinstance(c, ir.Constant)]
    return {
        "merge_projections": any(tuple(c.ty.shape) == (SIZE, 3 * SIZE) for c in constants),
        "eliminate": "EliminateLayout" in passes,
        "fuse": "FuseOperators" in passes,
        "schedule": any("tirx.is_scheduled" in (f.attrs or {}) for f in lowered.functions.values()),
        "arena": any(tensor["offset"] for tensor in memory_plan(lowered)["tensors"]),
    }


@pytest.mark.parametrize("option", ["merge_projections", "eliminate", "fuse", "schedule", "arena", None])
def test_each_technique_can_be_switched_off(option, expected):
    """A technique that is off leaves no trace, the others still work, and the result stays right."""
    options = Options(**({option: False} if option else {}))
    with TARGET:
        mod = run_phases(network(), graph_phases(None), options)
        lowered = run_phases(mod, lower_phases(None), options)
        executable = relax.build(lowered, TARGET, relax_pipeline=None)
    assert [name for name, seen in traces(mod, lowered).items() if not seen] == ([option] if option else [])
    np.testing.assert_allclose(result(executable), expected, rtol=1e-5, atol=1e-5)


def test_kernels_of_the_example():
    """Layer norm, one merged projection, scores, softmax, mix, which reduce; and the kernel that reshapes the mix.

    That kernel turns rows of 6 into rows of 8; fused with it, the mix would no longer be a product.
    """
    with TARGET:
        mod = run_phases(network(), graph_phases(None), Options(fuse_attention=False))
    assert len(calls(mod)) == 6


def seconds_of_passes(depth: int) -> float:
    """Return the processor time of the graph passes on `depth` blocks."""

    def build(x):
        for _ in range(depth):
            x = relax.BlockBuilder.current().emit(block(x))
        return x

    mod = module(build, (TOKENS, SIZE))
    with TARGET:
        start = time.process_time()
        run_phases(mod, graph_phases(None), Options())
        return time.process_time() - start


@pytest.mark.slow
def test_time_grows_with_the_depth_and_not_faster():
    """Four times the layers take four times as long; a pass that walks the graph for each node takes sixteen."""
    seconds_of_passes(1)
    short, long = (min(seconds_of_passes(depth) for _ in range(2)) for depth in (6, 24))
    assert long < 7 * short


def stems_of(phases) -> list[str]:
    """Return the names of the dumps of phases that run, numbered among all phases."""
    return [f"{i:02d}_{phase.name}" for i, phase in enumerate(phases) if phase.chosen(Options())]


def test_a_dump_after_each_phase(tmp_path):
    folder = tmp_path / "made" / "on request"
    with TARGET:
        run_phases(network(), graph_phases(None), Options(dump_dir=str(folder)))
    names = [path.name for path in sorted(folder.iterdir())]
    stems = stems_of(graph_phases(None))
    assert names == [stem + ending for stem in stems for ending in (".json", ".py")]
    texts = [(folder / f"{stem}.py").read_text() for stem in stems]
    assert all("def main" in text for text in texts)
    assert "R.layer_norm" in texts[0] or "R.nn.layer_norm" in texts[0]
    # Except for layout, as tokens already have their channels innermost, for weights, of which none are in codes, and
    # for slices, as there are neither several sizes nor a memory budget.
    idle = ("_layout", "_weights", "_slices")
    others = [text for stem, text in zip(stems, texts, strict=True) if not stem.endswith(idle)]
    assert len(set(others)) == len(others), "each phase did something"


def test_the_pipeline_dumps_its_lowering_too(tmp_path):
    tvm.compile(network(), TARGET, relax_pipeline=relax.get_pipeline("smartmem", dump_dir=str(tmp_path)))
    names = sorted(path.name for path in tmp_path.glob("*.py"))
    assert names == [f"{stem}.py" for stem in stems_of(phases_of(None))]


def test_no_dump_unless_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with TARGET:
        run_phases(network(), graph_phases(None), Options())
    assert list(tmp_path.iterdir()) == []


# --- passes one by one --------------------------------------------------------------------------------------------

PASSES = [
    MergeProjections,
    EliminateLayout,
    FuseRows,
    FuseOperators,
    SplitReductions,
    LowerRotations,
    VectorizeMath,
    ScheduleKernels,
]


def everything(x):
    """Work for each pass: a roll, a normalisation in several operators, a sum through a view, attention."""
    x = op.concat([op.strided_slice(x, [0], [2], [TOKENS]), op.strided_slice(x, [0], [0], [2])], 0)
    x = op.subtract(x, op.mean(x, axis=-1, keepdims=True))
    folded = op.reshape(op.permute_dims(op.reshape(x, (2, 3, SIZE)), (1, 0, 2)), (3, 2 * SIZE))
    return op.add(block(x), op.sum(folded))


def ready_for(each) -> tvm.IRModule:
    """Return a module that the pass changes."""
    mod = module(everything, (TOKENS, SIZE))
    if each is not MergeProjections:
        mod = legalize(mod)
    return EliminateLayout()(mod) if each in (LowerRotations, SplitReductions) else mod


@pytest.mark.parametrize("each", PASSES)
def test_each_pass_alone_in_a_sequential(each):
    before = ready_for(each)
    with TARGET:
        after = tvm.transform.Sequential([each()])(before.clone())
    assert not tvm_ffi.structural_equal(after, before)
    assert_same_results(before, after, *random((TOKENS, SIZE)))


@pytest.mark.parametrize("each", PASSES)
def test_passes_do_not_change_their_input(each):
    mod = ready_for(each)
    copy = mod.clone()
    with TARGET:
        each()(mod)
    assert tvm_ffi.structural_equal(mod, copy)


@pytest.mark.parametrize("each", PASSES)
def test_passes_have_a_name_of_their_own(each):
    assert each().info.name.removeprefix("smartmem.") == each.__name__


@I.ir_module
class WithBranch:
    """A function that is no single dataflow block, and two other functions that must stay."""

    @T.prim_func(private=True, s_tir=True)
    def double(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 6), "float32")):
        for i, j in T.grid(4, 6):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32(2)

    @T.prim_func(s_tir=True)
    def exported(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 6), "float32")):
        T.func_attr({"global_symbol": "exported"})
        for i, j in T.grid(4, 6):
            with T.sblock("triple"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32(3)

    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 6), "float32")) -> R.Tensor((4, 6), "float32"):
        cls = WithBranch
        if c:
            y = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4, 6), "float32"))
        else:
            y = R.call_tir(cls.exported, (x,), out_ty=R.Tensor((4, 6), "float32"))
        return y

    @R.function
    def other(x: R.Tensor((4, 6), "float32")) -> R.Tensor((4, 6), "float32"):
        cls = WithBranch
        with R.dataflow():
            a = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4, 6), "float32"))
            b = R.call_tir(cls.double, (a,), out_ty=R.Tensor((4, 6), "float32"))
            R.output(b)
        return b


@pytest.mark.parametrize("each", [MergeProjections, EliminateLayout, FuseOperators])
def test_a_function_with_a_branch_is_left_unchanged(each):
    after = each()(WithBranch.clone())
    ir.assert_structural_equal(after["main"], WithBranch["main"])
    ir.assert_structural_equal(after["double"], WithBranch["double"])


def test_other_functions_are_worked_on_and_exported_functions_kept():
    after = FuseOperators()(WithBranch.clone())
    assert len(bindings(after, "other")) == 1
    ir.assert_structural_equal(after["exported"], WithBranch["exported"])


def test_a_branch_compiles_through_the_pipeline():
    executable = tvm.compile(WithBranch, TARGET, relax_pipeline="smartmem")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    (x,) = random((4, 6))
    for flag, factor in ((True, 2), (False, 3)):
        got = machine["main"](tvm.runtime.tensor(np.array(flag)), tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, x * factor, rtol=1e-6)
    np.testing.assert_allclose(machine["other"](tvm.runtime.tensor(x)).numpy(), x * 4, rtol=1e-6)


def test_a_symbolic_batch_compiles_right():
    """Functions with symbolic shapes have no functional form here, and TVM compiles them."""
    n = tvm.tirx.Var("n", "int64")
    mod = module(lambda x: op.exp(op.permute_dims(op.add(x, x))), (n, 4))
    executable = tvm.compile(mod, TARGET, relax_pipeline="smartmem")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for rows in (3, 5):
        (x,) = random((rows, 4))
        np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(x)).numpy(), np.exp(2 * x.T), rtol=1e-5)


def test_sorting_operators_are_left_to_tvm():
    """top-k stays a Relax operator until TVM's own dispatch; the operators around it are still fused."""

    def build(x):
        found = relax.BlockBuilder.current().emit(op.topk(op.nn.relu(op.permute_dims(x)), 3, axis=1))
        return op.negative(found[0]), found[1]

    executable = tvm.compile(module(build, (5, 4)), TARGET, relax_pipeline="smartmem")
    (x,) = random((5, 4))
    values, indices = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    positive = np.maximum(x.T, 0)
    np.testing.assert_array_equal(-values.numpy(), -np.sort(-positive, axis=1)[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(positive, indices.numpy().astype("int64"), 1), -values.numpy())


@pytest.mark.parametrize("limit, memory", [(16384, "texture"), (4, "buffer")])
def test_textures_keep_to_the_limits_of_the_target(limit, memory):
    """Between two products a tensor moves to a texture, of no more columns than the device has."""
    keys = ["adreno", "opencl", "gpu", "texture"]
    target = tvm.target.Target({"kind": "opencl", "keys": keys, "texture_spatial_limit": limit}, host="llvm")
    graph = module(lambda x: op.matmul(op.matmul(x, constant(7, 12)), constant(12, 8)), (3, 5, 7))
    with target:
        found = run_phases(graph, graph_phases(target), Options())
    log = [entry for entry in read_log(found) if entry["pass"] == "PlaceTextures"]
    between, result = (entry for entry in log if entry["kind"] == "tensor")
    assert between["memory"] == memory and result["reason"] == "it is a result of the function"
    if memory == "buffer":
        assert between["reason"] == "it would have 5 columns, and images of the device at most 4"


def test_tensors_between_kernels_are_bfloat16_on_a_cpu_and_weights_what_they_were(expected):
    """The graph's results change only by the rounding of stored tensors, as `round-products` runs later."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
    with target:
        mod = run_phases(network(), graph_phases(target), Options(precision="bfloat16"))
    found = nodes(mod)
    assert {str(node.var.ty.dtype) for node in found[:-1]} == {"bfloat16"} and len(found) > 2
    weights = [arg for node in found for arg in node.args if isinstance(arg, ir.Constant)]
    assert {str(each.ty.dtype) for each in weights} == {"float32"}
    (got,) = run(mod, *random((TOKENS, SIZE)))
    assert 0 < np.abs(got - expected).max() < 2e-2 * np.abs(expected).max()

# SPDX-License-Identifier: Apache-2.0
"""FuseSymbolic: kernels over tensors of unknown size are never more than TVM's default pipeline leaves."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op

import smartmem_tvm as sm
from helpers import constant, legal, module, random
from smartmem_tvm.ir.graph import CALL_TIR, read_log
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.target import host_target, parse_target
from smartmem_tvm.transform import EliminateLayout, FuseOperators, FuseSymbolic

N = tirx.Var("n", "int64")


def emit(value):
    return relax.BlockBuilder.current().emit(value)


def linear(x, inner, outer, seed=1):
    return emit(op.add(op.matmul(x, constant(inner, outer, seed=seed)), constant(outer, seed=seed + 9)))


def mlp(x):
    return op.nn.softmax(linear(emit(op.nn.relu(linear(x, 8, 16))), 16, 4))


def attention(x):
    def heads(seed):
        return emit(op.permute_dims(op.reshape(linear(x, 8, 8, seed), (1, N, 2, 4)), [0, 2, 1, 3]))

    scores = op.matmul(heads(1), op.permute_dims(heads(2), [0, 1, 3, 2]))
    mixed = op.matmul(op.nn.softmax(op.multiply(scores, relax.const(0.5, "float32"))), heads(3))
    mixed = emit(op.reshape(op.permute_dims(mixed, [0, 2, 1, 3]), (1, N, 8)))
    return op.nn.layer_norm(emit(op.add(linear(mixed, 8, 8, 4), x)), constant(8), constant(8, seed=3), axes=[-1])


def convolutions(x):
    x = emit(op.nn.relu(op.add(op.nn.conv2d(x, constant(4, 3, 3, 3), padding=1), constant(1, 4, 1, 1))))
    x = emit(op.mean(op.nn.max_pool2d(x, pool_size=(2, 2), strides=(2, 2)), axis=[2, 3]))
    return op.matmul(op.reshape(x, (N, 4)), constant(4, 5))


NETWORKS = {
    "mlp": (mlp, (N, 8), [(3, 8), (1, 8)]),
    "attention": (attention, (1, N, 8), [(1, 5, 8), (1, 1, 8)]),
    "convolutions": (convolutions, (N, 3, 6, 6), [(2, 3, 6, 6), (1, 3, 6, 6)]),
}


def lowered(mod, target, pipeline):
    with target:
        return pipeline(mod)


def kernel_calls(mod, name="main"):
    """How many calls of kernels are in a function that has been lowered for the virtual machine."""
    kernels = [gvar for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    return sum(call.op in kernels for call in collect(mod[name], tvm.ir.Call))


@pytest.mark.parametrize("target", [host_target(), parse_target("opencl")], ids=["llvm", "opencl"])
@pytest.mark.parametrize("name", NETWORKS)
def test_as_many_kernels_as_by_tvms_default(name, target):
    build, shape, _ = NETWORKS[name]
    mod = module(build, shape)
    tvms = lowered(mod, target, relax.get_default_pipeline(target))
    ours = lowered(mod, target, relax.get_pipeline("smartmem"))
    assert 1 < kernel_calls(ours) <= kernel_calls(tvms)


@pytest.mark.parametrize("name", NETWORKS)
def test_right(name):
    build, shape, sizes = NETWORKS[name]
    mod = module(build, shape)
    tvms = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    ours = sm.compile(mod, "llvm")
    for size in sizes:
        (x,) = random(size)
        (found,) = ours.run(x)
        np.testing.assert_allclose(found, tvms["main"](tvm.runtime.tensor(x)).numpy(), rtol=1e-5, atol=1e-5)


def test_one_warning_names_each_function_and_why(caplog):
    mod = module(mlp, (N, 8))
    mod["other"] = relax.utils.copy_with_new_vars(mod["main"])
    mod["fixed"] = module(mlp, (3, 8))["main"]
    mod = relax.transform.AttachGlobalSymbol()(mod)
    sm.optimize(mod)
    (said,) = caplog.messages
    reason = "dimension 0 (n) of 'x0' is unknown"
    assert said.startswith("kernels over tensors of unknown size are fused and scheduled as TVM does it: ")
    assert f"function 'main', as {reason}" in said and f"function 'other', as {reason}" in said
    assert "'fixed'" not in said


def test_modules_of_known_sizes_are_returned_as_they_are(caplog):
    mod = legal(mlp, (3, 8))
    assert FuseSymbolic()(mod).same_as(mod) or tvm_ffi.structural_equal(FuseSymbolic()(mod), mod)
    assert not caplog.messages


def test_other_functions_keep_the_kernels_that_our_passes_made():
    mod = module(lambda x: op.exp(op.add(x, x)), (N, 8))
    mod["fixed"] = module(lambda x: op.exp(op.nn.softmax(op.exp(x))), (4, 8))["main"]
    before = relax.transform.LegalizeOps()(mod)
    after = FuseSymbolic()(before)
    (together,) = kernels(after, "main")
    assert together.startswith("fused_add")
    assert kernels(after, "fixed") == kernels(before, "fixed") and len(kernels(after, "fixed")) == 3
    assert not [gvar for gvar, func in after.functions_items() if "op_pattern" in (func.attrs or {})]
    (entry,) = read_log(after)
    assert (entry["pass"], entry["operator"]) == ("FuseSymbolic", "function main")


def kernels(mod, name):
    """The kernels that a function calls, in order."""
    calls = [call for call in collect(mod[name], tvm.ir.Call) if call.op == CALL_TIR]
    return [call.args[0].name_hint for call in calls]


def test_sums_over_known_sizes_stay_as_our_passes_made_them():
    """In a function of unknown size: here with an operand that TVM would not have taken in."""

    def build(x, y):
        return op.exp(op.add(x, x)), op.exp(op.nn.softmax(op.permute_dims(y)))

    before = FuseOperators()(EliminateLayout()(legal(build, (N, 8), (4, 4))))
    ours = [name for name in kernels(before, "main") if "softmax" in name]
    (fused, *rest) = kernels(FuseSymbolic()(before), "main")
    assert len(ours) == 1 and fused.startswith("fused_add") and rest == ours


def test_reshapes_of_unknown_size_take_no_memory_of_their_own():
    mod = legal(lambda x: op.exp(op.reshape(op.exp(x), (N, 2, 4))), (N, 8))
    after = FuseSymbolic()(mod)
    names = [str(getattr(call.op, "name", "")) for call in collect(after["main"], tvm.ir.Call)]
    assert names.count("relax.reshape") == 1 or names.count("relax.call_tir") == 1


def test_sizes_that_only_a_result_has():
    """How many numbers are not zero is known at run time only."""
    found = tirx.Var("found", "int64")

    def build(x):
        places = relax.BlockBuilder.current().match_cast(op.nonzero(x), relax.TensorType((2, found), "int64"))
        return op.exp(op.add(op.astype(places, "float32"), relax.const(1.0)))

    compiled = sm.compile(module(build, (3, 4)), "llvm")
    x = np.eye(3, 4, dtype="float32")
    (result,) = compiled.run(x)
    np.testing.assert_allclose(result, np.exp(np.stack(np.nonzero(x)) + 1.0), rtol=1e-6)
    assert len([name for name in kernels(compiled.graph, "main") if "exp" in name]) == 1

# SPDX-License-Identifier: Apache-2.0
"""Kernels look at what a caller gives, and not at what the virtual machine has made."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

import smartmem_tvm
from helpers import constant, op
from smartmem_tvm import Options, optimize
from smartmem_tvm.deploy.argument_checks import UNCHECKED, trust_own_tensors, without_checks
from smartmem_tvm.deploy.build import lower
from smartmem_tvm.ir.walk import contains
from smartmem_tvm.target import parse_target

WEIGHT = constant(7, 300)


def layers(x):
    """The second product reads what the first one wrote; its weight is large enough to become a parameter."""
    return op.nn.softmax(op.matmul(op.nn.softmax(op.matmul(x, WEIGHT)), constant(300, 11)))


def model(build, *shapes) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{n}", relax.TensorType(shape, "float32")) for n, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(build(*params))
        builder.emit_func_output(result)
    return builder.get()


def lowered(mod, target="cpu") -> tvm.IRModule:
    target = parse_target(target)
    target = target if target.kind.name == "llvm" else target.with_host("llvm")
    with target:
        return lower(optimize(mod, target), target, Options()).module


def kernels(mod) -> dict:
    return {gvar: func for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}


def trusting(mod) -> dict[bool, list[str]]:
    found = {True: [], False: []}
    for gvar, func in kernels(mod).items():
        found[UNCHECKED in (func.attrs or {})].append(gvar.name_hint)
    return found


@pytest.mark.parametrize("target", ["cpu", "opencl", "adreno-740"])
def test_whoever_reads_an_input_looks_at_it(target):
    found = trusting(lowered(model(layers, (5, 7)), target))
    assert len(found[False]) == 1 and found[True]


def test_what_a_cuda_graph_is_given_belongs_to_its_caller():
    """Weights and tensors of the machine are parameters of the function that holds a graph's kernels."""
    mod = lowered(model(lambda x: op.nn.softmax(layers(x)), (5, 7)), "cuda")
    assert any("capture" in gvar.name_hint for gvar, _ in mod.functions_items())
    found = trusting(mod)
    assert len(found[False]) == 1 and len(found[True]) > 1


def test_a_kernel_that_is_called_with_both():
    """The same kernel for an input and for what it made of that."""
    found = trusting(lowered(model(lambda x: op.cumsum(op.cumsum(x, axis=0), axis=0), (5, 7))))
    assert found[True] == []


def test_dimensions_that_are_known_at_run_time_only():
    rows = tirx.Var("n", "int64")
    found = trusting(lowered(model(lambda x: op.nn.softmax(op.matmul(op.exp(x), WEIGHT)), (rows, 7))))
    assert found[True] == []


def test_who_is_mentioned_otherwise_looks():
    mod = lowered(model(layers, (5, 7)))
    name = trusting(mod)[True][0]
    kernel = next(gvar for gvar, _ in mod.functions_items() if gvar.name_hint == name)
    x = relax.Var("x", relax.TensorType((5, 7), "float32"))
    other = relax.Function([x], relax.Call(kernel, [x, x], None, [relax.TupleType([])]), relax.TupleType([]))
    plain = tvm.IRModule(
        {g: f.without_attr(UNCHECKED) if UNCHECKED in f.attrs else f for g, f in mod.functions_items()}
    )
    plain["other"] = other.with_attr("global_symbol", "other")
    assert name not in trusting(trust_own_tensors(plain))[True]


def test_only_marked_functions_lose_their_checks():
    target = parse_target("cpu")
    mod = tvm.IRModule(
        {g: f for g, f in lowered(model(layers, (5, 7))).functions_items() if isinstance(f, tirx.PrimFunc)}
    )
    bound = tirx.transform.BindTarget(target.with_host(target))(mod)
    host = tirx.get_tir_pipeline("default")[0](bound)
    before, after = host, without_checks(host)
    for gvar, func in before.functions_items():
        marked = UNCHECKED in (func.attrs or {})
        assert contains(func.body, tirx.AssertStmt)
        assert contains(after[gvar].body, tirx.AssertStmt) != marked


def test_an_input_that_is_not_contiguous_is_refused():
    compiled = smartmem_tvm.compile(model(layers, (5, 7)))
    x = np.random.default_rng(0).random((5, 14), dtype="float32")
    whole = tvm.runtime.empty((5, 14), "float32")
    whole.copyfrom(x)
    strided = tvm_ffi.from_dlpack(np.from_dlpack(whole)[:, ::2])
    with pytest.raises(Exception, match="strides"):
        compiled.session().run(strided)
    weights = WEIGHT.value.numpy()
    hidden = np.exp(x[:, :7] @ weights)
    hidden = hidden / hidden.sum(1, keepdims=True) @ constant(300, 11).value.numpy()
    expected = np.exp(hidden) / np.exp(hidden).sum(1, keepdims=True)
    (result,) = compiled.run(np.ascontiguousarray(x[:, :7]))
    np.testing.assert_allclose(result, expected, rtol=1e-4)

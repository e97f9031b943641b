# SPDX-License-Identifier: Apache-2.0
"""PackWeights: constants in panels, the same results, and no copying of panels in the kernel."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te

from smartmem_tvm.schedule import PackWeights, ScheduleKernels
from smartmem_tvm.schedule.schedule_kernels import kernel_rules

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
ROWS, DEPTH = 26, 12


def plain(x, w):
    k = te.reduce_axis((0, DEPTH), "k")
    return te.compute((ROWS, w.shape[1]), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="matmul")


def columns_first(x, w):
    k = te.reduce_axis((0, DEPTH), "k")
    return te.compute((ROWS, w.shape[0]), lambda i, j: te.sum(x[i, k] * w[j, k], k), name="matmul")


def heads(x, w):
    """Columns and depth of two iterators each, the weight's axes in an order of their own."""
    k, q = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, 3), "q")
    shape = (ROWS, w.shape[2], w.shape[0])
    return te.compute(shape, lambda i, h, j: te.sum(x[i, k * 3 + q] * w[j, q, h, k], (k, q)), name="matmul")


def batched(x, w):
    k = te.reduce_axis((0, 6), "k")
    shape = (2, ROWS, w.shape[2])
    return te.compute(shape, lambda b, i, j: te.sum(x[i, b * 6 + k] * w[b, k, j], k), name="matmul")


CASES = {
    "whole panels": (plain, (DEPTH, 64), lambda x, w: x @ w),
    "columns beyond the last panel": (plain, (DEPTH, 53), lambda x, w: x @ w),
    "fewer columns than a vector": (plain, (DEPTH, 5), lambda x, w: x @ w),
    "columns first": (columns_first, (51, DEPTH), lambda x, w: x @ w.T),
    "heads": (heads, (17, 3, 2, 4), lambda x, w: np.einsum("ikq,jqhk->ihj", x.reshape(ROWS, 4, 3), w)),
    "one matrix for each batch": (
        batched,
        (2, 6, 40),
        lambda x, w: np.einsum("ibk,bkj->bij", x.reshape(ROWS, 2, 6), w),
    ),
}


def module(body, *weights) -> tvm.IRModule:
    """``main(x)``: the body applied to x and each weight, in turn."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((ROWS, DEPTH), str(weights[0].dtype)))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = [builder.emit_te(body, x, relax.const(w, str(w.dtype))) for w in weights]
            results = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(results)
    return builder.get()


def draw(*shape) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def kernels(mod: tvm.IRModule) -> list:
    return [func for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]


def results(mod: tvm.IRModule, x: np.ndarray) -> list[np.ndarray]:
    vm = relax.VirtualMachine(relax.build(mod, TARGET), tvm.cpu())
    return [each.numpy() for each in vm["main"](tvm.runtime.tensor(x))]


def packed(mod: tvm.IRModule) -> tvm.IRModule:
    with TARGET:
        return PackWeights()(mod)


def scheduled(mod: tvm.IRModule) -> tvm.IRModule:
    with TARGET:
        return ScheduleKernels()(mod)


@pytest.mark.each_value
@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_results_stay_the_same_and_nothing_is_copied(case, schedule):
    body, shape, reference = CASES[case]
    x, w = draw(ROWS, DEPTH), draw(*shape)
    mod = packed(module(body, w))
    if schedule:
        mod = scheduled(mod)
        assert {rule["name"] for rule in kernel_rules(mod).values()} == {"Matmul"}
        assert not any("right = T.sblock_alloc_buffer" in func.script() for func in kernels(mod))
    (got,) = results(mod, x)
    np.testing.assert_allclose(got, reference(x, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int8"])
def test_constants_keep_their_type(dtype):
    x, w = (
        np.arange(n * DEPTH).reshape(shape).astype(dtype) % 5 for n, shape in ((ROWS, (ROWS, DEPTH)), (7, (DEPTH, 7)))
    )
    (got,) = results(scheduled(packed(module(plain, w))), x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, x @ w)


def test_panels_have_the_width_of_the_tile_and_zeros_at_the_end():
    w = draw(DEPTH, 53)
    (func,), constants = kernels(mod := packed(module(plain, w))), []
    tvm_ffi.structural_walk(mod["main"], (tvm.ir.GenericConst, constants.append))
    (values,) = (each.value.numpy() for each in constants)
    panels, depth, width = values.shape[1:]
    assert [int(d) for d in func.params[1].shape] == list(values.shape)
    assert depth == DEPTH and (panels - 1) * width < 53 <= panels * width
    unpacked = values[0].swapaxes(0, 1).reshape(DEPTH, -1)
    np.testing.assert_array_equal(unpacked[:, :53], w)
    assert not unpacked[:, 53:].any()


def test_one_kernel_is_called_with_several_weights():
    x, first, second = draw(ROWS, DEPTH), draw(DEPTH, 40), draw(DEPTH, 40) * 2
    mod = packed(module(plain, first, second))
    (func,) = kernels(mod)
    assert len(func.params[1].shape) == 4
    for got, w in zip(results(scheduled(mod), x), (first, second), strict=True):
        np.testing.assert_allclose(got, x @ w, rtol=1e-4, atol=1e-4)


def test_a_name_and_attributes_are_kept():
    mod = module(plain, draw(DEPTH, 40))
    (gvar,) = [g for g, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    mod[gvar] = mod[gvar].with_attr("mark", 7)
    after = packed(mod)
    assert int(after[gvar.name_hint].attrs["mark"]) == 7 and len(after[gvar.name_hint].params[1].shape) == 4


def twice(x, w):
    k = te.reduce_axis((0, DEPTH), "k")
    total = te.compute((ROWS, DEPTH), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="total")
    return te.compute((ROWS, DEPTH), lambda i, j: total[i, j] + w[0, j])


def halved(x, w):
    k = te.reduce_axis((0, DEPTH), "k")
    return te.compute((ROWS, 40), lambda i, j: te.sum(x[i, k] * (w[k, j] * w[k, j]), k))


def in_no_fixed_steps(x, w):
    k = te.reduce_axis((0, DEPTH), "k")
    return te.compute((ROWS, 40), lambda i, j: te.sum(x[i, k] * w[(k * 5 + j) % 12, j], k))


@pytest.mark.parametrize("body, columns", [(twice, DEPTH), (halved, 40), (in_no_fixed_steps, 40)])
def test_other_uses_of_a_constant_are_left_alone(body, columns):
    mod = module(body, draw(DEPTH, columns))
    assert tvm_ffi.structural_equal(packed(mod), mod)


def test_activations_are_left_alone():
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", (ROWS, 12)), ("w", (12, 40))))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(plain, x, w))
        builder.emit_func_output(result)
    mod = builder.get()
    assert tvm_ffi.structural_equal(packed(mod), mod)


def test_kernels_that_others_may_call_are_left_alone():
    mod = module(plain, draw(DEPTH, 40))
    (gvar,) = [g for g, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    mod[gvar] = mod[gvar].with_attr("global_symbol", "for_all")
    assert tvm_ffi.structural_equal(packed(mod), mod)

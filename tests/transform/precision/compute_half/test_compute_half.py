# SPDX-License-Identifier: Apache-2.0
"""ComputeHalf: what is computed in half and what is not, and how near the results are to those of float32."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

import smartmem_tvm as sm
from helpers import constant, graph, legal, module, nodes, op, random, run
from module_lines import assert_lines
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import ComputeHalf, EliminateLayout, FuseOperators, StoreHalf

SHAPE = (6, 8, 16)


def narrowed(build, *shapes):
    before = FuseOperators()(EliminateLayout()(legal(build, *shapes)))
    return before, ComputeHalf()(StoreHalf()(before))


def stages(mod) -> list:
    return [stage for node in nodes(mod) if node.kernel is not None for stage in node.kernel.stages]


def types(stage) -> set:
    """Types of the operations of a stage that are no conversions."""
    found: set = set()
    kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, ir.Call)
    tvm_ffi.structural_walk(stage.body.value, (kinds, lambda each: found.add(str(each.ty.dtype))))
    return {each for each in found if each.startswith("float")}


NETWORKS = {
    "matmul": lambda x: op.nn.silu(op.add(op.matmul(op.nn.relu(x), constant(16, 12)), constant(12))),
    "layer norm": lambda x: op.nn.layer_norm(op.nn.relu(x), constant(16), constant(16), axes=[-1], epsilon=1e-12),
    "softmax": lambda x: op.nn.softmax(op.nn.softmax(x)),
    "attention": lambda x: op.matmul(op.nn.softmax(op.matmul(x, op.permute_dims(x, (0, 2, 1)))), x),
    "pools": lambda x: op.nn.max_pool2d(op.nn.avg_pool2d(op.expand_dims(x, 0), (3, 3), padding=1), (3, 3), padding=1),
    "branches": lambda x: op.where(op.greater(x, op.negative(x)), op.exp(op.clip(x, -2, 2)), op.abs(x)),
}


def root_mean_square(square):
    """A norm by the root of the mean of squares, as language models have it."""

    def norm(x):
        mean = op.mean(square(op.nn.relu(x)), axis=[-1], keepdims=True)
        return op.multiply(op.nn.relu(x), op.rsqrt(op.add(mean, relax.const(1e-6, "float32"))))

    return norm


@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_near(name):
    before, after = narrowed(NETWORKS[name], SHAPE)
    assert any("float16" in types(stage) for stage in stages(after)) or name == "layer norm"
    (x,) = random(SHAPE)
    (want,), (got,) = run(before, x), run(after, x)
    assert 0 < np.abs(got - want).max() <= 3e-3 * np.abs(want).max()


def test_a_sum_of_products_is_float32_and_its_factors_are_halves():
    _, after = narrowed(lambda x: op.exp(op.add(op.matmul(op.nn.relu(x), constant(16, 12)), constant(12))), (8, 16))
    assert_lines(
        after,
        """
        for i0, i1, k in grid(8, 12, 16):
            matmul[i0, i1] = 0.0
            matmul[i0, i1] = matmul[i0, i1] + Cast("float32", max(Cast("float16", x0[i0, k]), 0.0) * B_1[k, i1])
        for i0, i1 in grid(8, 12):
            compute[i0, i1] = Cast("float32", exp(Cast("float16", matmul[i0, i1]) + B[i1]))
        gv = call relu_matmul_add_tir_exp(w0, w1, x0)
        """,
    )


@pytest.mark.parametrize(
    "norm",
    [
        NETWORKS["layer norm"],
        root_mean_square(op.square),
        root_mean_square(lambda x: op.multiply(x, x)),
        root_mean_square(lambda x: op.power(x, relax.const(2.0, "float32"))),
    ],
)
def test_statistics_of_rows_are_float32(norm):
    """The squares of a thousand are beyond half's range."""
    before, after = narrowed(norm, SHAPE)
    assert all(types(stage) == {"float32"} for stage in stages(after) if stage.reduction)
    (x,) = random(SHAPE)
    (want,), (got,) = run(before, 1000 * x), run(after, 1000 * x)
    assert np.abs(want).max() > 1e-2
    assert np.abs(got - want).max() <= 3e-3 * np.abs(want).max()


def test_a_maximum_is_of_what_it_compares():
    _, after = narrowed(NETWORKS["softmax"], SHAPE)
    maxima = [s for s in stages(after) if s.reduction and isinstance(s.body.value, tirx.Max)]
    assert {str(stage.body.buffer.dtype) for stage in maxima} == {"float16"}
    sums = [s for s in stages(after) if s.reduction and isinstance(s.body.value, tirx.Add)]
    assert {str(stage.body.buffer.dtype) for stage in sums} == {"float32"}


@pytest.mark.parametrize("rows", [16, 13, 1])
def test_a_softmax_that_a_product_reads_is_halves(rows):
    """In one kernel, too, where nothing else would round it."""

    def attention(x):
        scores = op.nn.softmax(op.matmul(x, op.permute_dims(x, (0, 2, 1))))
        return op.matmul(scores, x)

    mod, (x,) = module(lambda x: attention(op.nn.relu(x)), (2, rows, 16)), random((2, rows, 16))
    options = sm.Options(precision="half", textures=False)
    after = sm.optimize(mod, parse_target("mali-g76"), options)
    fused = next((node.kernel for node in nodes(after) if sum(bool(s.reduction) for s in node.kernel.stages) > 3), None)
    if rows == 16:
        *_, softmax, product = fused.stages
        assert str(softmax.body.buffer.dtype) == "float16" and not softmax.reduction
        assert str(product.body.buffer.dtype) == "float32" and "float16" in types(product)
    (want,), (got,) = run(sm.optimize(mod, "llvm"), x), run(after, x)
    assert np.abs(got - want).max() <= 3e-3 * np.abs(want).max()


def test_a_row_that_something_else_reads_too_stays_float32():
    """What a norm takes its statistics of is not rounded before."""
    _, after = narrowed(NETWORKS["layer norm"], SHAPE)
    kernels = [node.kernel for node in nodes(after) if node.kernel is not None]
    between = [buffer for kernel in kernels for buffer in kernel.intermediates]
    assert between and all(str(buffer.dtype) == "float32" for buffer in between if len(buffer.shape) > 2)


def test_numbers_that_half_lacks_keep_a_stage_in_float32():
    _, after = narrowed(lambda x: op.nn.relu(op.add(op.multiply(x, op.abs(x)), tvm.relax.const(1e-9))), SHAPE)
    assert "float16" not in types(stages(after)[0])


def test_integers_are_left_alone():
    before, after = narrowed(lambda x: op.add(x, x), (SHAPE, "int32"))
    assert tvm_ffi.structural_equal(graph(before).function, graph(after).function)

# SPDX-License-Identifier: Apache-2.0
"""MergeProjections: which matmuls become one, and which must not."""

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.script import relax as R

from helpers import assert_same_results, bindings, constant, legalize, module, nodes, op, operators, random, run
from module_lines import assert_lines
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.transform import EliminateLayout, FuseOperators, MergeProjections


def merged(build, *shapes, dtype="float32"):
    """Run the pass, compare results; returns names of the operators that are left."""
    before = module(build, *shapes, dtype=dtype)
    after = MergeProjections()(before)
    tolerance = 1e-2 if dtype == "float16" else 1e-5
    assert_same_results(before, after, *random(*shapes, dtype=dtype), tolerance=tolerance)
    return operators(after)


def test_before_and_after():
    wq, wk = constant(6, 4, seed=1), constant(6, 3, seed=2)
    bq, bk = constant(4, seed=3), constant(3, seed=4)

    def build(x):
        return op.add(op.matmul(x, wq), bq), op.add(op.matmul(x, wk), bk)

    before = module(build, (5, 6))
    after = MergeProjections()(before)
    assert_lines(
        after,
        """
        gv_gv1_matmul = matmul(x0, w0)
        gv_gv1_add = add(gv_gv1_matmul, w1)
        gv = strided_slice(gv_gv1_add, (1,), (0,), (4,), assume_inbound=False)
        gv1 = strided_slice(gv_gv1_add, (1,), (4,), (7,), assume_inbound=False)
        """,
    )
    assert_same_results(before, after, *random((5, 6)))


def test_three_projections_are_one_kernel_that_their_readers_read():
    """Query, key and value: one matmul with its bias, and the views are gone after elimination."""
    weights = [constant(6, 8, seed=s) for s in range(3)]
    biases = [constant(8, seed=s) for s in range(3, 6)]

    def build(x):
        q, k, v = (op.add(op.matmul(x, w), b) for w, b in zip(weights, biases))
        return op.matmul(op.nn.softmax(op.matmul(q, op.permute_dims(k))), v)

    before = module(build, (5, 6))
    after = FuseOperators()(EliminateLayout()(legalize(MergeProjections()(before))))
    assert len(nodes(after)) == 4
    assert_same_results(before, after, *random((5, 6)))


def test_without_bias():
    build = lambda x: (op.matmul(x, constant(6, 4, seed=1)), op.matmul(x, constant(6, 4, seed=2)))  # noqa: E731
    assert merged(build, (5, 6)) == ["matmul", "strided_slice", "strided_slice"]


def test_some_with_a_bias():
    """The others get zeros."""

    def build(x):
        return op.add(op.matmul(x, constant(6, 4, seed=1)), constant(4)), op.matmul(x, constant(6, 3, seed=2))

    assert merged(build, (5, 6)) == ["matmul", "add", "strided_slice", "strided_slice"]


def test_bias_on_the_left():
    def build(x):
        return op.add(constant(4), op.matmul(x, constant(6, 4, seed=1))), op.matmul(x, constant(6, 3, seed=2))

    assert merged(build, (5, 6)) == ["matmul", "add", "strided_slice", "strided_slice"]


def test_a_bias_whose_matmul_is_read_elsewhere_stays():
    """The matmul without bias is needed as well."""

    def build(x):
        first = op.matmul(x, constant(6, 4, seed=1))
        return op.add(first, constant(4)), op.nn.relu(first), op.matmul(x, constant(6, 3, seed=2))

    assert sorted(merged(build, (5, 6))) == ["add", "matmul", "nn.relu", "strided_slice", "strided_slice"]


def test_a_matmul_that_is_a_result_keeps_its_bias_apart():
    def build(x):
        first = op.matmul(x, constant(6, 4, seed=1))
        return first, op.add(first, constant(4)), op.matmul(x, constant(6, 3, seed=2))

    assert merged(build, (5, 6)).count("matmul") == 1


def test_a_residual_is_no_bias():
    def build(x, y):
        return op.add(op.matmul(x, constant(6, 4, seed=1)), y), op.matmul(x, constant(6, 4, seed=2))

    assert sorted(merged(build, (5, 6), (5, 4))) == ["add", "matmul", "strided_slice", "strided_slice"]


def test_a_bias_of_another_shape_stays():
    def build(x):
        return (
            op.add(op.matmul(x, constant(6, 4, seed=1)), constant(5, 4)),
            op.matmul(x, constant(6, 4, seed=2)),
        )

    assert sorted(merged(build, (5, 6))) == ["add", "matmul", "strided_slice", "strided_slice"]


def test_batched_inputs_and_half_precision():
    def build(x):
        weights = [constant(6, n, seed=n, dtype="float16") for n in (4, 2)]
        return tuple(op.matmul(x, w) for w in weights)

    assert merged(build, (2, 5, 6), dtype="float16").count("matmul") == 1


def test_results_are_used_between_the_projections():
    """The merged layer must stand where the first one stood, before every reader."""

    def build(x):
        first = op.nn.relu(op.matmul(x, constant(6, 4, seed=1)))
        second = op.matmul(x, constant(6, 4, seed=2))
        return op.add(first, second)

    assert merged(build, (5, 6)).count("matmul") == 1


def test_a_bias_computed_after_another_reader():
    """The addition of the first member comes after a reader of the second."""

    def build(x):
        first, second = op.matmul(x, constant(6, 4, seed=1)), op.matmul(x, constant(6, 4, seed=2))
        return op.nn.relu(op.add(second, constant(4, seed=3))), op.add(first, constant(4, seed=4))

    assert merged(build, (5, 6)).count("matmul") == 1


REFUSED = {
    "two inputs": (
        lambda x, y: (op.matmul(x, constant(6, 4, seed=1)), op.matmul(y, constant(6, 4, seed=2))),
        (5, 6),
        (5, 6),
    ),
    "weights that are no constants": (lambda x, v, w: (op.matmul(x, v), op.matmul(x, w)), (5, 6), (6, 4), (6, 4)),
    "one alone": (lambda x: op.matmul(x, constant(6, 4)), (5, 6)),
    "batched weights": (
        lambda x: (op.matmul(x, constant(2, 6, 4, seed=1)), op.matmul(x, constant(2, 6, 4, seed=2))),
        (2, 5, 6),
    ),
    "vectors": (lambda x: (op.matmul(x, constant(6, seed=1)), op.matmul(x, constant(6, seed=2))), (5, 6)),
    "the input as the weight": (
        lambda x: (op.matmul(constant(4, 5, seed=1), x), op.matmul(constant(4, 5, seed=2), x)),
        (5, 6),
    ),
    "one after the other": (
        lambda x: op.matmul(op.matmul(x, constant(6, 6, seed=1)), constant(6, 6, seed=2)),
        (5, 6),
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_refused(case):
    before = module(*case)
    ir.assert_structural_equal(MergeProjections()(before.clone())["main"], before["main"])


def test_an_accumulator_of_another_dtype_is_another_layer():
    def build(x):
        half = [constant(6, 4, seed=s, dtype="float16") for s in range(2)]
        return op.matmul(x, half[0]), op.matmul(x, half[1], out_dtype="float32")

    before = module(build, (5, 6), dtype="float16")
    after = MergeProjections()(before)
    assert operators(after).count("matmul") == 2
    (x,) = random((5, 6), dtype="float16")
    assert [r.dtype for r in run(after, x)] == ["float16", "float32"]


def test_projections_with_the_same_wider_accumulator_keep_it():
    def build(x):
        half = [constant(6, 4, seed=s, dtype="float16") for s in range(2)]
        return tuple(op.matmul(x, w, out_dtype="float32") for w in half)

    after = MergeProjections()(module(build, (5, 6), dtype="float16"))
    (x,) = random((5, 6), dtype="float16")
    assert [r.dtype for r in run(after, x)] == ["float32", "float32"]
    assert [b.var.ty.dtype.dtype for b in bindings(after)][-1] == "float32"


def test_groups_of_several_inputs():
    def build(x, y):
        return tuple(op.matmul(v, constant(6, 4, seed=s)) for s in range(2) for v in (x, y))

    assert merged(build, (5, 6), (5, 6)).count("matmul") == 2


def test_functions_with_branches_are_left_alone():
    @tvm.script.ir_module
    class Module:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            if c:  # noqa: SIM108
                y = R.matmul(x, x)
            else:
                y = R.add(x, x)
            return y

    ir.assert_structural_equal(MergeProjections()(Module.clone()), Module)


def test_what_is_merged_is_on_record():
    def build(x):
        return op.add(op.matmul(x, constant(6, 4)), constant(4)), op.matmul(x, constant(6, 2, seed=1)), op.exp(x)

    before = module(build, (5, 6))
    after = MergeProjections()(before)
    first, bias, second = (b.var.name for b in bindings(before) if b.value.op.name in ("relax.matmul", "relax.add"))
    log = read_log(after)
    assert {each["operator"] for each in log} == {first, bias, second}
    assert all(each["action"] == "merged" and each["reason"].startswith("2 linear layers") for each in log)
    assert set(log[0]["into"]) <= {each.var.name for each in bindings(after)}
    assert read_log(MergeProjections()(module(lambda x: op.matmul(x, constant(6, 4)), (5, 6)))) == []


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_weights_of_64_bits_keep_them(dtype):
    weights = [constant(6, columns, seed=columns, dtype=dtype) for columns in (4, 3)]
    bias = constant(4, seed=3, dtype=dtype)

    def build(x):
        return op.add(op.matmul(x, weights[0]), bias), op.matmul(x, weights[1])

    assert merged(build, (5, 6), dtype=dtype).count("matmul") == 1


def test_sums_of_integers_are_merged_with_their_scales_and_biases():
    """Steps that not all of them have stay behind the slices."""
    random_ = np.random.default_rng(0)
    weights = [relax.const(random_.integers(-9, 10, (6, n)).astype("int8")) for n in (4, 3)]
    over = [relax.const(random_.integers(-9, 10, n).astype("int32")) for n in (4, 3)]
    scales = [relax.const(random_.random(n).astype("float32")) for n in (4, 3)]

    def build(x):
        x, found = op.astype(x, "uint8"), []
        for w, o, s in zip(weights, over, scales):
            sums = op.subtract(op.matmul(x, w, out_dtype="int32"), o)
            found.append(op.multiply(op.astype(sums, "float32"), s))
        return found[0], op.add(found[1], relax.const(np.float32(2)))

    before = module(build, (5, 6))
    after = MergeProjections()(before)
    found = operators(after)
    assert [found.count(name) for name in ("matmul", "subtract", "multiply", "add")] == [1, 1, 1, 1]
    assert_same_results(before, after, *random((5, 6)))

# SPDX-License-Identifier: Apache-2.0
"""StoreCodes: dequantised weights of products stay integers; others are left to the folding of constants."""

import numpy as np
import pytest
import tvm
from tvm import relax

from helpers import assert_same_results, calls, module, operators
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.pass_registry import make_pass
from smartmem_tvm.transform import ReadCodes, StoreCodes

CPU = tvm.target.Target({"kind": "llvm", "num-cores": 2})
RANDOM = np.random.default_rng(0)
CODES = RANDOM.integers(-8, 8, (96, 64)).astype("int8")
SCALES = (RANDOM.random((3, 64)) + 0.5).astype("float32")


def weight(scale=None, codes=CODES):
    if scale is None:
        scale = relax.op.repeat(relax.const(SCALES), 32, 0)
    return relax.op.multiply(relax.op.astype(relax.const(codes), "float32"), scale)


def stored(mod, target=CPU):
    with target:
        return StoreCodes()(mod)


def kept(mod) -> bool:
    return any(each.startswith("dequantize_weight") for each in calls(mod))


@pytest.mark.parametrize(
    ("scale", "group"),
    [
        (None, 32),
        (relax.const(np.float32(0.5)), 96),
        (relax.const(SCALES[0]), 96),
        (relax.const(SCALES[:1]), 96),
        (relax.const(np.repeat(SCALES, 32, 0)), 32),
        (relax.const(np.repeat(SCALES[[0, 1, 1, 0]], 24, 0)), 24),
    ],
)
def test_scales_of_groups(scale, group):
    mod = module(lambda x: relax.op.matmul(x, weight(scale)), (3, 96))
    after = stored(mod)
    assert kept(after) and read_log(after)[0]["group"] == group
    assert_same_results(mod, after, RANDOM.standard_normal((3, 96)).astype("float32"))


@pytest.mark.parametrize("turned", [False, True])
def test_the_depth_of_a_left_or_transposed_operand(turned):
    """Groups lie along the depth of the product, whichever dimension of the constant that is."""

    def body(x):
        by_rows = relax.op.multiply(
            relax.op.astype(relax.const(CODES), "float32"), relax.op.repeat(relax.const(SCALES[:, :1]), 32, 0)
        )
        return relax.op.matmul(x, by_rows) if turned else relax.op.matmul(weight(relax.const(SCALES[0])), x)

    mod = module(body, (3, 96) if turned else (64, 3))
    after = stored(mod)
    # On the left the depth has 64 numbers, each with a scale of its own.
    assert kept(after) == turned
    assert_same_results(mod, after, RANDOM.standard_normal((3, 96) if turned else (64, 3)).astype("float32"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda x: relax.op.add(relax.op.matmul(x, weight()), relax.op.sum(weight(), 0)), None),
        (lambda x: relax.op.multiply(x, weight()), "something else than products"),
        (
            lambda x: relax.op.matmul(x, weight(relax.const(RANDOM.random((8, 64)).astype("float32").repeat(12, 0)))),
            "no groups",
        ),
        (lambda x: relax.op.matmul(x, weight(relax.const(RANDOM.random((96, 1)).astype("float32")))), "no groups"),
    ],
)
def test_what_is_expanded(body, reason):
    shape = (96, 64) if reason and "something" in reason else (3, 96)
    mod = module(body, shape)
    after = stored(mod)
    entries = [each["reason"] for each in read_log(after) if each["action"] == "expanded"]
    assert all(reason in each for each in entries) if reason else True
    assert_same_results(mod, after, RANDOM.standard_normal(shape).astype("float32"))


def rows(table, depth):
    """Rows of a table in the order of a product's weight, and the product of these rows with it."""
    taken = relax.op.take(relax.op.permute_dims(table), relax.const(np.array([5, 0, 63])), 0, mode="clip")
    return relax.op.matmul(relax.op.add(taken, depth), weight())


@pytest.mark.parametrize("again", [False, True])
def test_rows_of_a_products_weight_are_read_from_its_integers(again):
    """The table is the weight itself, or the same numbers again."""
    table = relax.const(np.repeat(SCALES, 32, 0)) if again else None
    mod = module(lambda x: rows(weight(table), x), (3, 96))
    after = stored(mod)
    assert [each["action"] for each in read_log(after)] == ["kept as integers"] * (2 if again else 1)
    read = ReadCodes()(relax.transform.LegalizeOps()(after))
    x = RANDOM.standard_normal((3, 96)).astype("float32")
    assert_same_results(mod, after, x)
    assert_same_results(mod, read, x)


def test_rows_of_another_table_are_expanded():
    other = CODES.copy()
    other[0, 0] ^= 1
    mod = module(lambda x: rows(weight(codes=other), x), (3, 96))
    after = stored(mod)
    reasons = [each.get("reason") for each in read_log(after)]
    assert reasons == [None, "rows of it are gathered, and no product reads it"]
    assert_same_results(mod, after, RANDOM.standard_normal((3, 96)).astype("float32"))


def test_small_weights_are_left_alone():
    small = module(lambda x: relax.op.matmul(x, weight(relax.const(SCALES[0, :8]), CODES[:, :8])), (3, 96))
    assert operators(stored(small)) == operators(small)


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_weights_for_gpus_stay_integers(target):
    assert kept(stored(module(lambda x: relax.op.matmul(x, weight()), (3, 96)), tvm.target.Target(target)))


def test_a_shared_weight_is_read_by_products_and_by_another_operator():
    def body(x):
        w = weight()
        return relax.op.add(relax.op.matmul(x, w), relax.op.sum(w, 0))

    mod = module(body, (3, 96))
    assert_same_results(mod, stored(mod), RANDOM.standard_normal((3, 96)).astype("float32"))


def test_constants_are_folded_around_it():
    """TVM's FoldConstant would compute the floats: in this package's pipelines it does not see the call."""
    mod = stored(module(lambda x: relax.op.matmul(x, weight()), (3, 96)))
    assert not kept(relax.transform.FoldConstant()(mod))
    after = make_pass("relax.FoldConstant")(mod)
    assert kept(after)
    assert_same_results(mod, after, RANDOM.standard_normal((3, 96)).astype("float32"))


def test_products_read_the_integers():
    mod = relax.transform.LegalizeOps()(stored(module(lambda x: relax.op.matmul(x, weight()), (3, 96))))
    after = ReadCodes()(mod)
    assert len(calls(mod)) == 2 and len(calls(after)) == 1
    assert [each["action"] for each in read_log(after) if each["pass"] == "ReadCodes"] == ["read"]
    assert_same_results(mod, after, RANDOM.standard_normal((3, 96)).astype("float32"))


def test_a_reader_without_a_sum_keeps_the_weight():
    def body(x):
        w = weight()
        return relax.op.add(relax.op.matmul(x, w), relax.op.matmul(x, relax.op.permute_dims(relax.op.permute_dims(w))))

    mod = module(body, (3, 96))
    after = ReadCodes()(relax.transform.LegalizeOps()(stored(mod)))
    kinds = {each["action"] for each in read_log(after) if each["pass"] == "ReadCodes"}
    assert kinds == {"kept"}
    assert_same_results(mod, after, RANDOM.standard_normal((3, 96)).astype("float32"))

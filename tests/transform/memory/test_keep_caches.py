# SPDX-License-Identifier: Apache-2.0
"""Caches in all forms, at random, beside ONNX Runtime: what is found, what is written, and what is refused."""

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from cache_updates import FORMS, Update, drawn, expected
from module_lines import module_lines
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.ir.cache_rows import Cache, caches_of
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.kernel import CACHE_AXIS
from smartmem_tvm.ir.walk import stores
from smartmem_tvm.transform import KeepCaches, WriteInPlace

SIMPLE = Update("where", (1, 3, 4, 2), 2, 1)


def ran(mod, arrays):
    """Return the outputs, and the inputs after the run."""
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    given = [tvm.runtime.tensor(each) for each in arrays.values()]
    return [each.numpy() for each in machine["main"](*given)], [each.numpy() for each in given]


def test_before_and_after():
    kept = KeepCaches()(from_onnx(SIMPLE.model()))
    assert caches_of(kept["main"]) == [Cache(input=0, output=1, name="past", axis=2)]
    assert "present = call write_rows(past, new, present_0)" in module_lines(kept)
    written = module_lines(WriteInPlace()(kept))
    assert "present = call_tir_inplace(write_rows1, (past, new, present_0))" in written
    assert "where(" not in written and "call write_rows" not in written


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(4))
def test_forms_at_random(form, seed):
    random = np.random.default_rng([seed, FORMS.index(form)])
    update = drawn(form, random)
    model, arrays = update.model(), update.inputs(random)
    kept = KeepCaches()(from_onnx(model))
    (cache,) = caches_of(kept["main"])
    assert (cache.input, cache.output, cache.axis) == (0, 1, update.axis), update
    lines = update.shape[0] if update.own or update.form in ("where", "where-not", "tensor", "circular") else 1
    assert cache.sequences == (lines if update.axis else 1), update
    want = expected(model, arrays)
    for mod, in_place in ((kept, False), (WriteInPlace()(kept), True)):
        got, after = ran(mod, arrays)
        np.testing.assert_array_equal(got[1], want[1])
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(after[0], want[1] if in_place else arrays["past"])


def test_a_run_stores_the_new_rows_and_nothing_else():
    """One store in the kernel, in loops over the new rows: their numbers are what a token writes."""
    update = Update("elements", (1, 4, 256, 64), 2, 1)
    mod = WriteInPlace()(KeepCaches()(from_onnx(update.model())))
    (kernel,) = [func for func in mod.functions.values() if CACHE_AXIS in (func.attrs or {})]
    assert len(stores(kernel.body)) == 1
    points, body = 1, kernel.body.block.body
    while isinstance(body, tvm.tirx.For):
        points, body = points * int(body.extent), body.body
    assert points == update.new_numbers == 4 * 64


@pytest.mark.parametrize("row", (4, -5, 2**40))
def test_a_row_that_is_not_in_the_cache_is_left_out(row):
    arrays = {**SIMPLE.inputs(np.random.default_rng(0)), "rows": np.array([[row]])}
    mod = WriteInPlace()(KeepCaches()(from_onnx(SIMPLE.model())))
    _, after = ran(mod, arrays)
    np.testing.assert_array_equal(after[0], arrays["past"])


def another_reader():
    node = helper.make_node("ReduceMax", ["past"], ["most"], keepdims=0)
    return from_onnx(SIMPLE.model((node,), ("most",)))


def test_an_input_that_is_read_besides_is_no_cache():
    mod = another_reader()
    kept = KeepCaches()(mod)
    assert not caches_of(kept["main"]) and "write_rows" not in module_lines(kept)
    assert "another operator reads it" in read_log(kept)[-1]["reason"]
    with pytest.raises(UserError, match="Input 'past' cannot be a cache, as another operator reads it"):
        KeepCaches({"past": "present"})(mod)


def test_pairs_are_checked():
    mod = from_onnx(SIMPLE.model())
    for pairs, words in (
        ({"pasd": "present"}, "no input 'pasd'"),
        ({"past": "presents"}, "no output 'presents'"),
        ({"new": "present"}, "Output 'present' is not input 'new' with new rows"),
        ({"past": "total"}, "Output 'total' is not input 'past' with new rows"),
    ):
        with pytest.raises(UserError, match=words):
            KeepCaches(pairs)(mod)


def test_what_is_no_write_of_rows_stays():
    """Numbers that do not count, another axis, and a sum: none of them may become a cache."""
    wrong = SIMPLE.model()
    counted = next(each for each in wrong.graph.initializer if list(each.dims) == [1, 1, 4, 1])
    counted.raw_data = np.array([0, 1, 3, 2]).tobytes()
    added = Update("elements", (1, 3, 4, 2), 2, 2).model()
    next(each for each in added.graph.node if each.op_type == "ScatterElements").attribute.append(
        helper.make_attribute("reduction", "add")
    )
    for model in (wrong, added):
        assert not caches_of(KeepCaches()(from_onnx(model))["main"])

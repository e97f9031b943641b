# SPDX-License-Identifier: Apache-2.0
"""Scheduled kernels that write rows, through `run` and through bound buffers, beside ONNX Runtime."""

import numpy as np
import pytest
import tvm

import smartmem_tvm as sm
from cache_updates import Update, drawn, expected
from smartmem_tvm import UserError
from smartmem_tvm.deploy.caches import CachePlan, CacheTensor, HeldCaches


@pytest.mark.parametrize("form", ("where", "elements", "coordinates", "circular"))
def test_scheduled_kernels_write_rows_and_nothing_else(form):
    random = np.random.default_rng([7, len(form)])
    update = drawn(form, random)
    compiled = sm.compile(sm.from_onnx(update.model()), options=sm.Options(caches=True))
    session, past = compiled.session(), random.standard_normal(update.shape).astype("float32")
    session.vm.caches.put("past", past)
    for _ in range(3):
        arrays = {**update.inputs(random), "past": past}
        total, past = expected(update.model(), arrays)
        (found,) = session.run(arrays["new"], arrays["rows"])
        np.testing.assert_allclose(found, total, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(session.caches["past"].numpy(), past)
    assert not compiled.caches_now["past"].any()  # another session has caches of its own


def test_bound_buffers_write_into_the_session_s_caches():
    update = Update("where", (1, 3, 8, 4), 2, 1)
    session = sm.compile(sm.from_onnx(update.model()), options=sm.Options(caches={"past": "present"})).session()
    place = session.caches["past"].data_ptr()
    new, rows = np.ones((1, 3, 1, 4), "float32"), np.array([[5]])
    bound = session.bind({"new": new, "rows": rows})
    for row in (5, 0, 7):
        rows[:] = row
        bound.run()
    held = session.caches["past"].numpy()
    assert np.flatnonzero(held.any((0, 1, 3))).tolist() == [0, 5, 7] and held.sum() == 3 * 12
    assert session.caches["past"].data_ptr() == place
    with pytest.raises(UserError, match="no cache 'passed': its caches are 'past'"):
        session.vm.caches.put("passed", held)


def test_caches_of_any_types_lie_beside_each_other():
    """On a CPU, in one block: aligned as kernels need it, zeros at first, and none writes into another one."""
    kinds = {"a": ((1, 3, 5), "float32"), "b": ((7,), "float16"), "c": ((2, 9), "bfloat16"), "d": ((1,), "int8")}
    plan = CachePlan({}, {name: CacheTensor(*each) for name, each in kinds.items()})
    held, other = HeldCaches(plan, tvm.cpu()), HeldCaches(plan, tvm.cpu())
    for number, (name, (shape, dtype)) in enumerate(kinds.items(), 1):
        tensor = held.tensors[name]
        assert (tuple(tensor.shape), str(tensor.dtype)) == (shape, dtype) and not tensor.data_ptr() % 64
        assert not tensor.numpy().any()
        held.put(name, np.full(shape, number, dtype))
    for number, name in enumerate(kinds, 1):
        assert (held.tensors[name].numpy() == number).all() and not other.tensors[name].numpy().any()


@pytest.mark.parametrize("count", (1, 2))
def test_without_caches_a_tensor_scatter_is_a_function_of_its_inputs(count):
    """Of one row the place is known, and what computes it for several is read by nothing once it is absorbed."""
    update = Update("tensor", (2, 3, 5, 4), 2, count)
    compiled, random = sm.compile(sm.from_onnx(update.model())), np.random.default_rng(count)
    arrays = update.inputs(random)
    for _ in range(2):
        found = compiled.run(arrays)
        for ours, theirs in zip(found, expected(update.model(), arrays), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

# SPDX-License-Identifier: Apache-2.0
"""GatherRows: an embedding reads its rows from the file, once for all of its readers, and the numbers are the same."""

import numpy as np
import pytest
import tvm
from tvm import relax

from helpers import constant, op
from smartmem_tvm import Options, compile
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.sizes import ROWS

ROWS_OF_TABLE, WIDTH = 500, 64
TABLE = np.random.default_rng(7).standard_normal((ROWS_OF_TABLE, WIDTH)).astype("float32")


def model(build, shape, dtype="int64"):
    builder, ids = relax.BlockBuilder(), relax.Var("ids", relax.TensorType(shape, dtype))
    with builder.function("main", [ids], attrs={"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(build(ids)))
        builder.emit_func_output(out)
    return builder.get()


def take(ids, axis=0):
    return op.take(relax.const(TABLE), ids, axis=axis, mode="wrap")


def embedding(ids):
    return take(ids)


def normed(ids):
    return op.nn.layer_norm(op.add(take(ids), constant(6, WIDTH)), constant(WIDTH), constant(WIDTH), axes=[-1])


def read_twice(ids):
    """The residual: in front of the norm and behind a matmul."""
    x = take(ids)
    y = op.matmul(op.nn.layer_norm(x, constant(WIDTH), constant(WIDTH), axes=[-1]), constant(WIDTH, WIDTH))
    return op.add(x, y)


def by_a_sum(ids):
    return take(op.add(ids, relax.const(3, "int64")))


def columns(ids):
    return op.take(relax.const(np.ascontiguousarray(TABLE.T)), ids, axis=1, mode="wrap")


CASES = [
    (embedding, (2, 6)),
    (embedding, (1,)),
    (normed, (6,)),
    (normed, (3, 6)),
    (read_twice, (1, 6)),
    (by_a_sum, (7,)),
]


@pytest.mark.parametrize(("build", "shape"), CASES)
def test_same_numbers_and_no_table_in_memory(build, shape):
    mod = model(build, shape)
    ids = np.random.default_rng(0).integers(0, ROWS_OF_TABLE - 3, shape)
    (expected,) = compile(mod).run(ids)
    compiled = compile(mod, options=Options(memory_budget=60_000))
    for _ in range(2):
        np.testing.assert_array_equal(compiled.run(ids)[0], expected)
    steps = [step["kernel"] for step in compiled.weight_streams["main"]["steps"]]
    assert steps.count(ROWS) == 1, "both readers share the rows"
    assert compiled.vm.memory_plan.bytes < TABLE.nbytes
    assert [entry["action"] for entry in read_log(compiled.graph) if entry["pass"] == "GatherRows"] == [
        "rows are read alone"
    ]


def test_columns_are_no_rows():
    mod = model(columns, (6,))
    ids = np.arange(6)
    compiled = compile(mod, options=Options(memory_budget=10**6))
    np.testing.assert_array_equal(compiled.run(ids)[0], TABLE.T[:, ids])
    assert ROWS not in [step["kernel"] for step in compiled.weight_streams["main"]["steps"]]


def test_other_types_of_indices():
    ids = np.array([3, 1, 4, 1, 5, 9], "int32")
    compiled = compile(model(normed, (6,), "int32"), options=Options(memory_budget=60_000))
    np.testing.assert_array_equal(compiled.run(ids)[0], compile(model(normed, (6,), "int32")).run(ids)[0])
    assert ROWS in [step["kernel"] for step in compiled.weight_streams["main"]["steps"]]


def test_a_file_that_ends_within_the_table_is_an_error(tmp_path):
    from smartmem_tvm.deploy.stream_library import functions

    path = tmp_path / "weights.bin"
    path.write_bytes(TABLE.tobytes())
    call = functions()
    stream = call.open(str(path), TABLE.nbytes)
    call.plan(stream, 64, [], [], [], 1000)
    call.begin(stream)
    out = tvm.runtime.empty((2, WIDTH), "float32")
    call.rows(stream, 0, ROWS_OF_TABLE, tvm.runtime.tensor(np.array([499, 0])), out)
    np.testing.assert_array_equal(out.numpy(), TABLE[[499, 0]])
    with pytest.raises(RuntimeError, match=r"weights\.bin end"):
        call.rows(stream, 0, ROWS_OF_TABLE + 1, tvm.runtime.tensor(np.array([500, 0])), out)
    for wrong in (-1, ROWS_OF_TABLE):
        with pytest.raises(ValueError, match="of a table that has 500"):
            call.rows(stream, 0, ROWS_OF_TABLE, tvm.runtime.tensor(np.array([0, wrong])), out)

# SPDX-License-Identifier: Apache-2.0
"""Element-wise and data-movement kernels on a grid of threads against numpy."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import te, tirx, topi

from gpu_rule_checks import TARGET, check, kernels, scheduled
from smartmem_tvm.ir.index_map import variables
from smartmem_tvm.ir.walk import collect, loads
from smartmem_tvm.schedule.gpu.elementwise import GpuElementwise
from smartmem_tvm.schedule.gpu.launch import GpuParams
from smartmem_tvm.target import Limits, parse_target

VECTORS = GpuParams.of(replace(Limits.of(TARGET), vector=4))
EITHER = pytest.mark.parametrize("params", [None, VECTORS], ids=["scalars", "vectors"])


def tensor(*shape, dtype="float32", name="x"):
    return te.placeholder(shape, dtype, name=name)


@pytest.mark.each_value
@EITHER
@pytest.mark.parametrize("shape", [(1,), (7,), (64, 96), (5, 7, 3), (1000, 1001), (1000, 1004)])
def test_a_chain_is_one_kernel(shape, params):
    x = tensor(*shape)
    output = topi.nn.relu(topi.tanh(x) + x)
    source = check(GpuElementwise, [x], output, lambda x: np.maximum(np.tanh(x) + x, 0), params)
    assert kernels(source) == 1


@EITHER
def test_a_transpose(params):
    x = tensor(5, 8, 12)
    output = topi.transpose(topi.exp(x), (2, 0, 1))
    source = check(GpuElementwise, [x], output, lambda x: np.exp(x).transpose(2, 0, 1), params)
    # what it reads does not lie along what it writes
    assert "vload4" not in source and "const __global float4*" not in source


@pytest.mark.parametrize("where", [0, 1])
def test_a_bias_goes_in_vectors(where):
    """Along the vector, or the same for all of it."""
    shape = (2, 6, 8, 8)
    x, b = tensor(*shape), tensor(6 if where == 0 else 8, name="b")
    output = te.compute(shape, lambda n, c, h, w: x[n, c, h, w] * b[c if where == 0 else w])
    broad = (None, slice(None), None, None) if where == 0 else (slice(None),)
    assert "const __global float4*" in check(GpuElementwise, [x, b], output, lambda x, b: x * b[broad], VECTORS)


@EITHER
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gather(dtype, params):
    x, ids = tensor(9, 20), tensor(33, dtype=dtype, name="i")
    output = te.compute((33, 20), lambda i, j: x[ids[i], j])
    check(GpuElementwise, [x, ids], output, lambda x, i: x[i], params)


@EITHER
def test_concatenation_and_padding(params):
    x, y = tensor(3, 8), tensor(3, 12, name="y")
    output = topi.nn.pad(topi.concatenate([x, y], 1), [0, 2], [0, 2])
    check(GpuElementwise, [x, y], output, lambda x, y: np.pad(np.hstack([x, y]), ((0, 0), (2, 2))), params)


def test_threads_follow_the_writer():
    """The result is scattered by its own order of loops, and written in the order in which it lies in memory."""
    x = tensor(40, 30)
    output = te.compute((40, 30), lambda i, j: x[i, j] * 2)
    source = check(GpuElementwise, [x], output, lambda x: x * 2)
    assert "compute_ptr[(((convert_int(get_group_id(0))) * 256) + (convert_int(get_local_id(0))))]" in source


def test_reductions_are_left_to_others():
    x = tensor(4, 5)
    assert scheduled(GpuElementwise(), [x], topi.sum(x, 1)) is None


@pytest.mark.parametrize("gate", [(8, 32, 1, 1), (8, 1, 56, 56)])
def test_what_a_vector_has_in_common_is_read_once(gate):
    """Vectors of eight halves of an image, and one number for each of its channels."""
    image = te.placeholder((8, 32, 56, 56), "float16", "image")
    gates = te.placeholder(gate, "float16", "gates")
    func = te.create_prim_func([image, gates, topi.multiply(image, gates)])
    cuda = parse_target("cuda")
    limits = replace(Limits.of(cuda), processors=1)
    nest = GpuElementwise(GpuParams.of(limits)).apply(func, cuda).mod["main"]
    (lanes,) = [loop for loop in collect(nest.body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
    assert int(lanes.extent) == 8
    (read,) = [load for load in loads(lanes) if load.source.name == "gates"]
    assert (lanes.loop_var in variables(list(read.indices))) == (gate[1] == 1)

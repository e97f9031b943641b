# SPDX-License-Identifier: Apache-2.0
"""Weights in textures: right, read in whole texels, and carried to the device by a folder."""

import numpy as np
import pytest
from tvm import relax

import smartmem_tvm
from helpers import legalize, module, random, run
from opencl_parser import parse_kernels, sources
from opencl_reads import texel_reads, why_partial
from opencl_rules import check_opencl
from smartmem_tvm.deploy.export import load, save
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.transform.layout.place_textures.place_textures import SCOPE
from smartmem_tvm.tvm_mends.check_images import planned_memory
from texture_modules import TARGET
from texture_operators import ALONE, IMAGE, ROWS, conv, dense, images, matrices, weight

op, nn = relax.op, relax.op.nn


def of_primes(x):
    hidden = nn.relu(dense(x, 16, 13) + weight(13, terms=1))
    return dense(dense(hidden, 13, 17) + weight(17, terms=1, seed=3), 17, 20)


def read_twice(x):
    shared = weight(16, 16, terms=16)
    return op.matmul(nn.relu(op.matmul(x, shared)), shared)


def last_channels(x):
    """Between two convolutions, because no channels of 7 are written to a buffer in whole texels."""
    return dense(op.permute_dims(x, [0, 2, 3, 1]), 7, 8)


CASES = {
    "conv2d and bias": (images(lambda t: conv(t, 8, 12) + weight(12, 1, 1, terms=1), made=12), IMAGE),
    "conv2d of primes": (images(lambda t: conv(nn.relu(conv(t, 8, 7)), 7, 12), made=12), IMAGE),
    "conv2d of 1x1": (images(lambda t: conv(t, 8, 20, 1), made=20), IMAGE),
    "grouped conv2d": (images(lambda t: conv(t, 24, 24, groups=2), 24), IMAGE),
    "depthwise conv2d": (images(lambda t: conv(t, 8, 8, 5, groups=8)), IMAGE),
    "depthwise conv2d of 7 channels": (lambda x: last_channels(conv(conv(x, 8, 7), 7, 7, groups=7)), IMAGE),
    "matmul, bias and GELU": (matrices(lambda t: nn.gelu(dense(t, 16, 40) + weight(40, terms=1)), 40), ROWS),
    "matmul of primes": (of_primes, ROWS),
    "batched matmul": (matrices(lambda t: op.matmul(t, weight(2, 16, 12, terms=16)), 12), ROWS),
    "one weight of two matmuls": (read_twice, ROWS),
    "a row of one batch": (matrices(lambda t: t * weight(1, 1, 16, terms=1)), ROWS),
    "layer norm": (matrices(lambda t: nn.layer_norm(t, weight(16, terms=1), weight(16, terms=1), [-1])), ROWS),
}


@pytest.mark.device
@pytest.mark.parametrize("name", CASES)
def test_weights_are_read_as_textures(name):
    build, shape = CASES[name]
    mod, arrays = module(build, shape), random(shape)
    made = smartmem_tvm.compile(mod, TARGET)
    for found, expected in zip(made.run(*arrays), run(legalize(mod), *arrays), strict=True):
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    log = [entry for entry in read_log(made.graph) if entry.get("kind") == "weight"]
    assert log and all(entry["memory"] == "texture" for entry in log)
    assert check_opencl(made.executable, planned_memory(made.graph)) == made.texel_reads
    assert reads_of_weights(made) and not any(map(str, filter(None, reads_of_weights(made))))


def reads_of_weights(made):
    """Why a read of a constant, which keeps the name that TVM gave it, takes less than a texel: None if it does not."""
    kernels = [kernel for source in sources(made.executable) for kernel in parse_kernels(source)]
    reads = [(kernel, read) for kernel in kernels for read in texel_reads(kernel)]
    return [why_partial(kernel, read) for kernel, read in reads if read.use.image.startswith(("B_ptr", "C_ptr"))]


def test_rows_are_gathered_from_a_table():
    def build(ids):
        return dense(nn.relu(op.take(weight(21, 16, terms=1), ids, 0)), 16, 8)

    mod = module(build, ((2, 3), "int64"))
    ids = np.array([[3, 20, 0], [7, 7, 1]])
    made = smartmem_tvm.compile(mod, TARGET, ALONE)
    np.testing.assert_allclose(made.run(ids)[0], run(legalize(mod), ids)[0], rtol=1e-4, atol=1e-5)
    assert check_opencl(made.executable, planned_memory(made.graph)) == made.texel_reads
    table, *_ = [entry for entry in read_log(made.graph) if entry.get("kind") == "weight"]
    assert table["memory"] == "texture" and table["texel"] == 1


@pytest.fixture(scope="module")
def large():
    """Three weights, of which those in textures are not in the library, however small."""
    mod = module(lambda x: dense(nn.gelu(dense(x, 200, 301) + weight(301, terms=1)), 301, 200), (5, 200))
    return mod, smartmem_tvm.compile(mod, TARGET)


def test_a_folder_says_which_weight_goes_to_which_memory(large, tmp_path):
    mod, compiled = large
    facts = {"inputs": [{"name": "x", "shape": [5, 200], "dtype": "float32"}], "outputs": ["y"]}
    manifest = save(compiled, tmp_path / "out", facts, {})
    assert [each["scope"] for each in manifest["weights"]] == [SCOPE] * 3
    assert all(each["shape"][-1] == 4 for each in manifest["weights"])
    (x,) = random((5, 200))
    (found,) = load(tmp_path / "out").run(x)
    np.testing.assert_array_equal(found, compiled.run(x)[0])
    np.testing.assert_allclose(found, run(legalize(mod), x)[0], rtol=1e-3, atol=1e-4)


def test_the_log_counts_memory(large):
    entries = {tuple(entry["shape"]): entry for entry in read_log(large[1].graph) if entry.get("kind") == "weight"}
    first = entries[76, 200, 4]  # 301 columns, three of them padding
    assert first["bytes"] == 4 * 200 * 304 and first["padding"] == 4 * 200 * 3

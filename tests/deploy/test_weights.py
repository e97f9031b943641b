# SPDX-License-Identifier: Apache-2.0
"""Weights beside the code: lifted out of a module, written, mapped, handed to ``main`` again."""

import numpy as np
import pytest
import tvm
from tvm import relax

import smartmem_tvm
from helpers import constant, module, op, random
from smartmem_tvm.deploy import weights
from smartmem_tvm.deploy.export import load, save
from smartmem_tvm.errors import UserError
from smartmem_tvm.runtime.launches import count_launches
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform.layout.check_textures import SCOPES

MANIFEST = {"inputs": [{"name": "x", "shape": [5, 200], "dtype": "float32"}], "outputs": ["y"]}


@pytest.fixture(scope="module")
def compiled():
    """Return (x w) wt + bias: one weight read as it is, one transposed, one too small to be lifted."""
    weight = constant(200, 300)
    mod = module(lambda x: op.add(op.matmul(op.matmul(x, weight), op.permute_dims(weight)), constant(200)), (5, 200))
    return smartmem_tvm.compile(mod)


def expected(x):
    weight = constant(200, 300).value.numpy()
    return x @ weight @ weight.T + constant(200).value.numpy()


def test_large_constants_are_arguments_and_small_ones_are_not(compiled):
    sizes = {tuple(map(int, weight.tensor.shape)) for weight in compiled.weights}
    assert sizes and all(np.prod(size) * 4 > weights.LARGE for size in sizes)
    (x,) = random((5, 200))
    (got,) = compiled.run(x)
    np.testing.assert_allclose(got, expected(x), rtol=1e-4, atol=1e-4)
    assert count_launches(compiled, [x]).total() == 2


def test_lifting_leaves_its_input_alone_and_takes_each_tensor_once():
    weight = constant(200, 300)
    mod = module(lambda x: op.add(op.add(x, weight), op.nn.relu(weight)), (200, 300))
    lifted, values = weights.lift_weights(mod)
    assert (len(mod["main"].params), len(lifted["main"].params), len(values)) == (1, 2, 1)
    assert values[0].tensor.same_as(weight.value) and values[0].scope == "global"
    machine = weights.Machine(tvm.relax.build(lifted, "llvm"), values)
    (x,) = random((200, 300))
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, x + weight.value.numpy() + np.maximum(weight.value.numpy(), 0), rtol=1e-5)


def test_equal_tensors_are_one_and_others_of_their_shape_are_not():
    weight, equal = constant(200, 300), constant(200, 300)
    other, bits = weight.value.numpy().copy(), relax.const(weight.value.numpy().view("int32"))
    other[-1, -1] += 1
    added = lambda x: op.add(op.add(op.add(x, weight), op.nn.relu(equal)), relax.const(other))  # noqa: E731
    mod = module(lambda x: op.add(added(x), op.astype(bits, "float32")), (200, 300))
    lifted, values = weights.lift_weights(mod)
    assert (len(lifted["main"].params), len(values)) == (4, 3)
    (x,) = random((200, 300))
    got = weights.Machine(tvm.relax.build(lifted, "llvm"), values)["main"](tvm.runtime.tensor(x)).numpy()
    first = weight.value.numpy()
    want = x + first + np.maximum(first, 0) + other + first.view("int32").astype("float32")
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_steps_that_multiply_by_one_matrix_keep_it_once():
    """Each step's kernel packs it anew; 40 steps of one recurrence kept 276 MB for a file of 19."""
    weight = relax.const(constant(300, 300).value.numpy() / 20)

    def steps(x):
        for _ in range(4):
            x = op.tanh(op.matmul(x, op.permute_dims(weight)))
        return x

    compiled = smartmem_tvm.compile(module(steps, (1, 300)))
    assert [np.prod(each.tensor.shape) >= 90_000 for each in compiled.weights] == [True]
    (x,) = random((1, 300))
    want = x
    for _ in range(4):
        want = np.tanh(want @ weight.value.numpy().T)
    np.testing.assert_allclose(compiled.run(x)[0], want, rtol=1e-4, atol=1e-5)


def test_without_large_constants_the_module_is_returned():
    mod = module(lambda x: op.add(x, constant(3)), (2, 3))
    lifted, values = weights.lift_weights(mod)
    assert lifted.same_as(mod) and values == []


def test_every_constant_in_a_texture_is_lifted_and_the_export_says_nothing(tmp_path, capfd):
    kernel, shift = constant(8, 8, 3, 3), constant(8, 1, 1)
    mod = module(lambda x: op.add(op.nn.conv2d(x, kernel), shift), (1, 8, 6, 6))
    compiled = smartmem_tvm.compile(mod, parse_target("opencl-texture"))
    assert sorted(weight.scope for weight in compiled.weights) == ["global", "global.texture"]  # the shift too
    assert all(weight.nbytes < weights.LARGE for weight in compiled.weights)
    inputs = [{"name": "x", "shape": [1, 8, 6, 6], "dtype": "float32"}]
    save(compiled, tmp_path / "out", MANIFEST | {"inputs": inputs}, {})
    assert capfd.readouterr().err == ""
    (x,) = random((1, 8, 6, 6))
    np.testing.assert_array_equal(load(tmp_path / "out").run(x)[0], compiled.run(x)[0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool"])
def test_written_weights_are_mapped_aligned(tmp_path, dtype):
    arrays = [np.arange(size).astype(dtype).reshape(shape) for size, shape in ((7, (7,)), (6, (1, 2, 3)), (1, ()))]
    given = [weights.Weight(tvm.runtime.tensor(array), scope) for scope, array in zip(("global", *SCOPES), arrays)]
    places = weights.write_weights(given, tmp_path / "w.bin")
    for weight, each, array in zip(weights.map_weights(tmp_path / "w.bin", places), given, arrays, strict=True):
        assert np.from_dlpack(weight.tensor).ctypes.data % 64 == 0
        assert weight.scope == each.scope
        np.testing.assert_array_equal(weight.tensor.numpy(), array)


@pytest.mark.parametrize("block", [1, 64, 100, 1 << 12])
def test_weights_are_written_in_blocks(tmp_path, monkeypatch, block):
    """The file is the same for any size of block, also with empty weights and those that end with a block."""
    random = np.random.default_rng(block)
    monkeypatch.setattr(weights, "_BLOCK", block)
    counts = [0, 64 // 4, 25, 1, *random.integers(0, 300, 6)]
    given = [weights.Weight(tvm.runtime.tensor(random.standard_normal(count).astype("float32"))) for count in counts]
    places = weights.write_weights(given, tmp_path / "w.bin")
    content, end = (tmp_path / "w.bin").read_bytes(), 0
    for place, each in zip(places, given, strict=True):
        assert place["offset"] == end + -end % 64 and not any(content[end : place["offset"]])
        end = place["offset"] + each.nbytes
        assert content[place["offset"] : end] == each.tensor.numpy().tobytes()
    assert end == len(content)


def test_a_folder_holds_the_weights_once_and_computes_the_same(compiled, tmp_path):
    manifest = save(compiled, tmp_path / "out", MANIFEST, {})
    size = sum(np.prod(each["shape"]) * 4 for each in manifest["weights"])
    assert (tmp_path / "out" / "weights.bin").stat().st_size == size
    (x,) = random((5, 200))
    np.testing.assert_array_equal(load(tmp_path / "out").run(x)[0], compiled.run(x)[0])


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-4])])
def test_a_folder_with_other_weights_is_refused(compiled, tmp_path, damage):
    save(compiled, tmp_path / "out", MANIFEST, {})
    damage(tmp_path / "out" / "weights.bin")
    with pytest.raises(UserError, match=r"weights\.bin is missing or not the one that was compiled"):
        load(tmp_path / "out")

# SPDX-License-Identifier: Apache-2.0
"""``relax_pipeline="smartmem"`` on modules with symbolic dimensions: right for any size, in kernels of known ones."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

import smartmem_tvm as sm
from helpers import constant, module, random
from smartmem_tvm.frontend.relax_module import UPPER, opened_module
from smartmem_tvm.ir.several_sizes import tile_groups
from smartmem_tvm.target import host_target, parse_target

N = tirx.Var("n", "int64")


def emit(value):
    return relax.BlockBuilder.current().emit(value)


def linear(x, inner, outer, seed=1):
    return emit(op.add(op.matmul(x, constant(inner, outer, seed=seed)), constant(outer, seed=seed + 9)))


def mlp(x):
    return op.nn.softmax(linear(emit(op.nn.relu(linear(x, 8, 16))), 16, 4))


def attention(x):
    def heads(seed):
        return emit(op.permute_dims(op.reshape(linear(x, 8, 8, seed), (1, N, 2, 4)), [0, 2, 1, 3]))

    scores = op.matmul(heads(1), op.permute_dims(heads(2), [0, 1, 3, 2]))
    mixed = op.matmul(op.nn.softmax(op.multiply(scores, relax.const(0.5, "float32"))), heads(3))
    mixed = emit(op.reshape(op.permute_dims(mixed, [0, 2, 1, 3]), (1, N, 8)))
    return op.nn.layer_norm(emit(op.add(linear(mixed, 8, 8, 4), x)), constant(8), constant(8, seed=3), axes=[-1])


def convolutions(x):
    x = emit(op.nn.relu(op.add(op.nn.conv2d(x, constant(4, 3, 3, 3), padding=1), constant(1, 4, 1, 1))))
    x = emit(op.mean(op.nn.max_pool2d(x, pool_size=(2, 2), strides=(2, 2)), axis=[2, 3]))
    return op.matmul(op.reshape(x, (N, 4)), constant(4, 5))


def texts(x):
    """A convolution with a stride over a width, and attention over what is left of it."""
    x = emit(op.nn.conv1d(x, constant(8, 3, 3), strides=2, padding=1))
    return attention_over(emit(op.permute_dims(x, [0, 2, 1])))


def attention_over(x):
    scores = op.matmul(x, op.permute_dims(x, [0, 2, 1]))
    return op.matmul(op.nn.softmax(scores), x), op.mean(x, axis=[1])


NETWORKS = {
    "rows": (mlp, (N, 8), None, (1, 3, 64, 65, 131)),
    "length": (attention, (1, N, 8), 6, (1, 5, 6)),
    "images": (convolutions, (N, 3, 6, 6), None, (1, 5)),
    "stride": (texts, (1, 3, N), 9, (1, 2, 7, 8, 9)),
}


def bounded(build, shape, bound):
    mod = module(build, shape)
    if bound is not None:
        mod["main"] = mod["main"].with_attr(UPPER, {"n": bound})
    return mod


def machine(mod, target=None):
    return relax.VirtualMachine(tvm.compile(mod, target or host_target(), relax_pipeline="smartmem"), tvm.cpu())


def arrays(found):
    return [each.numpy() for each in found] if isinstance(found, tvm.ir.Array) else [found.numpy()]


_LONG = ("rows", "images")  # a dozen tiles, and convolutions


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.device] if each in _LONG else []) for each in NETWORKS]
)
def test_any_size_is_right(name, caplog):
    build, shape, bound, sizes = NETWORKS[name]
    ours = machine(bounded(build, shape, bound))
    assert not caplog.messages
    tvms = relax.VirtualMachine(tvm.compile(module(build, shape), "llvm"), tvm.cpu())
    for size in sizes:
        (x,) = random(tuple(size if dim is N else dim for dim in shape))
        results = (arrays(each["main"](tvm.runtime.tensor(x))) for each in (ours, tvms))
        for found, wanted in zip(*results, strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    if bound is not None:
        (x,) = random(tuple(bound + 1 if dim is N else dim for dim in shape))
        with pytest.raises(RuntimeError, match=f"{bound + 1} vs. {bound}"):
            ours["main"](tvm.runtime.tensor(x))


@pytest.mark.device
def test_an_open_batch_with_a_length():
    batch = tirx.Var("b", "int64")
    ours = machine(bounded(attention_over, (batch, N, 4), 6))
    for shape in ((1, 6, 4), (3, 5, 4), (7, 1, 4)):
        (x,) = random(shape)
        scores = np.exp(x @ x.transpose(0, 2, 1))
        wanted = scores / scores.sum(-1, keepdims=True) @ x, x.mean(1, keepdims=False)
        for found, each in zip(arrays(ours["main"](tvm.runtime.tensor(x))), wanted, strict=True):
            np.testing.assert_allclose(found, each, rtol=1e-4, atol=1e-5)


def test_kernels_are_those_of_known_sizes():
    (group,) = tile_groups(opened_module(bounded(attention, (1, N, 8), 12)).module)
    assert [each["items"] for each in group["tiles"]] == [1, 2, 4, 8, 12] and group["length"]


LEFT = {
    "a length without a bound": (attention, (1, N, 8), None, "without a bound"),
    "an order that is turned around": (lambda x: op.flip(op.exp(op.cumsum(x, 1)), 1), (1, N), 8, "operator 'flip'"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_does_not_stay_open_is_compiled_by_tvm(name, caplog):
    build, shape, bound, reason = LEFT[name]
    ours = machine(bounded(build, shape, bound))
    (said,) = caplog.messages
    assert said.startswith("TVM's default pipeline compiles this module: ") and reason in said
    tvms = relax.VirtualMachine(tvm.compile(module(build, shape), "llvm"), tvm.cpu())
    (x,) = random(tuple(5 if dim is N else dim for dim in shape))
    found, wanted = (each["main"](tvm.runtime.tensor(x)).numpy() for each in (ours, tvms))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("llvm", {"precision": "half"}, "precision 'half' needs a target that stores half numbers"),
        ("llvm", {"precision": "double"}, "precision 'double' does not exist"),
        ("llvm", {"weights": "int3"}, "weights 'int3' do not exist"),
        ("c", {}, "target kind 'c' has no schedules"),
    ],
)
def test_what_a_target_lacks_is_refused_for_any_size(target, options, words):
    for size in (N, 3):
        with tvm.target.Target(target), pytest.raises(sm.UserError, match=words):
            relax.get_pipeline("smartmem", **options)(module(mlp, (size, 8)))


def test_gpus_are_left_to_tvm(caplog):
    target = parse_target("opencl")
    with target:
        relax.get_pipeline("smartmem")(bounded(mlp, (N, 8), None))
    assert "on CPUs, and the target is 'opencl'" in caplog.text


def test_compile_leaves_symbolic_modules_to_tvm(caplog):
    compiled = sm.compile(bounded(mlp, (N, 8), None), "llvm")
    assert "dimension 'n' of function 'main' is symbolic" in caplog.text
    (x,) = random((3, 8))
    assert compiled.run(x)[0].shape == (3, 4)


def test_sizes_that_only_a_result_has():
    """How many numbers are not zero is known only at run time."""
    found = tirx.Var("found", "int64")

    def build(x):
        places = relax.BlockBuilder.current().match_cast(op.nonzero(x), relax.TensorType((2, found), "int64"))
        return op.exp(op.add(op.astype(places, "float32"), relax.const(1.0)))

    compiled = sm.compile(module(build, (3, 4)), "llvm")
    x = np.eye(3, 4, dtype="float32")
    (result,) = compiled.run(x)
    np.testing.assert_allclose(result, np.exp(np.stack(np.nonzero(x)) + 1.0), rtol=1e-6)

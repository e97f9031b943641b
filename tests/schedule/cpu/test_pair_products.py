# SPDX-License-Identifier: Apache-2.0
"""PairProducts: integers that are multiplied two by two, with the processor's instruction, and those that are not."""

import json

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tvm import relax, te

from against_onnxruntime import integers, model_of
from smartmem_tvm import compile, from_onnx
from smartmem_tvm.schedule import PairProducts, ScheduleKernels
from smartmem_tvm.schedule.schedule_kernels import kernel_plans
from smartmem_tvm.target import parse_target

RANDOM = np.random.default_rng(0)
CPUS = ("skylake-avx512", "haswell", "x86-64")  # with vectors of 16, 8 and 4 pairs
HERE = ("cpu", *CPUS[1:])
"""What runs on this machine: code for itself, and for less."""


def target(cpu: str) -> tvm.target.Target:
    if cpu == "cpu":
        return parse_target(cpu)
    if cpu.startswith("aarch64"):
        features = [f"+{each}" for each in cpu.split("+")[1:]]
        return parse_target(json.dumps({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": features}))
    return parse_target(f'{{"kind": "llvm", "mcpu": "{cpu}", "num-cores": 2}}')


def product(dtype: str, weights: np.ndarray, depth: int = 12, rows: int = 26) -> tvm.IRModule:
    """``main(x)``: x times constant weights, in int32."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((rows, depth), dtype))

    def body(x, w):
        k = te.reduce_axis((0, depth), "k")
        return te.compute(
            (rows, w.shape[1]),
            lambda i, j: te.sum(x[i, k].astype("int32") * w[k, j].astype("int32"), k),
            name="matmul",
        )

    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(body, x, relax.const(weights, str(weights.dtype))))
        builder.emit_func_output(result)
    return builder.get()


def paired(mod: tvm.IRModule, cpu: str) -> tuple[tvm.IRModule, str]:
    """The module after the pass, and its kernel."""
    with target(cpu):
        after = PairProducts()(mod)
    (kernel,) = (func for func in after.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    return after, kernel.script()


def wide(least: int, most: int, shape=(12, 40)) -> np.ndarray:
    found = RANDOM.integers(least, most + 1, shape)
    found[0, :2] = least, most
    return found


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("weights", "kept"),
    [
        (wide(-128, 127).astype("int16"), '"int16"'),
        (wide(-255, 255).astype("int16"), '"int32"'),
        (wide(-128, 127).astype("int8"), '"int16"'),
        (wide(-(1 << 15), (1 << 15) - 1).astype("int32"), '"int32"'),
    ],
)
@pytest.mark.parametrize("cpu", CPUS)
def test_weights_are_pairs_and_vectors_of_them_one_instruction(cpu, weights, kept):
    mod = product("int16", weights)
    after, script = paired(mod, cpu)
    assert f"(T.int64(6), T.int64(40)), {kept})" in script
    with target(cpu):
        scheduled = ScheduleKernels()(after).script()
    assert "pmadd" in scheduled and "T.Broadcast" in scheduled
    x = wide(-(1 << 15), (1 << 15) - 1, (26, 12)).astype("int16")
    want = (x.astype("int64") @ weights).astype("int32")  # goes around, as the sums of ONNX do
    np.testing.assert_array_equal(compile(mod, target("haswell")).run(x)[0], want)


@pytest.mark.parametrize(
    ("cpu", "name"),
    [
        ("haswell", "dot of pairs"),
        ("alderlake", "dot of quads"),
        ("aarch64", "fma"),
        ("aarch64+dotprod", "dot of quads"),
        ("aarch64+dotprod+i8mm", "dot of quads"),
    ],
)
def test_plans_note_the_micro_kernel(cpu, name):
    after, _ = paired(product("uint8", wide(-128, 127).astype("int8")), cpu)
    with target(cpu):
        (plan,) = kernel_plans(ScheduleKernels()(after)).values()
    assert plan["chosen"]["rule"] == "Matmul" and plan["chosen"]["notes"]["micro_kernel"] == {"name": name}


@pytest.mark.parametrize("weights", [wide(-128, 127), wide(-128, 127, (12, 21))])
@pytest.mark.parametrize(("cpu", "lanes"), [("cascadelake", 512), ("alderlake", 256), ("znver5", 512)])
def test_unsigned_and_signed_bytes_are_quads_where_there_is_an_instruction(cpu, lanes, weights):
    mod = product("uint8", weights.astype("int8"))
    after, script = paired(mod, cpu)
    assert f'(T.int64(3), T.int64({weights.shape[1]})), "int32")' in script
    with target(cpu):
        scheduled = ScheduleKernels()(after).script()
    assert f"vpdpbusd.{lanes}" in scheduled
    x = wide(0, 255, (26, 12)).astype("uint8")
    np.testing.assert_array_equal(compile(mod, target("cpu")).run(x)[0], x.astype("int32") @ weights)


@pytest.mark.parametrize(("feature", "instruction"), [("dotprod", "neon.udot"), ("i8mm", "neon.usdot")])
def test_quads_of_arm(feature, instruction):
    after, _ = paired(product("uint8", wide(-128, 127).astype("int8")), f"aarch64+{feature}")
    with target(f"aarch64+{feature}"):
        assert instruction in ScheduleKernels()(after).script()


@pytest.mark.parametrize(
    ("dtype", "least", "most", "depth"),
    [("int8", -128, 127, 12), ("uint8", -129, 127, 12), ("uint8", -128, 127, 14), ("int16", -128, 127, 12)],
)
def test_what_is_in_pairs_although_there_are_quads(dtype, least, most, depth):
    """Signed bytes on both sides, weights of nine bits, depths of no whole quads, and numbers of 16 bits."""
    _, script = paired(product(dtype, wide(least, most, (depth, 40)).astype("int16"), depth), "cascadelake")
    assert f"(T.int64({depth // 2}), T.int64(40))" in script


@pytest.mark.parametrize(
    ("mod", "cpu"),
    [
        (product("int32", wide(-128, 127).astype("int8")), "haswell"),  # any bits on the left
        (product("int16", wide(-(1 << 15), 1 << 15).astype("int32")), "haswell"),  # and on the right
        (product("int16", wide(-9, 9, (11, 40)).astype("int8"), depth=11), "haswell"),  # an odd number of products
        (product("int16", wide(-128, 127).astype("int8")), "aarch64"),  # no such vectors
    ],
)
def test_what_stays_as_it_is(mod, cpu):
    before = next(f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    assert paired(mod, cpu)[1] == before.script()


def draw(random: np.random.Generator) -> tuple:
    """A MatMulInteger or a ConvInteger: node, inputs, constants."""
    size = lambda: int(random.choice([1, 2, 3, 4, 6, 8, 13, 16, 17, 32, 40]))  # noqa: E731
    left, right = (str(random.choice(["uint8", "int8"])) for _ in range(2))
    if random.random() < 0.5:
        batch = [(), (2,)][random.integers(2)]
        x, w = integers(random, left, (*batch, size(), depth := size())), integers(random, right, (depth, size()))
        names, attributes, op = ["x", "w", "zx", "zw"], {}, "MatMulInteger"
    else:
        left, op, rank = "uint8", "ConvInteger", int(random.integers(1, 4))
        group = int(random.choice([1, 1, 2, 3]))
        kernel, strides = (random.integers(1, 4, rank).tolist() for _ in range(2))
        dilations, pads = random.integers(1, 3, rank).tolist(), random.integers(0, 3, 2 * rank).tolist()
        sizes = [max(int(random.integers(1, 9)), (k - 1) * d + 1) for k, d in zip(kernel, dilations)]
        inside = int(random.choice([1, 2, 3, 4, 8]))
        x = integers(random, left, (int(random.integers(1, 3)), inside * group, *sizes))
        w = integers(random, right, (int(random.choice([1, 2, 5, 16])) * group, inside, *kernel))
        attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "group": group}
        names = ["x", "w", "zx"]
    given = {"zx": integers(random, left), "zw": integers(random, right)}
    constants = {name: given[name] for name in names[2:]}
    both = {"x": x, "w": w}
    inputs = both if op == "MatMulInteger" and random.random() < 0.3 else {"x": x}
    constants |= {name: array for name, array in both.items() if name not in inputs}
    return helper.make_node(op, names, ["y"], **attributes), inputs, constants


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("seed", range(4))
def test_drawn_products(seed, cpu):
    """Of any sizes, among them 1 and primes, both operands data or one a constant, for each kind of processor."""
    node, inputs, constants = draw(np.random.default_rng(100 * HERE.index(cpu) + seed))
    model = model_of([node], inputs, {"y": "int32"}, constants, 21)
    (want,) = ReferenceEvaluator(model).run(None, inputs)  # ONNX Runtime's sums of pairs overflow on CPUs without VNNI
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    shape = model.graph.output[0].type.tensor_type.shape
    shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in want.shape)
    (got,) = compile(from_onnx(model), target(cpu)).run(*inputs.values())
    np.testing.assert_array_equal(got, want)

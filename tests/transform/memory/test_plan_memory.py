# SPDX-License-Identifier: Apache-2.0
"""PlanMemory: one allocation for what lies between kernels, and nothing in it that is needed elsewhere or later."""

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from helpers import constant, legalize, module, op, run
from module_lines import module_lines
from smartmem_tvm.deploy.build import compile
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.planner.arena import Arena, Block, check_arena, lower_bound
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import PlanMemory
from smartmem_tvm.transform.memory import plan_memory

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
OPENCL = tvm.target.Target("opencl", host="llvm")


def rewritten(mod, *more):
    passes = ("ToNonDataflow", "RemovePurityChecking", "CallTIRRewrite", *more)
    return tvm.transform.Sequential([getattr(relax.transform, each)() for each in passes])(mod)


def planned(build, *shapes, target=None):
    return PlanMemory(target)(rewritten(legalize(module(build, *shapes))))


def chain(*widths, first=8):
    """Matmuls with results of these widths."""

    def build(x):
        for before, width in zip((first, *widths), widths):
            x = op.matmul(x, constant(before, width))
        return x

    return build


def calls(mod, name):
    return [call for call in collect(mod["main"], ir.Call) if getattr(call.op, "name", "") == f"relax.{name}"]


def allocations(mod):
    """How many bytes lie in arenas, and how many storages and tensors are left to TVM."""
    sizes = [int(call.args[0].values[0]) for call in calls(mod, "memory.alloc_storage")]
    return sizes, len(calls(mod, "builtin.alloc_tensor"))


def test_before_and_after():
    """The example of the docstring: 100, 200, 100 numbers, and the result, which is the caller's."""
    mod = planned(chain(100, 200, 100, 10), (1, 8))
    lines = module_lines(mod).splitlines()
    assert [line for line in lines if "memory." in line] == [
        'arena = memory.alloc_storage(shape([1280]), 0, str("global"), dtype("uint8"))',
        'alloc_part = memory.alloc_tensor(arena, 832, shape([1, 100]), dtype("float32"), 0)',
        "alloc = memory.ensure_zero_offset(alloc_part)",
        'alloc1 = memory.alloc_tensor(arena, 0, shape([1, 200]), dtype("float32"), 0)',
    ]
    again = [b for b in mod["main"].body.blocks[0].bindings if b.var.name == "alloc2"]
    assert [b.value.name for b in again] == ["alloc"]
    assert len(calls(mod, "builtin.alloc_tensor")) == 1


def test_a_phone_is_left_to_tvm():
    """Its runtime may be TVM's, which does not tell kernels where tensors begin."""
    assert allocations(planned(chain(8, 8, 8), (1, 8), target=parse_target("adreno-740"))) == ([], 3)


def test_opencl_gets_parts_of_a_buffer():
    """Of which one begins where the buffer does."""
    mod = planned(chain(8, 8, 8), (1, 8), target=OPENCL)
    parts = [call for call in collect(mod["main"], ir.Call) if isinstance(call.op, relax.ExternFunc)]
    assert [call.op.global_symbol for call in parts] == ["vm.builtin.smartmem_part"]
    assert allocations(mod) == ([512], 1)


@pytest.mark.parametrize("largest, arenas", [(512, [512]), (511, [])])
def test_an_arena_that_the_device_does_not_allocate_is_left_to_tvm(monkeypatch, caplog, largest, arenas):
    monkeypatch.setattr(plan_memory, "_largest_buffer", lambda: largest)
    sizes, left = allocations(planned(chain(8, 8, 8), (1, 8), target=OPENCL))
    assert (sizes, left) == (arenas, 1 if arenas else 3)
    assert bool(arenas) is not ("left to TVM's planner" in caplog.text)


@pytest.mark.parametrize(("target", "alignment"), [(None, 64), (CUDA, 256), (OPENCL, 256)])
def test_offsets_are_aligned(target, alignment):
    mod = planned(chain(1, 2, 3, 4, 5), (1, 8), target=target)
    offsets = [int(call.args[1]) for call in calls(mod, "memory.alloc_tensor")]
    assert sorted(set(offsets)) == [0, alignment]


def test_kernels_get_no_tensor_that_begins_within_its_data():
    mod = planned(chain(8, 8, 8, 8), (1, 8))
    moved = {call.args[0] for call in calls(mod, "memory.ensure_zero_offset")}
    allocated = [b for b in collect(mod["main"], relax.VarBinding) if b.value in calls(mod, "memory.alloc_tensor")]
    assert moved == {b.var for b in allocated if int(b.value.args[1])} and len(allocated) > len(moved) > 0


def test_what_is_returned_is_the_callers():
    """Also by another name, and in a tuple."""

    def build(x):
        a = op.matmul(x, constant(8, 8))
        b = op.matmul(a, constant(8, 8))
        return op.matmul(b, constant(8, 8)), b

    assert allocations(planned(build, (1, 8))) == ([64], 2)


def test_unknown_shapes_are_left_to_tvm():
    def build(x, y):
        return chain(8, 8, 8)(x), chain(8, 8, 8)(y)

    mod = planned(build, (tvm.tirx.Var("n", "int64"), 8), (1, 8))
    assert allocations(mod) == ([128], 4)
    left = relax.transform.StaticPlanBlockMemory()(mod)
    assert len(calls(left, "memory.alloc_storage")) == 3 and len(calls(left, "builtin.alloc_tensor")) == 2


def test_what_others_than_kernels_use_is_left_to_tvm():
    """A function of a library may keep what it is given, or return a part of it."""

    @I.ir_module
    class Model:
        @R.function
        def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            a = R.tanh(x)
            b = R.tanh(a)
            c = R.call_pure_packed("library.part", b, ty_args=R.Tensor((4, 4), "float32"))
            return R.tanh(c)

    mod = PlanMemory()(rewritten(relax.transform.LegalizeOps()(Model)))
    assert allocations(mod) == ([64], 2)


def test_branches_are_left_to_tvm():
    @I.ir_module
    class Model:
        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
            a = R.tanh(x)
            b = R.tanh(a)
            if c:
                d = R.tanh(R.tanh(b))
                y = d
            else:
                e = R.tanh(b)
                y = e
            return R.tanh(y)

    mod = PlanMemory()(rewritten(relax.transform.LegalizeOps()(Model)))
    # `a`; and not `b`, which the branches read.
    assert allocations(mod)[0] == [64]


def test_what_one_kernel_reads_and_writes_lies_apart():
    mod = planned(lambda x: op.tanh(op.sin(op.cos(op.exp(x)))), (16, 4))
    assert allocations(mod)[0] == [512]


def test_numbers_in_an_arena_are_right():
    """Tensors of many sizes that live long and short, in one allocation, beside each in one of its own."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((8, width)).astype("float32") for width in (8, 40, 72, 16)]
    back = [rng.standard_normal((each.shape[1], 8)).astype("float32") for each in weights]

    def build(x):
        sums = [x]
        for up, down in zip(weights, back):
            hidden = op.nn.softmax(op.matmul(sums[-1], relax.const(up)))
            sums.append(op.nn.softmax(op.add(op.matmul(hidden, relax.const(down)), sums[len(sums) // 2])))
        return op.matmul(op.concat(sums, axis=1), constant(40, 3))

    compiled = compile(module(build, (5, 8)), TARGET)
    plan = compiled.memory
    arena = [each for each in plan["tensors"] if each["storage"] == 0]
    blocks = [Block(each["bytes"], each["first"], each["last"]) for each in arena]
    assert len(arena) == len(plan["tensors"]) - 1 > 6
    size = plan["storages"][0]["bytes"]
    check_arena(blocks, Arena(tuple(each["offset"] for each in arena), size, 0), 64)
    assert size == lower_bound(blocks, 64)
    x = rng.standard_normal((5, 8)).astype("float32")
    (expected,) = run(module(build, (5, 8)), x)
    for _ in range(2):
        np.testing.assert_allclose(compiled.run(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_workspace_is_free_after_its_kernel():
    """It is a further result of the call, beside one that is read later, or returned."""

    @I.ir_module
    class Model:
        @T.prim_func(private=True)
        def both(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32"), part: T.Buffer((64,), "float32")):
            T.func_attr({"tirx.noalias": True})
            for i in range(64):
                part[i] = x[i // 4]
            for i in range(16):
                y[i] = part[i]

        @R.function
        def main(x: R.Tensor((16,), "float32")):
            cls = Model
            with R.dataflow():
                a = R.call_tir(cls.both, (x,), out_ty=[R.Tensor((16,), "float32"), R.Tensor((64,), "float32")])
                b = R.call_tir(cls.both, (a[0],), out_ty=[R.Tensor((16,), "float32"), R.Tensor((64,), "float32")])
                gv = b[0]
                R.output(gv)
            return gv

    assert allocations(PlanMemory()(rewritten(Model))) == ([64 + 256], 1)

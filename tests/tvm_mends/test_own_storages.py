# SPDX-License-Identifier: Apache-2.0
"""OwnStorages: every tensor lies in storage that was allocated on the way to it."""

from textwrap import indent

import pytest
import tvm
from tvm import ir, relax
from tvm.script import from_source

from module_lines import assert_lines
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.tvm_mends import OwnStorages

HEADER = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((18,), "float32"), c: R.Tensor((), "bool"), d: R.Tensor((), "bool")):
"""
STORAGE, TENSOR = (ir.Op.get(f"relax.memory.alloc_{what}") for what in ("storage", "tensor"))
PLAN = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
    ]
)
BRANCHES = """
if c:
    a = R.flip(x, 0)
    b = R.flip(a, 0)
    r = b
else:
    e = R.flip(x, 0)
    f = R.flip(e, 0)
    r = f
g = R.flip(r, 0)
h = R.flip(g, 0)
return h
"""
INNER = """
p = R.flip(x, 0)
q = R.flip(p, 0)
if c:
    if d:
        a = R.flip(x, 0)
        b = R.flip(a, 0)
        s = R.flip(b, 0)
    else:
        e = R.flip(x, 0)
        s = R.flip(e, 0)
    r = R.flip(s, 0)
else:
    f = R.flip(x, 0)
    r = R.flip(f, 0)
return (q, r)
"""


def planned(lines):
    """A function, the memory of which TVM has planned."""
    return PLAN(from_source(HEADER + indent(lines, " " * 8)))


def unseen(mod):
    """Tensors in storage that no binding before them, in their branch or around it, allocates."""
    found = []

    def look(body, seen):
        for binding in (b for block in body.blocks for b in block.bindings):
            value = binding.value
            if isinstance(value, relax.If):
                look(value.true_branch, set(seen))
                look(value.false_branch, set(seen))
            elif isinstance(value, ir.Call) and value.op.same_as(STORAGE):
                seen.add(binding.var)
            elif isinstance(value, ir.Call) and value.op.same_as(TENSOR) and value.args[0] not in seen:
                found.append(binding.var.name)

    look(mod["main"].body, set())
    return found


def storage_of(mod, name):
    """The variable of the storage that the allocation of a name is in."""
    (binding,) = [each for each in collect(mod["main"], relax.VarBinding) if each.var.name == name]
    return binding.value.args[0]


def test_the_second_branch_has_storage_of_its_own():
    mod = planned(BRANCHES)
    assert unseen(mod) == ["alloc2", "alloc4"]  # as TVM leaves it: in the storage of the first branch
    mended = OwnStorages()(mod)
    assert not unseen(mended)
    assert_lines(
        tvm.IRModule({"main": mended["main"]}),
        """
        storage = memory.alloc_storage(shape([72]), 0, str("global"), dtype("float32"))
        alloc = memory.alloc_tensor(storage, 0, shape([18]), dtype("float32"), 0)
        alloc1 = builtin.alloc_tensor(shape([18]), dtype("float32"), 0, str("global"), ty_args=(Tensor((18,), dtype="float32"),))
        storage = memory.alloc_storage(shape([72]), 0, str("global"), dtype("float32"))
        alloc2 = memory.alloc_tensor(storage, 0, shape([18]), dtype("float32"), 0)
        alloc3 = builtin.alloc_tensor(shape([18]), dtype("float32"), 0, str("global"), ty_args=(Tensor((18,), dtype="float32"),))
        storage = memory.alloc_storage(shape([72]), 0, str("global"), dtype("float32"))
        alloc4 = memory.alloc_tensor(storage, 0, shape([18]), dtype("float32"), 0)
        alloc5 = builtin.alloc_tensor(shape([18]), dtype("float32"), 0, str("global"), ty_args=(Tensor((18,), dtype="float32"),))
        """,  # noqa: E501
    )
    assert len({storage_of(mended, name) for name in ("alloc", "alloc2", "alloc4")}) == 3


def test_what_is_allocated_before_is_shared_by_branches_in_branches():
    mod = planned(INNER)
    assert unseen(mod) == ["alloc8"]
    mended = OwnStorages()(mod)
    assert not unseen(mended)
    shared = [storage_of(mended, name) for name in ("alloc", "alloc2", "alloc5")]
    assert shared[0].same_as(shared[1]) and shared[0].same_as(shared[2])
    assert not storage_of(mended, "alloc3").same_as(storage_of(mended, "alloc8"))


@pytest.mark.parametrize(
    "lines", ["a = R.flip(x, 0)\nreturn R.flip(a, 0)", "if c:\n    r = R.flip(x, 0)\nelse:\n    r = x\nreturn r"]
)
def test_what_lacks_nothing_stays(lines):
    mod = planned(lines)
    tvm.ir.assert_structural_equal(OwnStorages()(mod), mod)

# SPDX-License-Identifier: Apache-2.0
"""Which launches use what a lowered function allocates, and which of it a packed function may keep."""

from tvm import relax

from helpers import constant, legalize, module, op
from smartmem_tvm.ir.allocations import allocates, allocations, is_launch, is_packed

PASSES = ("ToNonDataflow", "RemovePurityChecking", "CallTIRRewrite")


def lowered(build, *shapes):
    mod = legalize(module(build, *shapes))
    for each in PASSES:
        mod = getattr(relax.transform, each)()(mod)
    return mod


def values(mod):
    return [getattr(b, "value", None) for block in mod["main"].body.blocks for b in block.bindings]


def test_launches_that_use_a_tensor():
    mod = lowered(lambda x: op.add(op.matmul(op.matmul(x, constant(8, 100)), constant(100, 20)), constant(20)), (1, 8))
    first, second, result = allocations(mod, mod["main"]).values()
    assert [each.steps for each in (first, second, result)] == [[0, 1], [1, 2], [2]]
    assert [each.bytes for each in (first, second, result)] == [400, 80, 80]
    assert [each.fits for each in (first, second, result)] == [True, True, False] and result.escapes
    assert first.place == (0, "global")
    assert sum(map(allocates, values(mod))) == 3 and sum(is_launch(mod, each) for each in values(mod)) == 3


def test_a_packed_function_takes_what_it_likes_unless_it_is_said_to_launch():
    def build(x):
        return op.add(op.call_dps_packed("looked_up", relax.Tuple([op.add(x, x)]), out_ty=x.ty), x)

    mod = lowered(build, (3, 5))
    assert [each.fits for each in allocations(mod, mod["main"]).values()] == [False, False, False]
    given, found, _result = allocations(mod, mod["main"], packed=("looked_up",)).values()
    assert given.fits and found.fits and (given.steps, found.steps) == ([0, 1], [1, 2])
    assert [is_packed(each, "looked_up") for each in values(mod)].count(True) == 1
    assert not any(is_packed(each, "another") for each in values(mod))

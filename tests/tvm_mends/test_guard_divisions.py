# SPDX-License-Identifier: Apache-2.0
"""GuardDivisions: what TVM's lowering reads is what the index says."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import s_tir, tirx

from helpers import legal, op, run
from smartmem_tvm.ir.walk import collect
from smartmem_tvm.transform import EliminateLayout
from smartmem_tvm.tvm_mends import GuardDivisions, guard_divisions


def reader(shape, indices, *extents) -> tvm.IRModule:
    """``out[i...] = x[indices(i...)]`` in plain loops."""
    x, out = tirx.decl_buffer(shape, "float32", "x"), tirx.decl_buffer(extents, "float32", "out")
    loops = [tirx.Var(f"i{n}", "int64") for n in range(len(extents))]
    body = tirx.BufferStore(out, x[tuple(indices(*loops))], loops)
    for var, extent in reversed(list(zip(loops, extents, strict=True))):
        body = tirx.For(var, tirx.const(0, "int64"), tirx.const(extent, "int64"), tirx.ForKind.SERIAL, body)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    func = tirx.PrimFunc([x, out], root).with_attrs({"global_symbol": "main", "s_tir": True})
    return tvm.IRModule({"main": func})


def read(mod: tvm.IRModule, shape, *extents) -> np.ndarray:
    out = tvm.runtime.tensor(np.zeros(extents, "float32"))
    x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    tvm.compile(mod, target="llvm")["main"](tvm.runtime.tensor(x), out)
    return out.numpy()


def truncated(mod: tvm.IRModule) -> int:
    return len(collect(mod["main"].body, (tirx.Div, tirx.Mod)))


def falling(i):
    at = 39 - i
    return at // 8, at % 8 // 2, at % 2


def test_a_falling_index_of_several_axes():
    mod = reader((5, 4, 2), falling, 40)
    guarded = GuardDivisions()(mod)
    assert truncated(guarded)
    np.testing.assert_array_equal(read(guarded, (5, 4, 2), 40), np.arange(40)[::-1])


def test_tvm_still_gets_it_wrong():
    wrong = read(reader((6,), lambda b: (((b % 3 + 2) % 3) * 2 + (b // 3 + 1) % 2,), 6), (6,), 6)
    right = [((b % 3 + 2) % 3) * 2 + (b // 3 + 1) % 2 for b in range(6)]
    assert wrong.tolist() != right, "TVM is right by now: remove GuardDivisions"


@pytest.mark.parametrize(
    "index",
    [
        lambda i: (i // 8, i % 8 // 2, i % 2),  # no shift
        lambda i: ((i + 40) // 8 % 5, i % 8 // 2, i % 2),  # a whole turn
        lambda i: (i // 8, (i + 5) % 8 // 2, i % 2),  # a shift that TVM does not follow
    ],
)
def test_what_tvm_gets_right_stays(index):
    mod = reader((5, 4, 2), index, 40)
    assert GuardDivisions()(mod).same_as(mod)


def test_a_dividend_below_zero():
    def index(i):
        return ((i - 7) // 3 % 5, (i - 7) % 3)

    want = [((i - 7) // 3 % 5) * 3 + (i - 7) % 3 for i in range(20)]
    np.testing.assert_array_equal(read(GuardDivisions()(reader((5, 3), index, 20)), (5, 3), 20), want)


@settings(max_examples=12)
@given(st.lists(st.tuples(st.sampled_from("rft"), st.integers(0, 5)), min_size=2, max_size=4))
def test_chains_of_reshapes_reversals_and_rotations(steps):
    """Composed by EliminateLayout, loops fused as schedules do."""
    shapes = [(24,), (4, 6), (2, 3, 4), (3, 8), (2, 2, 6)]
    x = np.arange(24, dtype="float32").reshape(4, 6)

    def chain(value, reshape, flip, roll):
        shape = (4, 6)
        for kind, number in steps:
            axis = number % len(shape)
            if kind == "r":
                shape = shapes[number % len(shapes)]
                value = reshape(value, shape)
            else:
                value = (flip if kind == "f" else roll)(value, axis, shape[axis])
        return value

    def rolled(value, axis, size):
        cut = size // 2
        parts = [op.strided_slice(value, [axis], [cut], [size]), op.strided_slice(value, [axis], [0], [cut])]
        return op.concat(parts, axis) if cut else value

    mod = EliminateLayout()(
        legal(lambda v: op.negative(chain(v, op.reshape, lambda v, a, _: op.flip(v, a), rolled)), (4, 6))
    )
    want = chain(x, np.reshape, lambda v, a, _: np.flip(v, a), lambda v, a, n: np.roll(v, -(n // 2), a))
    np.testing.assert_array_equal(run(GuardDivisions()(mod), x)[0], -want)


def test_a_condition_that_makes_an_index_simpler():
    """What TVM simplifies under it, and pads afterwards: it made ``10 + i // -2`` of ``11 + (-1 - i) // 2``."""

    def body(x, out, i):
        at = (i + 16) // 3, tirx.const(0, "int64"), (0 - (i + 1) % 3) // 2 + 1
        return tirx.IfThenElse(i < 2, tirx.BufferStore(out, x[at], [i]), None)

    x, out = tirx.decl_buffer((6, 1, 2), "float32", "x"), tirx.decl_buffer((8,), "float32", "out")
    i = tirx.Var("i", "int64")
    zero, eight = (tirx.const(each, "int64") for each in (0, 8))
    loop = tirx.For(i, zero, eight, tirx.ForKind.SERIAL, body(x, out, i))
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", loop))
    func = tirx.PrimFunc([x, out], root).with_attrs({"global_symbol": "main", "s_tir": True})
    got = read(GuardDivisions()(tvm.IRModule({"main": func})), (6, 1, 2), 8)
    np.testing.assert_array_equal(got, [10, 10, *[0] * 6])


def test_a_position_is_compared_once(monkeypatch):
    """Unrolled kernels load, change and store the same elements again and again."""
    compared, same = [], guard_divisions._Space._same
    monkeypatch.setattr(guard_divisions._Space, "_same", lambda *args: compared.append(args) or same(*args))

    def guarded(times: int) -> tuple[int, int]:
        compared.clear()
        func = reader((5, 4, 2), falling, 40)["main"]
        body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, lambda each: tirx.SeqStmt([each] * times)))
        return truncated(GuardDivisions()(tvm.IRModule({"main": func.with_body(body)}))), len(compared)

    (few, once), (many, again) = guarded(2), guarded(14)
    assert once and again == once and many == 7 * few > 0


def test_only_the_conditions_around_an_index_are_tried(monkeypatch):
    """Unrolled windows have a condition for each load: trying all for each one takes time with their square."""
    tried, merged = [], guard_divisions._Space._merged
    monkeypatch.setattr(guard_divisions._Space, "_merged", lambda *args: tried.append(list(merged(*args))) or tried[-1])

    def guarded(times: int) -> int:
        tried.clear()
        x, out = tirx.decl_buffer((8, 4, 2), "float32", "x"), tirx.decl_buffer((40,), "float32", "out")
        i, zero, forty = tirx.Var("i", "int64"), tirx.const(0, "int64"), tirx.const(40, "int64")
        stores = [tirx.BufferStore(out, x[tuple(falling(i - each))], [i]) for each in range(times)]
        branches = [tirx.IfThenElse(i < each, store, None) for each, store in enumerate(stores, 1)]
        loop = tirx.For(i, zero, forty, tirx.ForKind.SERIAL, tirx.SeqStmt(branches))
        root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", loop))
        found = GuardDivisions()(tvm.IRModule({"main": tirx.PrimFunc([x, out], root)}))
        assert truncated(found) > 0
        return sum(map(len, tried))

    assert 0 < guarded(14) <= 8 * guarded(2)


def counted(rounded) -> tvm.IRModule:
    """``out[i] = float(rounded(i))`` in vectors of four."""
    out, i, j = tirx.decl_buffer((12,), "float32", "out"), tirx.Var("i", "int64"), tirx.Var("j", "int64")
    four, vector = tirx.const(4, "int64"), tirx.ForKind.VECTORIZED
    store = tirx.BufferStore(out, rounded(i * four + j).astype("float32"), [i * four + j])
    body = tirx.For(j, tirx.const(0, "int64"), four, vector, store)
    body = tirx.For(i, tirx.const(0, "int64"), tirx.const(3, "int64"), tirx.ForKind.SERIAL, body)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    func = tirx.PrimFunc([out], root).with_attrs({"global_symbol": "main", "s_tir": True})
    return tvm.IRModule({"main": func})


def numbers(mod: tvm.IRModule) -> list[int]:
    out = tvm.runtime.tensor(np.zeros(12, "float32"))
    tvm.compile(mod, target="llvm")["main"](out)
    return out.numpy().astype(int).tolist()


def of_padding(i):
    return tirx.truncdiv(tirx.const(1, "int64") - i * tirx.const(2, "int64"), tirx.const(2, "int64"))


@pytest.mark.pairwise
@pytest.mark.parametrize("by", [2, 3])
@pytest.mark.parametrize("step", [-6, -2, 1, 4])
@pytest.mark.parametrize("first", [-7, 1, 5])
def test_lanes_are_rounded_towards_zero(first, step, by):
    at = [first + step * i for i in range(12)]
    number = lambda value: tirx.const(value, "int64")  # noqa: E731
    for make, want in ((tirx.truncdiv, [int(n / by) for n in at]), (tirx.truncmod, [int(np.fmod(n, by)) for n in at])):
        mod = counted(lambda i, make=make: make(number(first) + i * number(step), number(by)))
        assert numbers(GuardDivisions()(mod)) == want


def test_tvm_still_rounds_lanes_down():
    assert numbers(counted(of_padding)) != [int((1 - 2 * i) / 2) for i in range(12)], "TVM is right by now"

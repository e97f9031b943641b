# SPDX-License-Identifier: Apache-2.0
"""Products of few rows on CUDA: right for all forms of matrices, and copied many vectors ahead."""

import numpy as np
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import ir, te, tirx

import smartmem_tvm as sm
from cuda_on_cpu import run, source_of
from smartmem_tvm.ir.graph import private_calls
from smartmem_tvm.ir.kernel import parse
from smartmem_tvm.pipeline import graph_phases, lower_phases, run_phases
from smartmem_tvm.schedule.choose import choose, plan_of
from smartmem_tvm.schedule.core.decisions import DECISIONS
from smartmem_tvm.schedule.gpu.matmul.few_rows import GpuFewRows, why_not_few_rows
from smartmem_tvm.target import parse_target

_FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
CUDA = tvm.target.Target({**_FACTS, "arch": "sm_90a"}, host="llvm")


def product(batch, rows, columns, depth, dtype, turned=False, sides=1, ending="plain", stored=None):
    """Return a product of `sides` matrices, multiplied with each other at the end."""
    x = te.placeholder((batch, rows, depth), dtype, "x")
    shape = (batch, columns, depth) if turned else (batch, depth, columns)
    ws = [te.placeholder(shape, stored or dtype, f"w{n}") for n in range(sides)]

    def total(w, name):
        k = te.reduce_axis((0, depth), "k")

        def term(b, i, j):
            number = (w[b, j, k] if turned else w[b, k, j]).astype(dtype)
            if dtype == "bfloat16":
                return te.sum(x[b, i, k].astype("float32") * number.astype("float32"), k)
            return te.sum((x[b, i, k] * number).astype("float32"), k)

        return te.compute((batch, rows, columns), term, name)

    sums = [total(w, f"sum{n}") for n, w in enumerate(ws)]
    if sides == 1 and ending == "plain":
        return te.create_prim_func([x, *ws, sums[0]])
    more = te.placeholder((batch, rows, columns), dtype, "more")

    def end(b, i, j):
        found = sums[0][b, i, j]
        for each in sums[1:]:
            found = found * each[b, i, j]
        return found.astype(dtype) + more[b, i, j]

    return te.create_prim_func([x, *ws, more, te.compute((batch, rows, columns), end, "out")])


def buffers(func):
    kernel = parse(func)
    return {each.name: each for each in (*kernel.inputs, *kernel.outputs)}


def arrays(random, func):
    """Return drawn arguments by the names of buffers, in their types; the last is the result."""
    found = {}
    for name, buffer in buffers(func).items():
        values = random.standard_normal([int(n) for n in buffer.shape]).astype("float32")
        if str(buffer.dtype) == "bfloat16":
            values = (values.view("uint32") >> 16 << 16).view("float32")
        found[name] = values.astype("float16") if str(buffer.dtype) == "float16" else values
    return found


def exact(given, turned):
    x, *rest = (each.astype("float64") for each in list(given.values())[:-1])
    ws, more = (rest[:-1], rest[-1]) if "more" in given else (rest, 0)
    if given["x"].dtype == "float16":  # the product is of halves, also where the matrix is stored in float32
        ws = [each.astype("float16").astype("float64") for each in ws]
    result = 1.0
    for w in ws:
        result = result * (x @ (w.swapaxes(1, 2) if turned else w))
    return result + more


def check(func, random, folder, turned=False, decisions=None, rule="GpuFewRows"):
    """Run the CUDA of a product on a CPU, and compare with float64; returns its source."""
    func = func.with_attr("global_symbol", "main")
    if decisions:
        func = func.with_attr(DECISIONS, decisions)
    chosen = choose(func, CUDA)
    assert chosen.plan.rule == rule, [f"{each.rule}: {each.reason}" for each in chosen.rejected][2]
    given, kinds = arrays(random, func), {name: str(each.dtype) for name, each in buffers(func).items()}
    wanted, last = exact(given, turned), list(given)[-1]
    given[last][:] = np.nan
    raw = {k: (v.view("uint32") >> 16).astype("uint16") if kinds[k] == "bfloat16" else v for k, v in given.items()}
    run(chosen.plan.func, CUDA, raw, folder)
    found = raw[last]
    if kinds[last] == "bfloat16":
        found = (found.astype("uint32") << 16).view("float32")
    near = {"float16": 1e-3, "float32": 3e-6, "bfloat16": 1e-2}[kinds[last]]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=near * np.abs(wanted).max())
    return source_of(chosen.plan.func, CUDA)[0]


@pytest.mark.parametrize("seed", range(8))
def test_random_products(seed, tmp_path):
    random = np.random.default_rng(seed)
    pick = lambda *values: values[random.integers(len(values))]  # noqa: E731
    turned, dtype = pick(False, True), pick("float16", "float32", "bfloat16")
    rows, sides = pick(1, 1, 2, 3, 5, 8), pick(1, 1, 2)
    columns, depth = pick(8, 16, 40, 64, 136, 200), pick(7, 64, 67, 96, 160, 257)
    if turned:
        columns, depth = pick(1, 5, 7, 64, 67, 130), pick(8, 64, 72, 160, 264)
    stored = pick(None, "float32") if dtype == "float16" else None
    func = product(pick(1, 1, 3), rows, columns, depth, dtype, turned, sides, pick("plain", "more"), stored)
    check(func, random, tmp_path, turned)


@pytest.mark.parametrize(
    ("tile", "turned"),
    [
        ((16, 64, 1, 2), False),
        ((64, 8, 4, 5), False),
        ((256, 2, 2, 3), False),
        ((8, 4, 1, 8), True),
        ((4, 16, 2, 3), True),
    ],
)
def test_other_tiles(tile, turned, tmp_path):
    """Also with a last turn of single units, thread blocks beyond the columns, and slices of one warp or of several."""
    names = ("columns", "slices", "steps", "stages")
    decisions = {f"gpu_few_rows.{name}": value for name, value in zip(names, tile, strict=True)}
    decisions |= {"gpu_few_rows.own": 1 if turned else 8}
    func = product(1, 3, 200 if not turned else 67, 328, "float16", turned, 2)
    source = check(func, np.random.default_rng(0), tmp_path, turned, decisions)
    assert f"__launch_bounds__({tile[0] // (1 if turned else 8) * tile[1]})" in source
    assert "shared_global_16(" in source and "wait_group" in source


def test_a_left_operand_that_is_chosen(tmp_path):
    """Queries with turned positions, times keys that are stored in float32, one key head for three query heads."""
    heads, keys, width, dtype = 6, 40, 16, "float16"
    q, table = te.placeholder((heads, width), dtype, "q"), te.placeholder((width,), dtype, "table")
    cache, k = te.placeholder((heads // 3, keys, width), "float32", "cache"), te.reduce_axis((0, width), "k")

    def turned(h, d):
        first, second = q[h, d - width // 2], q[h, d + width // 2] * tirx.const(-1, dtype)
        return q[h, d] + tirx.if_then_else(d >= width // 2, first, second) * table[d]

    def score(h, j):
        return te.sum((turned(h, k) * cache[h // 3, j, k].astype(dtype)).astype("float32"), k)

    func = te.create_prim_func([q, table, cache, te.compute((heads, keys), score, "out")])
    chosen = choose(func.with_attr("global_symbol", "main"), CUDA)
    assert chosen.plan.rule == "GpuFewRows"
    given = arrays(np.random.default_rng(0), func)
    run(chosen.plan.func, CUDA, given, tmp_path)
    q, table, cache, out = (each.astype("float64") for each in given.values())
    other = np.concatenate([-q[:, width // 2 :], q[:, : width // 2]], 1)
    wanted = np.einsum("hd,hjd->hj", q + other * table, np.repeat(cache, 3, 0))
    np.testing.assert_allclose(out, wanted, rtol=0, atol=4e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("gated", [False, True])
def test_constant_matrices_are_turned(gated, tmp_path):
    """Where the result has few columns, so that thread blocks would read short runs of a row of the matrix."""
    random, depth, columns = np.random.default_rng(0), 1024, 64
    weights = [random.standard_normal((depth, columns)).astype("float32") for _ in range(1 + gated)]
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [f"y{n}" if gated else "y"]) for n in range(1 + gated)]
    nodes += [helper.make_node("Mul", ["y0", "y1"], ["y"])] if gated else []
    x, y = (helper.make_tensor_value_info(name, 1, (1, size)) for name, size in (("x", depth), ("y", columns)))
    stored = [numpy_helper.from_array(each, f"w{n}") for n, each in enumerate(weights)]
    model = helper.make_model(helper.make_graph(nodes, "product", [x], [y], stored), ir_version=10)
    options = sm.Options(precision="half")
    with CUDA:
        mod = run_phases(sm.from_onnx(model), graph_phases(CUDA), options)
        ((gvar, (call,)),) = private_calls(mod).items()
        func = run_phases(mod, lower_phases(CUDA)[:1], options)[gvar.name_hint].with_attr("global_symbol", "main")
    row = random.standard_normal((1, depth)).astype("float32")
    values = [each.value.numpy() if isinstance(each, ir.Constant) else row for each in call.args[1].fields]
    assert [each.shape for each in values if each is not row] == [(columns * (1 + gated), depth)]
    out = np.full((1, columns), np.nan, "float32")
    run(func, CUDA, dict(zip([each.name for each in func.params], [*values, out], strict=True)), tmp_path)
    wanted = np.prod([row.astype("float64") @ each for each in weights], 0)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=4e-3 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"rows": 9}, "9 rows"), ({"columns": 7}, "no vectors of 8 bytes"), ({"depth": 6, "turned": True}, "no vectors")],
)
def test_what_it_does_not_take(change, reason):
    sizes = {"batch": 1, "rows": 2, "columns": 64, "depth": 64, "dtype": "float16", **change}
    plan = plan_of(GpuFewRows(), product(**sizes).with_attr("global_symbol", "main"), CUDA)
    assert reason in plan.reason


def test_other_targets():
    for target in ("opencl", "adreno-740", {**_FACTS, "arch": "sm_75"}):
        target = parse_target(target) if isinstance(target, str) else tvm.target.Target(target, host="llvm")
        plan = plan_of(GpuFewRows(), product(1, 1, 64, 64, "float32"), target)
        assert plan.reason == "it needs an NVIDIA GPU of compute capability 8.0 or more"


def normed(rows, columns, depth, turned, dtype="float16"):
    """Return the product of a norm's result and a matrix, with the norm's sum over each row in the kernel."""
    x = te.placeholder((1, rows, depth), dtype, "x")
    w = te.placeholder((columns, depth) if turned else (depth, columns), dtype, "w")
    d, k = te.reduce_axis((0, depth)), te.reduce_axis((0, depth))

    def square(b, i):
        number = x[b, i, d].astype("float32")
        return te.sum(number * number, d)

    squares = te.compute((1, rows), square, "squares")
    norm = te.compute(
        (1, rows, depth),
        lambda b, i, j: (x[b, i, j].astype("float32") * tirx.rsqrt(squares[b, i] / depth + 1e-5)).astype(dtype),
        "norm",
    )

    def term(b, i, j):
        return te.sum((norm[b, i, k] * (w[j, k] if turned else w[k, j])).astype("float32"), k)

    return te.create_prim_func([x, w, te.compute((1, rows, columns), term, "out")])


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "turned"),
    [(1, 64, 256, True), (3, 40, 160, False), pytest.param(2, 136, 264, True, marks=pytest.mark.device)],
)
def test_a_norm_in_front_of_a_product_is_part_of_it(rows, columns, depth, turned, tmp_path):
    func = normed(rows, columns, depth, turned).with_attr("global_symbol", "main")
    assert not why_not_few_rows(func, CUDA)
    chosen = choose(func, CUDA)
    assert chosen.plan.rule == "GpuFewRows"
    given = arrays(np.random.default_rng(rows), func)
    run(chosen.plan.func, CUDA, given, tmp_path)
    x, w = (given[name].astype("float64") for name in ("x", "w"))
    wanted = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) @ (w.T if turned else w)
    np.testing.assert_allclose(given["out"], wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())
    assert len(source_of(chosen.plan.func, CUDA)[1]) == 1


def test_a_norm_is_no_part_of_a_product_of_many_rows():
    assert "rows" in why_not_few_rows(normed(64, 40, 160, False).with_attr("global_symbol", "main"), CUDA)

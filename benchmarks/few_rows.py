#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Products of few rows on an NVIDIA GPU: are they right, what tiles take, and beside the rules before them and torch.

    python benchmarks/few_rows.py check                                  # drawn products beside float64
    python benchmarks/few_rows.py tiles --shape 1,2048,8192              # rows, depth, columns
    python benchmarks/few_rows.py times --rows 1 4 8                     # three shapes, in turns
    python benchmarks/few_rows.py tiles --shape 1,2048,8192 --dry        # builds everything, runs nothing

Each row is a JSON object. Matrices lie in memory so many times that none is in the last-level cache when it is read
again. Kernels run from a CUDA graph; `tiles` takes the times of single kernels, by torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from matrix_tiles import TARGET

SHAPES = ((2048, 8192), (8192, 2048), (2048, 32000), (2048, 3072))
"""Depth and columns of the products of a Llama of a billion parameters."""
_COLD = 200e6  # bytes of all copies of a matrix, at least: more than three times the last-level cache of an H200
_ROUNDS = 7


def say(**facts: object) -> None:
    """Print a row."""
    print(json.dumps(facts), flush=True)


def product(rows: int, depth: int, columns: int, dtype: str, turned: bool = False, sides: int = 1, batch: int = 1):
    """Return an unscheduled product; of several matrices of one left operand, the product of their results."""
    from tvm import te

    x = te.placeholder((batch, rows, depth), dtype, "x")
    ws = [
        te.placeholder((batch, columns, depth) if turned else (batch, depth, columns), dtype, f"w{n}")
        for n in range(sides)
    ]
    short = dtype == "bfloat16"

    def total(w, name: str):
        k = te.reduce_axis((0, depth), "k")

        def term(b, i, j):
            left, right = x[b, i, k], w[b, j, k] if turned else w[b, k, j]
            if short:
                return te.sum(left.astype("float32") * right.astype("float32"), k)
            return te.sum((left * right).astype("float32"), k)

        return te.compute((batch, rows, columns), term, name)

    sums = [total(w, f"sum{n}") for n, w in enumerate(ws)]

    def end(b, i, j):
        found = sums[0][b, i, j]
        for each in sums[1:]:
            found = found * each[b, i, j]
        return found.astype(dtype)

    return te.create_prim_func([x, *ws, te.compute((batch, rows, columns), end, "out")])


def scheduled(func, rule: str | None, decisions: dict | None = None):
    """Return (scheduled kernel, name of its rule): by `GpuFewRows`, or with `rule` "before" by the rules after it."""
    import tvm

    from smartmem_tvm.schedule.choose import choose, rules_for
    from smartmem_tvm.schedule.core.decisions import DECISIONS

    target = tvm.target.Target(TARGET, host="llvm")
    rules = [each for each in rules_for(target) if rule != "before" or each.name != "GpuFewRows"]
    func = func.with_attr(DECISIONS, decisions) if decisions else func
    plan = choose(func, target, rules).plan
    return plan.func, plan.rule


def library(funcs: dict, file: str) -> str:
    """Build scheduled kernels by their names into a library."""
    import tvm

    from smartmem_tvm.deploy.gpu_build import build_kernels
    from smartmem_tvm.deploy.textures import CUDA_PIPELINE

    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in funcs.items()})
    build_kernels(mod, tvm.target.Target(TARGET, host="llvm"), CUDA_PIPELINE).export_library(file)
    return file


# -- right ---------------------------------------------------------------------------------------------------------


def drawn(seed: int) -> dict:
    """Return the facts of a drawn product."""
    random = np.random.default_rng(seed)
    pick = lambda *values: values[random.integers(len(values))]  # noqa: E731
    turned = pick(False, True)
    columns, depth = pick(8, 40, 200, 1000, 2048, 4104), pick(7, 64, 257, 1000, 2048)
    if turned:
        columns, depth = pick(1, 7, 67, 1000, 2048), pick(8, 72, 264, 1000, 4096)
    facts = {"rows": pick(1, 1, 2, 3, 5, 8), "depth": depth, "columns": columns, "turned": turned}
    return {**facts, "dtype": pick("float16", "float32", "bfloat16"), "sides": pick(1, 1, 2), "batch": pick(1, 1, 3)}


def _built_drawn(seeds: list[int], file: str) -> tuple[str, dict[int, str]]:
    funcs, rules = {}, {}
    for seed in seeds:
        funcs[f"drawn{seed}"], rules[seed] = scheduled(product(**drawn(seed)), None)
    return library(funcs, file), rules


def check(args: argparse.Namespace) -> int:
    """Compare drawn products with float64."""
    wrong, seeds = 0, list(range(args.count))
    parts = [part for part in (seeds[n :: args.jobs] for n in range(args.jobs)) if part]
    with tempfile.TemporaryDirectory() as folder, _pool(args.jobs) as pool:
        files = [str(Path(folder, f"drawn{n}.so")) for n in range(len(parts))]
        for part, (file, rules) in zip(parts, pool.map(_built_drawn, parts, files), strict=True):
            if args.dry:
                say(step="check", built=len(part), rules=sorted(set(rules.values())))
                continue
            import torch
            import tvm

            loaded = tvm.runtime.load_module(file)
            for seed in part:
                facts = drawn(seed)
                error = _error(loaded[f"drawn{seed}"], facts)
                near = {"float16": 2e-3, "float32": 1e-5, "bfloat16": 2e-2}[facts["dtype"]]
                wrong += not error < near
                say(step="check", seed=seed, **facts, rule=rules[seed], error=error, right=bool(error < near))
            torch.cuda.synchronize()
    say(step="check", wrong=wrong)
    return int(wrong > 0)


def _error(run, facts: dict) -> float:
    import torch

    dtype, batch = getattr(torch, facts["dtype"]), facts["batch"]
    sizes = (batch, facts["columns"], facts["depth"]) if facts["turned"] else (batch, facts["depth"], facts["columns"])
    x = torch.randn(batch, facts["rows"], facts["depth"], device="cuda").to(dtype)
    ws = [torch.randn(*sizes, device="cuda").to(dtype) for _ in range(facts["sides"])]
    out = torch.full((batch, facts["rows"], facts["columns"]), float("nan"), device="cuda", dtype=dtype)
    run(*_given([x, *ws, out]))
    torch.cuda.synchronize()
    exact = 1.0
    for w in ws:
        exact = exact * (x.double() @ (w.double().transpose(1, 2) if facts["turned"] else w.double()))
    return float((out.double() - exact).abs().max() / exact.abs().max())


def _given(tensors: list) -> list:
    import tvm

    return [tvm.runtime.from_dlpack(each) for each in tensors]


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


# -- tiles ---------------------------------------------------------------------------------------------------------


def _tiles(rows: int, depth: int, columns: int, turned: bool, sides: int, dtype: str, count: int) -> list:
    """Return the tile that the model takes, and others of all kinds."""
    import tvm

    from smartmem_tvm.schedule.gpu.matmul.few_tile import Few, FewParams, candidates, few_tile
    from smartmem_tvm.target import Limits

    size = 4 if dtype == "float32" else 2
    few, params = (
        Few(1, rows, columns, depth, sides, turned, 16 // size, size, 1, rows * depth * size),
        FewParams.of(Limits.of(tvm.target.Target(TARGET, host="llvm"))),
    )
    able = [each for each in candidates(few, params.limits) if each.threads >= 128]

    # Those with enough on their way: a processor has room for 2,048 threads, and 200 KB.
    def on_their_way(tile) -> float:
        blocks = -(-columns // tile.columns)
        most = min(2048 // tile.threads, 200 * 1024 // max(1, tile.ring_bytes(size) + tile.shared_bytes))
        return min(blocks / 132, most) * tile.ring_bytes(size) * (tile.stages - 1) / tile.stages

    good = [each for each in able if on_their_way(each) >= 16e3] or able
    random = np.random.default_rng(0)
    chosen = [good[n] for n in random.permutation(len(good))[: count - 1]]
    return [few_tile(few, params), *chosen]


def _genes(tile) -> dict:
    names = ("columns", "slices", "steps", "stages", "own")
    return {f"gpu_few_rows.{name}": getattr(tile, name) for name in names}


def _built_tiles(facts: dict, tiles: list, names: list[str], file: str) -> str:
    func = product(**facts)
    return library(
        {name: scheduled(func, None, _genes(tile))[0] for name, tile in zip(names, tiles, strict=True)}, file
    )


def tiles(args: argparse.Namespace) -> int:
    """Time tiles of one shape, each kernel by itself."""
    rows, depth, columns = args.shape
    facts = {"rows": rows, "depth": depth, "columns": columns, "dtype": args.type, "turned": args.turned}
    facts["sides"] = args.sides
    found = _tiles(rows, depth, columns, args.turned, args.sides, args.type, args.count)
    names = [f"tile{n}" for n in range(len(found))]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, _pool(args.jobs) as pool:
        parts = [list(range(len(found)))[n :: args.jobs] for n in range(args.jobs)]
        jobs = [
            pool.submit(
                *(_built_tiles, facts, [found[m] for m in part], [names[m] for m in part]),
                str(Path(folder, f"tiles{n}.so")),
            )
            for n, part in enumerate(parts)
            if part
        ]
        files = [job.result() for job in jobs]
        say(step="tiles", **facts, built=len(found), seconds=round(time.monotonic() - begin, 1))
        if args.dry:
            return 0
        import tvm

        runs = {}
        for file, part in zip(files, parts, strict=False):
            loaded = tvm.runtime.load_module(file)
            runs |= {names[m]: loaded[names[m]] for m in part}
        x, weights, out = _operands(facts)
        times = _profiled(runs, x, weights, out, 2 * len(weights))
    nbytes = args.sides * depth * columns * (4 if args.type == "float32" else 2)
    for name, us in sorted(times.items(), key=lambda each: each[1]):
        tile = found[int(name.removeprefix("tile"))]
        genes = {name.partition(".")[2]: value for name, value in _genes(tile).items()} | {"threads": tile.threads}
        rate = round(nbytes / us / 1e6, 2)
        say(step="tile", shape=args.shape, tile=genes, us=us, tb_s=rate, chosen=name == "tile0")
    return 0


def _operands(facts: dict) -> tuple:
    """Return the left operand, a list of copies of the right operands, and the result."""
    import torch

    dtype, depth, columns, sides = getattr(torch, facts["dtype"]), facts["depth"], facts["columns"], facts["sides"]
    size = sides * depth * columns * (4 if facts["dtype"] == "float32" else 2)
    many = max(2, int(_COLD // size) + 1)
    shape = (1, columns, depth) if facts["turned"] else (1, depth, columns)
    x = torch.randn(1, facts["rows"], depth, device="cuda").to(dtype)
    weights = [[torch.randn(*shape, device="cuda").to(dtype) for _ in range(sides)] for _ in range(many)]
    return x, weights, torch.zeros(1, facts["rows"], columns, device="cuda", dtype=dtype)


def _profiled(runs: dict, x, weights: list, out, launches: int) -> dict[str, float]:
    """Return the median microseconds of each kernel, by name."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    given = [_given([x, *each, out]) for each in weights]
    for run in runs.values():
        run(*given[0])
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for run in runs.values():
            for n in range(launches):
                run(*given[n % len(given)])
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in seen.events():
        if str(event.device_type).endswith("CUDA"):
            found.setdefault(event.name.removesuffix("_kernel"), []).append(event.time_range.elapsed_us())
    us = {name: statistics.median(found[name]) for name in runs if name in found}
    for name, run in runs.items():  # without the profiler's interface to the device
        if name not in us:
            recorded, _ = _recorded([lambda run=run, each=each: run(*each) for each in given])
            us[name] = statistics.median(recorded() for _ in range(3))
    return {name: round(each, 3) for name, each in us.items()}


# -- in turns ------------------------------------------------------------------------------------------------------


def _built_times(facts: dict, file: str) -> tuple[str, dict[str, str]]:
    func, funcs, rules = product(**facts), {}, {}
    for name in ("now", "before"):
        funcs[name], rules[name] = scheduled(func, name)
    return library(funcs, file), rules


def times(args: argparse.Namespace) -> int:
    """Time this rule, the rules after it, and torch, in turns."""
    shapes = [args.shape[1:]] if args.shape else SHAPES
    cases = [
        {
            "rows": rows,
            "depth": depth,
            "columns": columns,
            "dtype": args.type,
            "turned": args.turned,
            "sides": args.sides,
        }
        for depth, columns in shapes
        for rows in args.rows
    ]
    with tempfile.TemporaryDirectory() as folder, _pool(args.jobs) as pool:
        files = [str(Path(folder, f"times{n}.so")) for n in range(len(cases))]
        for facts, (file, rules) in zip(cases, pool.map(_built_times, cases, files), strict=True):
            if args.dry:
                say(step="times", **facts, rules=rules)
                continue
            try:
                say(step="times", **facts, rules=rules, **_in_turns(facts, file))
            except Exception as error:  # the other shapes are worth having
                say(step="times", **facts, rules=rules, error=str(error)[-400:])
    return 0


def _in_turns(facts: dict, file: str) -> dict:
    import torch
    import tvm

    loaded = tvm.runtime.load_module(file)
    x, weights, out = _operands(facts)
    given = [_given([x, *each, out]) for each in weights]
    calls = {name: [lambda g=g, f=loaded[name]: f(*g) for g in given] for name in ("now", "before")}
    if facts["sides"] == 1:
        turned = [w[0].transpose(1, 2) if facts["turned"] else w[0] for w in weights]
        calls["torch"] = [lambda w=w: torch.matmul(x, w, out=out) for w in turned]
    graphs, how = {}, {}
    for name, each in calls.items():
        graphs[name], how[name] = _recorded(each)
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(_ROUNDS):
        for name, run in graphs.items():
            found[name].append(run())
    us = {name: statistics.median(each) for name, each in found.items()}
    nbytes = facts["sides"] * facts["depth"] * facts["columns"] * (4 if facts["dtype"] == "float32" else 2)
    rates = {f"{name}_tb_s": round(nbytes / each / 1e6, 2) for name, each in us.items()}
    return {**{f"{name}_us": round(each, 2) for name, each in us.items()}, **rates, "how": how}


def _recorded(calls: list) -> tuple:
    """Return a function that gives the microseconds of one of some calls, and how they are launched."""
    import torch
    import tvm_ffi

    for call in calls:
        call()
    torch.cuda.synchronize()
    many = max(1, 24 // len(calls))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    try:
        graph = torch.cuda.CUDAGraph()
        with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
            for _ in range(many):
                for call in calls:
                    call()
        launch, how = graph.replay, "graph"
    except Exception as error:
        torch.cuda.synchronize()
        how = f"loop: {str(error)[-120:]}"

        def launch() -> None:
            for _ in range(many):
                for call in calls:
                    call()

    def run() -> float:
        torch.cuda.synchronize()
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / (many * len(calls))

    run()
    return run, how


def main() -> int:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("check", "tiles", "times"))
    parser.add_argument("--shape", type=lambda text: tuple(map(int, text.split(","))), help="rows,depth,columns")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--type", default="float16", choices=("float16", "float32", "bfloat16"))
    parser.add_argument("--turned", action="store_true", help="matrices whose depth is innermost")
    parser.add_argument("--sides", type=int, default=1, help="matrices of one left operand")
    parser.add_argument("--count", type=int, default=32, help="drawn products, or tiles")
    parser.add_argument("--jobs", type=int, default=4, help="processes that build kernels")
    parser.add_argument("--dry", action="store_true", help="only build")
    args = parser.parse_args()
    return {"check": check, "tiles": tiles, "times": times}[args.step](args)


if __name__ == "__main__":
    sys.exit(main())

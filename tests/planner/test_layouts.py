# SPDX-License-Identifier: Apache-2.0
"""Layouts of a whole graph: FluidML's sequences and the integer program, beside all there are."""

import random
import sys
from itertools import pairwise, product

import pytest
import scipy.optimize

from smartmem_tvm.planner.layout_exact import Unsolved, exact_layouts
from smartmem_tvm.planner.layout_problem import KernelCost, LayoutProblem
from smartmem_tvm.planner.layout_sequences import fluid_layouts, longest_sequence, schedule, sequences

ROWS, COLUMNS, OTHER = (0, 1, 2), (0, 2, 1), (1, 2, 0)


def problem(reads: dict[str, tuple[str, ...]], orders: dict[str, tuple], seconds) -> LayoutProblem:
    """Kernels by what they write, and a function for what each takes."""
    tensors = dict.fromkeys([*(name for of in reads.values() for name in of), *reads])
    orders = {name: orders.get(name, (ROWS,)) for name in tensors}
    kernels = []
    for output, inputs in reads.items():
        ways = product(*(orders[name] for name in (output, *inputs)))
        costs = {way: each for way in ways if (each := seconds(output, way)) is not None}
        kernels.append(KernelCost(output, output, inputs, costs))
    return LayoutProblem(orders, kernels)


def drawn(seed: int, kernels: int, missing: float = 0.0, branches: int = 3) -> LayoutProblem:
    """Kernels that read up to `branches` of the last four tensors; some combinations were not measured."""
    rng = random.Random(seed)
    reads, orders = {}, {}
    for number in range(kernels):
        before = [f"t{n}" for n in range(max(0, number - 4), number)] or ["in"]
        reads[f"t{number}"] = tuple(rng.sample(before, min(len(before), rng.randint(1, branches))))
        orders[f"t{number}"] = (ROWS, COLUMNS, OTHER)[: rng.randint(1, 3)]

    def seconds(_, way):
        now = all(order == ROWS for order in way)
        return rng.uniform(1, 10) if now or rng.random() >= missing else None

    return problem(reads, orders, seconds)


def best(of: LayoutProblem) -> float:
    """By trying all choices."""
    return min(of.seconds(dict(zip(of.orders, each, strict=True))) for each in product(*of.orders.values()))


def names(sequence) -> str:
    return " ".join(kernel.name for kernel in sequence)


def test_the_longest_way_through_a_graph():
    """A block with a short branch: Algorithm 1."""
    reads = {"a": ("in",), "b": ("a",), "c": ("b",), "short": ("a",), "sum": ("c", "short"), "end": ("sum",)}
    assert names(longest_sequence(problem(reads, {}, lambda *_: 1.0).kernels)) == "a b c sum end"


def test_what_a_sequence_leaves_is_taken_apart_again():
    """Two branches that only the sequence had connected become two sequences: Algorithm 2."""
    reads = {"a": ("in",), "b": ("a",), "x": ("b",), "y": ("x",), "u": ("b",), "v": ("u",), "w": ("v",)}
    reads |= {"p": ("a",), "end": ("w", "y", "p")}
    found = sequences(problem(reads, {}, lambda *_: 1.0).kernels)
    assert names(found[0]) == "a b u v w end"
    assert sorted(map(names, found[1:])) == ["p", "x y"]


@pytest.mark.parametrize("seed", range(20))
def test_every_kernel_is_in_one_sequence(seed):
    kernels = drawn(seed, 25).kernels
    found = sequences(kernels)
    assert sorted(kernel.name for each in found for kernel in each) == sorted(kernel.name for kernel in kernels)
    for sequence in found:
        assert all(one.output in other.inputs for one, other in pairwise(sequence))
    assert len(found[0]) == max(map(len, found))


@pytest.mark.parametrize("seed", range(30))
def test_a_chain_is_scheduled_best(seed):
    """Without branches the dynamic program is exact: Algorithm 3."""
    chain = drawn(seed, 8, branches=1)
    found = schedule(chain, list(chain.kernels), {})
    if len(sequences(chain.kernels)) == 1:
        choice = {**chain.now, **{kernel.output: found[kernel, kernel.output] for kernel in chain.kernels}}
        assert chain.seconds(choice) == pytest.approx(best(chain))
    assert chain.seconds(exact_layouts(chain)) == pytest.approx(best(chain))


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(40))
def test_beside_all_choices(seed, missing):
    """The integer program finds the best one. The other is between that and the orders of now."""
    graph = drawn(seed, 7, missing)
    assert graph.seconds(exact_layouts(graph)) == pytest.approx(best(graph))
    assert best(graph) - 1e-9 <= graph.seconds(fluid_layouts(graph)) <= graph.seconds(graph.now)


def test_how_much_the_best_is_missed_by():
    """On costs without any structure: 1.5 % in the mean; a kernel's neighbours decide in networks (docs/layouts.md)."""
    graphs = [drawn(seed, 60) for seed in range(20)]
    lost = [each.seconds(fluid_layouts(each)) / each.seconds(exact_layouts(each)) for each in graphs]
    assert sum(lost) / len(lost) < 1.05 and max(lost) < 1.15


def test_the_majority_decides_and_the_others_follow():
    """Two of three branches read across the rows; the third is scheduled again with what they want."""
    reads = {"x": ("in",), "a": ("x",), "b": ("x",), "c": ("x",), "end": ("a", "b", "c")}
    orders = dict.fromkeys("xabc", (ROWS, COLUMNS))

    def seconds(output, way):
        if output in "abc":
            wanted = ROWS if output == "c" else COLUMNS
            return 1.0 + (way[1] != wanted) + 0.1 * (way[0] != way[1])
        return 1.0

    found = fluid_layouts(problem(reads, orders, seconds))
    assert {found[name] for name in "xabc"} == {COLUMNS}


def test_what_was_not_measured_is_not_chosen():
    reads = {"x": ("in",), "y": ("x",)}
    graph = problem(
        reads, {"x": (ROWS, COLUMNS)}, lambda output, way: None if COLUMNS in way and output == "y" else 1.0
    )
    for planner in (fluid_layouts, exact_layouts):
        assert planner(graph) == graph.now


def test_a_graph_of_nothing():
    empty = LayoutProblem({}, ())
    assert fluid_layouts(empty) == exact_layouts(empty) == {}


def test_a_time_limit_is_said():
    with pytest.raises(Unsolved, match="no optimum was proved in 1e-09 s"):
        exact_layouts(drawn(1, 400), time_limit=1e-9)


def test_a_solver_that_fails_is_said(monkeypatch):
    def fails(*_, **__):
        return type("Result", (), {"status": 4, "x": None, "message": "no memory"})

    monkeypatch.setattr(scipy.optimize, "milp", fails)
    with pytest.raises(Unsolved, match="HiGHS: no memory"):
        exact_layouts(drawn(1, 4))


def test_a_missing_solver_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(Unsolved, match=r"needs scipy, which `pip install smartmem_tvm\[exact\]`"):
        exact_layouts(drawn(1, 4))

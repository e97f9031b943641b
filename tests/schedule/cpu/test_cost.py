# SPDX-License-Identifier: Apache-2.0
"""The model of time: prices are sums of units, threads finish when a simulation says, no rule counts cycles itself."""

import ast
import random
from pathlib import Path

import pytest

from smartmem_tvm.schedule.cpu import cost, machine
from smartmem_tvm.schedule.cpu.cost import Copied, Fma, FmaAlongDepth, OtherLine
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.schedule.cpu.priced_work import Rates, Threads, Work
from smartmem_tvm.schedule.cpu.tile import Tile, step_of, steps_of, tiles_of

AVX2, AVX512 = CpuParams(), CpuParams(lanes=16, registers=32, cores=16)
FOLDER = Path(cost.__file__).parent
# What other files may read of `machine`: sizes, and a threshold in stores.
SIZES = {name for name in vars(machine) if name.endswith("_BYTES")} | {"WORTH_WAKING"}
TARGETS_RATE = {"MEMORY_RATE", "MEMORY_RATE_ZEN"}  # a property of the target, which the model reads as `memory_bytes`


def figures_of(file: Path) -> set[str]:
    """The figures of `machine` that a file names."""
    tree = ast.parse(file.read_text())
    modules = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {name.name for node in modules if node.module == "machine" for name in node.names}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return imported | {n.attr for n in attributes if isinstance(n.value, ast.Name) and n.value.id == "machine"}


def test_the_model_alone_reads_figures_in_cycles():
    rest = {file.name: figures_of(file) - SIZES for file in FOLDER.rglob("*.py") if file.name != "cost.py"}
    assert {name: figures for name, figures in rest.items() if figures} == {"params.py": TARGETS_RATE}
    figures = {name for name in vars(machine) if name.isupper()}
    assert figures - figures_of(FOLDER / "cost.py") <= SIZES | TARGETS_RATE


def test_a_price_is_the_sum_of_its_units():
    step, copied = Fma(6, 2), Copied(run=4, lines=0.5)
    work = Work(AVX2, {"multiply-adds": [(1000, step)], "copies": [(64, copied), (3, cost.LINE)]}, shared=4)
    copies = 64 * copied.cycles(AVX2) + 3 * machine.LINE_NEAR
    assert work.price.terms == pytest.approx({"multiply-adds": 1000 * step.cycles(AVX2), "copies": copies})
    assert work.price.cycles == pytest.approx(sum(work.price.terms.values())) and work.price.shared == 4


def test_time_that_everything_takes_longer_is_a_term():
    work = Work(AVX2, {"multiply-adds": [(10, cost.STRIDED)]}, {"threads that wait": 0.5})
    assert work.price.terms["threads that wait"] == 5 and work.price.cycles == 15


def test_units_of_one_size_and_two_kinds_are_two():
    rates = Rates(AVX512)
    assert rates.of(Fma(4, 1)) == Fma(4, 1).cycles(AVX512) != rates.of(cost.PointFma(4, 1))


@pytest.mark.parametrize("seed", range(30))
def test_the_last_thread_is_that_of_a_simulation(seed):
    """Threads take as many tasks each, in their order; of a batch, the busiest of any that follow each other."""
    draw = random.Random(seed)
    count, batch = draw.randint(1, 8), draw.randint(1, 4)
    tasks = [float(draw.randint(1, 9)) for _ in range(draw.randint(1, 12))]
    each, whole = Threads(count).rounds(batch * len(tasks)), tasks * batch
    busiest = max(sum(whole[first : first + each]) for first in range(0, len(whole), each))
    anywhere = max(sum((tasks * (batch + 1))[first : first + each]) for first in range(len(tasks)))
    found = Rates(AVX2).until_last(Threads(count), tasks, batch)
    assert found == busiest if batch == 1 else sum(whole) / count <= found <= anywhere
    equal = Rates(AVX2).until_last(Threads(count), [3.0] * len(tasks), batch)
    assert equal == pytest.approx(3.0 * each)


def test_one_thread_wakes_none():
    assert Threads(1).woken(3)[0] == 0 and Threads(8).woken(3)[0] == 24
    assert Threads(8).share(12) == pytest.approx(2 / 12) and Threads(8).rounds(12) == 2


def test_a_step_waits_for_its_sum():
    assert Fma(1, 1).cycles(AVX512) == machine.FMA_LATENCY < Fma(8, 3).cycles(AVX512)
    assert Fma(8, 3).cycles(AVX512) < Fma(8, 3, far=True).cycles(AVX512)


def test_a_narrow_tile_is_the_faster_of_two_ways():
    for width in range(1, 16):
        one, other = step_of(8, width, AVX512, 256), step_of(8, width, AVX512, 256, lanes=16)
        assert other.cycles(AVX512) <= one.cycles(AVX512)
        assert isinstance(other, FmaAlongDepth) == (other.cycles(AVX512) < one.cycles(AVX512))


def test_all_steps_cover_the_result():
    for rows, columns in ((13, 100), (7, 16), (1, 5), (196, 1225)):
        done = steps_of(Tile(6, 16), rows, columns, AVX2, times=10)
        covering = tiles_of(Tile(6, 16), rows, columns, AVX2)
        assert sum(high * wide * count for high, wide, count in covering) == rows * columns
        assert [number for number, _ in done] == [10 * count for *_, count in covering]


def test_lines_that_are_farther_take_longer():
    for page in (False, True):
        near, second, third = (OtherLine(level, page).cycles(AVX2) for level in (1, 2, 3))
        assert near < second < third
    assert OtherLine(1, False).cycles(AVX512) < OtherLine(1, True).cycles(AVX512)

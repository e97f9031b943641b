# SPDX-License-Identifier: Apache-2.0
"""Given decisions: those of the rule change nothing, others change the schedule and not the result."""

import logging
from itertools import islice

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir.schedule import ScheduleError

from smartmem_tvm.schedule import ScheduleKernels
from smartmem_tvm.schedule.constants.pack_weights import packing_of
from smartmem_tvm.schedule.core.decisions import DECISIONS, RULE_GENE, deciding
from smartmem_tvm.schedule.core.plans import PLAN
from smartmem_tvm.schedule.core.rivals import NUMBERED
from smartmem_tvm.schedule.core.rule import RULE
from smartmem_tvm.schedule.schedule_kernels import REFUSALS
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.tunable_kernel import CONSTANTS, TunableKernel
from tunable_kernels import CASES, check

TARGETS = {name: parse_target(name) for name in ("llvm", "opencl", "cuda")}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@every_case
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_what_the_rule_decides_given_back_makes_the_same_kernel(case, target):
    kernel = TunableKernel.of(case.func(), target)
    given = kernel.scheduled(kernel.seed)
    in_force = dict(given.attrs[DECISIONS])
    assert in_force.items() <= kernel.seed.items() and (in_force == kernel.seed) == (not kernel.rivals)
    tvm.ir.assert_structural_equal(given.without_attr(DECISIONS), kernel.scheduled())


@every_case
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_the_space_of_a_kernel_holds_what_its_rule_decides_and_more(case, target):
    kernel = TunableKernel.of(case.func(), target)
    assert [each.name for each in kernel.decisions] == case.kinds(target.kind.name)
    assert kernel.space.holds(kernel.seed) and kernel.space.size(6) == 6


@pytest.mark.each_value
@every_case
@pytest.mark.parametrize("target, count", [("llvm", 2), ("opencl", 1)])
def test_any_decision_gives_the_right_result(case, target, count):
    kernel, rng = TunableKernel.of(case.func(), TARGETS[target]), np.random.default_rng(2)
    default = kernel.scheduled()
    genomes = (kernel.space.random(rng) for _ in range(20))
    others = ((g, f) for g, f in ((g, kernel.scheduled(g)) for g in genomes) if not _same(f, default))
    tried = list(islice(others, count))
    assert len(tried) == count
    for genome, func in tried:
        check(case, func, kernel.target, _packed(case, kernel, genome))


@every_case
def test_no_drawn_genome_is_refused_on_a_cpu(case):
    kernel, rng = TunableKernel.of(case.func(), TARGETS["llvm"]), np.random.default_rng(3)
    for _ in range(20):
        kernel.scheduled(kernel.space.random(rng))


def _same(func, default) -> bool:
    return tvm_ffi.structural_equal(func.without_attr(DECISIONS), default)


def _packed(case, kernel, genome):
    func, arrays = kernel.func.with_attr(DECISIONS, dict(genome)), case.arrays()
    with deciding(func):
        packing = packing_of(func, case.constants, kernel.target) if kernel.target.kind.name == "llvm" else None
    if packing is not None:
        arrays[packing.position] = packing.pack(arrays[packing.position])
    return arrays


RIVALS = {
    ("convolution", "llvm"): ("Slide", "Matmul", "Window"),
    ("depthwise", "llvm"): ("Depthwise", "Window"),
    ("convolution", "opencl"): ("WindowProduct", "WindowSlide", "GpuMatmul"),
    ("grouped", "opencl"): ("WindowSlide", "GpuMatmul"),
}


@pytest.mark.device
@pytest.mark.parametrize(("name", "target"), RIVALS)
def test_a_rule_that_was_decided_for_takes_the_kernel_and_computes_the_same(name, target):
    case, rng = CASES[name], np.random.default_rng(4)
    kernel = TunableKernel.of(case.func(), TARGETS[target])
    (gene,) = [gene for gene in kernel.space.genes if gene.name == RULE_GENE]
    assert tuple(NUMBERED[number] for number in gene.options) == RIVALS[name, target]
    assert kernel.seed[RULE_GENE] == gene.options[0]
    for number in gene.options:
        genome = kernel.space.repair({**kernel.space.random(rng), RULE_GENE: number}, rng)
        func = kernel.scheduled(genome)
        assert func.attrs[RULE]["name"] == NUMBERED[number]
        check(case, func, kernel.target, _packed(case, kernel, genome))


def test_decisions_for_rivals_stay_as_they_are():
    """Two genomes that differ make kernels that differ."""
    kernel, rng = TunableKernel.of(CASES["convolution"].func(), TARGETS["llvm"]), np.random.default_rng(0)
    genome, seen = kernel.space.random(rng), set()
    for _ in range(60):
        genome = kernel.space.mutate(genome, rng, 0.3)
        mine = NUMBERED[genome[RULE_GENE]].lower()
        assert kernel.space.holds(genome)
        seen.add(mine)
        others = {name for name in genome if name != RULE_GENE and not name.startswith(f"{mine}.")}
        assert all(genome[name] == kernel.seed[name] for name in others)
    assert seen == {"slide", "matmul", "window"}


def test_a_rule_that_cannot_take_the_kernel_is_refused():
    kernel = TunableKernel.of(CASES["convolution"].func(), TARGETS["llvm"])
    with pytest.raises(ScheduleError, match="no rule can do as was decided"):
        kernel.scheduled({**kernel.seed, RULE_GENE: NUMBERED.index("GpuMatmul")})


@pytest.mark.parametrize("width", [8, 16, 24])
def test_a_weight_is_packed_as_wide_as_was_decided(width):
    kernel = TunableKernel.of(CASES["matmul with a weight"].func(), TARGETS["llvm"])
    func = kernel.scheduled({**kernel.seed, "matmul.width": width, "matmul.lanes": 8})
    assert int(func.params[1].shape[-1]) == width
    assert list(func.attrs[CONSTANTS]) == [1]


def test_decisions_of_another_kernel_are_refused_and_the_pass_goes_on_without_them(caplog):
    kernel, target = TunableKernel.of(CASES["matmul"].func(), TARGETS["llvm"]), TARGETS["llvm"]
    foreign = TunableKernel.of(CASES["element-wise"].func(), target).seed
    with pytest.raises(ScheduleError, match=r"nothing asks for elementwise\.tasks"):
        kernel.scheduled(foreign)
    wrong = kernel.func.with_attrs({DECISIONS: foreign, "global_symbol": "main"})
    with target, caplog.at_level(logging.WARNING):
        mod = ScheduleKernels()(tvm.IRModule({"main": wrong}))
    assert "nothing asks for elementwise.tasks" in caplog.text
    assert DECISIONS not in mod["main"].attrs
    assert list(mod["main"].attrs[REFUSALS])
    tvm.ir.assert_structural_equal(mod["main"].without_attr(REFUSALS).without_attr(PLAN), kernel.scheduled())


def test_a_kernel_of_two_matmuls_decides_twice():
    """Each run of a sequence has decisions of its own; runs that were tried and given up have none."""
    a, b, c = (te.placeholder(shape, name=n) for n, shape in (("a", (20, 12)), ("b", (12, 30)), ("c", (30, 16))))
    k, m = te.reduce_axis((0, 12), "k"), te.reduce_axis((0, 30), "m")
    first = te.compute((20, 30), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="first")
    second = te.compute((16, 20), lambda j, i: te.sum(first[i, m] * c[m, j], m), name="second")
    kernel = TunableKernel.of(te.create_prim_func([a, b, c, second]), TARGETS["llvm"])
    names = [each.name for each in kernel.decisions]
    assert len(names) == len(set(names)) and len(names) > 1
    tvm.ir.assert_structural_equal(kernel.scheduled(kernel.seed).without_attr(DECISIONS), kernel.scheduled())


def test_a_kernel_that_no_rule_of_ours_knows_has_no_decisions():
    x = te.placeholder((4, 4), name="x")
    func = te.create_prim_func([x, te.compute((4, 4), lambda i, j: x[i, j] + x[j, i])])
    assert TunableKernel.of(func, tvm.target.Target({"kind": "llvm"})) is not None
    other = tvm.target.Target({"kind": "c"})
    assert TunableKernel.of(func, other) is None


def test_what_does_not_fit_is_refused_and_no_part_of_the_space():
    kernel = TunableKernel.of(CASES["attention"].func(), TARGETS["opencl"])
    name = "gpu_row_chain.products.0.depth"
    large = {**kernel.seed, "gpu_row_chain.rows": 64, "gpu_row_chain.threads": 64, name: 32}
    large |= {f"gpu_row_chain.products.{n}.{field}": 8 for n in (0, 1) for field in ("thread_rows", "thread_columns")}
    large |= {f"gpu_row_chain.products.{n}.slices": 8 for n in (0, 1)}
    assert not kernel.space.holds(large)
    with pytest.raises(ScheduleError, match="does not fit"):
        kernel.scheduled(large)

# SPDX-License-Identifier: Apache-2.0
"""Products by matrix instructions are tuned in each type: tiles, and whether groups of warps multiply together."""

import numpy as np
import pytest
import tvm
from tvm import te

from smartmem_tvm.deploy.judge import difference
from smartmem_tvm.ir.kernel import FACTORS
from smartmem_tvm.schedule.core.rule import RULE
from smartmem_tvm.tune.profile_store import kernel_key
from smartmem_tvm.tune.records import workload_key
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload

FACTS = {"kind": "cuda", "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32}
AMPERE, HOPPER = (tvm.target.Target({**FACTS, "arch": arch}, host="llvm") for arch in ("sm_80", "sm_90a"))
TYPES = {"float16": "float16", "bfloat16": "bfloat16", "tf32": "float32"}


def product(kind, marked=True):
    """256 x 192 x 320, with the terms of both operands next to each other."""
    x, w = te.placeholder((256, 320), TYPES[kind], "x"), te.placeholder((192, 320), TYPES[kind], "w")
    k = te.reduce_axis((0, 320), "k")

    def term(i, j):
        return te.sum(x[i, k].astype("float32") * w[j, k].astype("float32"), k)

    func = te.create_prim_func([x, w, te.compute((256, 192), term, "total")])
    return func.with_attr(FACTORS, kind) if kind == "tf32" and marked else func


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("target", [AMPERE, HOPPER], ids=["sm_80", "sm_90a"])
def test_tiles_of_each_type_are_genes(target, kind):
    kernel = TunableKernel.of(with_constants(product(kind), ()), target)
    assert [each.name for each in kernel.decisions] == ["gpu_matrix"] and "GpuMatmul" in kernel.rivals
    genes = {gene.name: gene for gene in kernel.space.genes}
    assert len(genes["gpu_matrix.depth"].options) >= 4 and len(genes["gpu_matrix.stages"].options) >= 4
    assert len(genes["gpu_matrix.group"].options) == (2 if target is HOPPER else 1)
    assert kernel.space.holds(kernel.seed)


@pytest.mark.parametrize("kind", ["bfloat16", "tf32"])
def test_what_is_drawn_is_scheduled(kind):
    kernel, rng = TunableKernel.of(with_constants(product(kind), ()), HOPPER), np.random.default_rng(1)
    drawn = [kernel.space.random(rng) for _ in range(12)]
    made = [kernel.scheduled(genome) for genome in drawn]
    assert len({func.script() for func in made}) > 4
    assert "GpuMatrix" in {str(func.attrs[RULE]["name"]) for func in made}


def test_a_kernel_whose_factors_may_be_rounded_is_another_one():
    marked, plain = (with_constants(product("tf32", marked), ()) for marked in (True, False))
    assert marked.attrs[FACTORS] == "tf32" and FACTORS not in plain.attrs
    assert workload_key(workload(marked)) != workload_key(workload(plain))
    assert kernel_key(marked) != kernel_key(plain) == kernel_key(product("tf32", False))


def test_schedules_that_round_and_that_do_not_are_both_right():
    found, want = np.float32([1, 2]), np.float32([1, 2.002])
    assert difference([found], [want]) and not difference([found], [want], "tf32")
    assert difference([found], [np.float32([1, 2.2])], "bfloat16")

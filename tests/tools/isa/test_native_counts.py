# SPDX-License-Identifier: Apache-2.0
"""Instructions of functions as `tables.functions` has them, by Mesa's compiler where it is set up."""

import pytest
import tvm
from tvm import te

from native_numbers import MEASURED, function
from smartmem_tvm.mesa_folder import mesa_problem
from smartmem_tvm.tables.functions import FUNCTIONS, GPUS, LIBRARY
from smartmem_tvm.target import parse_target
from smartmem_tvm.tools.isa.compiler import compile_all
from smartmem_tvm.tools.isa.ir3 import NOPS, SCRATCH, parse
from smartmem_tvm.tools.isa.sources import kernel_programs
from smartmem_tvm.transform import NativeFunctions
from texture_modules import single_numbers

PHONE = parse_target("adreno-740").with_host("llvm")


def program(of, dtype, native):
    a = te.placeholder((4096,), dtype, name="a")
    func = single_numbers(te.create_prim_func([a, te.compute(a.shape, lambda i: of(a(i)), name="b")]))
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with PHONE:
        mod = NativeFunctions()(mod) if native else mod
    (source,) = kernel_programs(mod, PHONE).values()
    return source


def counted(programs, gpu):
    counts = {name: parse(made.code).counts for name, made in compile_all(programs, gpu).items()}
    assert not any(each[SCRATCH] for each in counts.values())
    return {name: sum(each.values()) - each[NOPS] for name, each in counts.items()}


@pytest.mark.device
@pytest.mark.parametrize("gpu", GPUS)
def test_the_counts_of_the_table(gpu):
    if problem := mesa_problem():
        pytest.skip(f"{problem}: no kernel was compiled")
    programs = {(None, dtype): program(lambda x: x, dtype, False) for dtype in ("float32", "float16")}
    for row in MEASURED:
        programs[row.name, row.dtype] = program(function(row), row.dtype, True)
    found, at = counted({str(key): source for key, source in programs.items()}, gpu), GPUS.index(gpu)
    for row in MEASURED:
        took = found[str((row.name, row.dtype))] - found[str((None, row.dtype))]
        assert took <= 1.2 * row.instructions[at] + 1, row


def test_a_formula_is_shorter_than_what_it_replaces():
    for row in FUNCTIONS:
        shorter = [own < other for own, other in zip(row.instructions, row.library)]
        assert shorter == [True] * len(GPUS) if row.formula != LIBRARY else not row.library

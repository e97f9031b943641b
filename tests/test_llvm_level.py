# SPDX-License-Identifier: Apache-2.0
"""`llvm_level`: the cases that LLVM optimizes, and the code of those that it does not."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te

from llvm_level import COMMANDS, unoptimized, unoptimized_cases

TESTS = """
import os
import pytest
import tvm

BUILD = tvm.get_global_func("target.build.llvm")

@pytest.mark.parametrize("case", range(6))
def test_it(case, request):
    quick = not tvm.get_global_func("target.build.llvm").same_as(BUILD)
    assert quick is (case in QUICK)
"""


@dataclass
class Item:
    """The part of pytest's item that is asked for."""

    nodeid: str
    mark: str = ""

    def get_closest_marker(self, name):
        return self.mark if name == self.mark else None


def test_the_first_case_and_each_fourth_one_are_optimized():
    several = [Item(f"a.py::test[{n}]") for n in range(6)]
    alone, marked = Item("a.py::test_alone"), [Item(f"a.py::test_code[{n}]", "optimized") for n in range(3)]
    command, code = Item(f"{COMMANDS}a.py::test"), Item(f"{COMMANDS}a.py::test_code", "optimized")
    found = unoptimized_cases([*several[:3], alone, *marked, *several[3:], command, code])
    assert found == {f"a.py::test[{n}]" for n in (1, 2, 3, 5)} | {command.nodeid}


@pytest.mark.parametrize(
    ("options", "quick"), [((), {1, 2, 3, 5}), (("--full-grids",), set()), (("test_it.py::test_it[1]",), set())]
)
def test_a_run_of_all_and_a_case_by_name_are_optimized(options, quick, tmp_path):
    tests = Path(__file__).parent
    (tmp_path / "test_it.py").write_text(TESTS.replace("QUICK", repr(quick)))
    shutil.copy(tests.parent / "pyproject.toml", tmp_path)
    for name in ("conftest.py", "covering.py", "llvm_level.py"):
        shutil.copy(tests / name, tmp_path)
    where = () if any("[" in each for each in options) else ("test_it.py",)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *options, *where]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_code_is_another_one_and_computes_the_same():
    x = te.placeholder((64,), name="x")
    func = te.create_prim_func([x, te.compute((64,), lambda i: x[i] * x[i])]).with_attr("global_symbol", "main")

    def code() -> str:
        library = tvm.compile(tvm.IRModule({"main": func}), "llvm")
        result = tvm.runtime.tensor(np.zeros(64, "float32"))
        library["main"](tvm.runtime.tensor(np.arange(64, dtype="float32")), result)
        np.testing.assert_array_equal(result.numpy(), np.arange(64, dtype="float32") ** 2)
        return library.mod.inspect_source("ll")

    optimized = code()
    with pytest.raises(KeyError), unoptimized():
        assert "fmul <" in optimized and "fmul <" not in code()
        raise KeyError
    assert code() == optimized

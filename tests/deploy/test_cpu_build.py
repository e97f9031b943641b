# SPDX-License-Identifier: Apache-2.0
"""Code for a CPU: in modules side by side, which make one library, the same one wherever it is made."""

import threading

import numpy as np
import pytest
import tvm

from helpers import module, op
from smartmem_tvm.deploy import build, cpu_build
from smartmem_tvm.deploy.link import linked

SIZES = tuple(range(20, 31))


@pytest.fixture(scope="module")
def compiled():
    """A network with a kernel for each size."""

    def network(*inputs):
        return tuple(op.nn.softmax(op.exp(x)) for x in inputs)

    return build.compile(module(network, *((3, size) for size in SIZES)))


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((3, size)).astype("float32") for size in SIZES]


def expected() -> list[np.ndarray]:
    exponentials = [np.exp(np.exp(x) - np.exp(x).max(-1, keepdims=True)) for x in inputs()]
    return [each / each.sum(-1, keepdims=True) for each in exponentials]


def modules_of(compiled) -> list[tvm.runtime.Module]:
    (first,) = compiled.executable.mod.imports
    return [first, *first.imports]


def test_kernels_of_all_modules_run(compiled):
    assert len(modules_of(compiled)) > 1
    for mine, theirs in zip(compiled.run(*inputs()), expected(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)


def test_they_are_one_library(compiled, tmp_path):
    library = tvm.runtime.load_module(linked(compiled.executable, compiled.target, str(tmp_path)))
    machine = tvm.relax.VirtualMachine(library, tvm.cpu())
    for mine, theirs in zip(machine["main"](*map(tvm.runtime.tensor, inputs())), expected(), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-5, atol=1e-7)


def kernels(mod: tvm.runtime.Module) -> list[str]:
    return sorted(line.split("(")[0] for line in mod.inspect_source("ll").splitlines() if line.startswith("define"))


def test_the_cores_of_the_machine_change_nothing(compiled, monkeypatch):
    monkeypatch.setattr(cpu_build, "usable_cores", lambda: 1)
    again = build.compile(module(lambda *all_: tuple(op.nn.softmax(op.exp(x)) for x in all_), *((3, s) for s in SIZES)))
    assert [kernels(each) for each in modules_of(again)] == [kernels(each) for each in modules_of(compiled)]


def test_modules_are_made_side_by_side(monkeypatch):
    monkeypatch.setattr(cpu_build, "usable_cores", lambda: 2)
    both, make = threading.Barrier(2, timeout=20), cpu_build.codegen_build

    def met(mod, target):
        both.wait()  # none of them waits for another one to be done
        return make(mod, target)

    monkeypatch.setattr(cpu_build, "codegen_build", met)
    build.compile(module(lambda *all_: tuple(op.exp(op.nn.softmax(x)) for x in all_), *((3, s) for s in SIZES[:8])))


def test_what_llvm_refuses_is_an_error(monkeypatch):
    def refuse(mod, target):
        raise tvm.error.InternalError("no code for this")

    monkeypatch.setattr(cpu_build, "codegen_build", refuse)
    with pytest.raises(tvm.error.InternalError, match="no code for this"):
        build.compile(module(op.exp, (2, 3)))


def test_a_model_without_kernels():
    (only,) = build.compile(module(lambda x: x, (2,))).run(np.ones(2, "float32"))
    np.testing.assert_array_equal(only, np.ones(2))

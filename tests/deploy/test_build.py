# SPDX-License-Identifier: Apache-2.0
"""Compiling and running from Python."""

import numpy as np
import pytest
import tvm
import tvm_ffi

import smartmem_tvm
from helpers import constant, module, nodes, op, random
from smartmem_tvm import Options, UserError, compile_baseline, graph_cost, optimize
from smartmem_tvm.deploy import cpu_build
from smartmem_tvm.target import device_of, parse_target


def network(x):
    return op.nn.relu(op.matmul(op.permute_dims(x), constant(5, 3)))


@pytest.fixture
def mod():
    return module(network, (5, 6))


@pytest.fixture
def expected():
    (x,) = random((5, 6))
    return np.maximum(x.T @ constant(5, 3).value.numpy(), 0)


@pytest.mark.parametrize("verb", [smartmem_tvm.compile, compile_baseline])
def test_ours_and_the_baseline_compute_the_same(verb, mod, expected):
    (got,) = verb(mod).run(*random((5, 6)))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_code_that_llvm_breaks_is_made_again_at_a_lower_level(monkeypatch, mod, expected):
    generate, levels = cpu_build.codegen_build, []

    def broken(kernels, target):
        levels.append(target.attrs.get("opt-level", 3))
        if levels[-1] == 3:
            raise tvm.error.InternalError("LLVM module verification failed with the following errors: ...")
        return generate(kernels, target)

    monkeypatch.setattr(cpu_build, "codegen_build", broken)
    (got,) = smartmem_tvm.compile(mod).run(*random((5, 6)))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert levels == [3, 1]


def test_the_graph_and_the_times_are_kept(mod):
    compiled = smartmem_tvm.compile(mod)
    assert graph_cost(compiled.graph).kernels == 1
    assert set(compiled.seconds) == {"passes", "codegen"}
    assert all(seconds > 0 for seconds in compiled.seconds.values())


def test_optimize_is_the_graph_alone(mod):
    (node,) = nodes(optimize(mod))
    assert node.kernel is not None


def test_optimize_is_for_this_machines_cpu_where_no_target_is_given():
    """TVM's lowering of sorts asks for a target."""
    (x,) = random((4, 6))
    mod = module(lambda x: op.sort(x, axis=1), (4, 6))
    graph = optimize(mod)
    assert tvm_ffi.structural_equal(graph, optimize(mod, target="cpu"))
    np.testing.assert_array_equal(smartmem_tvm.compile(graph).run(x)[0], np.sort(x, axis=1))


def test_optimize_for_a_target_by_name(mod):
    with parse_target("opencl-texture"):
        expected = optimize(mod)
    assert tvm_ffi.structural_equal(optimize(mod, target="opencl-texture"), expected)
    assert not tvm_ffi.structural_equal(optimize(mod), expected)


def test_options_reach_the_passes(mod):
    assert graph_cost(optimize(mod, options=Options(fuse=False))).kernels == 2


def test_inputs_need_not_be_contiguous(mod, expected):
    (x,) = random((5, 6))
    (got,) = smartmem_tvm.compile(mod).run(np.asfortranarray(x))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_several_results_come_in_order():
    compiled = smartmem_tvm.compile(module(lambda x: (op.exp(x), op.negative(x), op.permute_dims(x)), (4, 6)))
    (x,) = random((4, 6))
    first, second, third = compiled.run(x)
    np.testing.assert_allclose(first, np.exp(x), rtol=1e-5)
    np.testing.assert_array_equal(second, -x)
    np.testing.assert_array_equal(third, x.T)


def test_dumps_of_both_halves(mod, tmp_path):
    smartmem_tvm.compile(mod, options=Options(dump_dir=str(tmp_path)))
    assert {path.name for path in tmp_path.glob("*.py")} >= {"00_canonicalize.py", "06_fuse.py"}
    assert {path.name for path in (tmp_path / "lower").glob("*.py")} == {"00_schedule.py", "02_lower.py"}


@pytest.fixture
def opencl():
    target = parse_target("opencl")
    device_of(target)  # raises with a sentence that says what to install
    return target


@pytest.mark.parametrize("verb", [smartmem_tvm.compile, compile_baseline])
def test_on_a_gpu(verb, mod, expected, opencl):
    compiled = verb(mod, opencl)
    (got,) = compiled.run(*random((5, 6)))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert compiled.vm.device == tvm.opencl(0)
    assert graph_cost(compiled.graph).kernels == (1 if verb is smartmem_tvm.compile else 2)


def test_a_target_without_a_host_gets_one(mod):
    assert smartmem_tvm.compile(mod, tvm.target.Target("opencl")).target.host.kind.name == "llvm"


def test_plain_loops_do_not_run_on_a_gpu(mod):
    target = parse_target("opencl")
    for compile in (
        lambda: smartmem_tvm.compile(mod, target, Options(schedule=False)),
        lambda: compile_baseline(mod, target, schedule=False),
    ):
        with pytest.raises(UserError, match=r"'opencl' .* leave `schedule` on"):
            compile()


def test_kernels_can_be_built_before_they_run(mod, opencl):
    assert smartmem_tvm.compile(mod, opencl).build_kernels() >= 0
    assert smartmem_tvm.compile(mod).build_kernels() == 0


def test_a_machine_on_a_chosen_device(mod, expected, opencl):
    compiled = smartmem_tvm.compile(mod, opencl)
    machine = compiled.machine(tvm.opencl(0))
    (x,) = machine.tensors(random((5, 6)))
    assert x.device == tvm.opencl(0)
    np.testing.assert_allclose(machine["main"](x).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_graph_passes_are_the_targets():
    """Eight rows of these scores fit in a CPU's cache, and not in the memory of a group of threads."""

    def attention(x):
        scores = op.nn.softmax(op.matmul(x, op.permute_dims(x)))
        return op.matmul(scores, x)

    graph = module(attention, (2048, 16))
    on_cpu = graph_cost(optimize(graph)).kernels
    with parse_target("opencl"):
        assert graph_cost(optimize(graph)).kernels > on_cpu


def test_as_a_pipeline_of_tvms(mod, expected, opencl):
    machine = tvm.relax.VirtualMachine(tvm.compile(mod, opencl, relax_pipeline="smartmem"), tvm.opencl(0))
    (x,) = random((5, 6))
    got = machine["main"](tvm.runtime.tensor(x, tvm.opencl(0)))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_optimize_takes_what_compile_takes_in_the_same_order(mod):
    on_gpu = optimize(mod, "opencl-texture", Options())
    assert tvm_ffi.structural_equal(on_gpu, optimize(mod, target="opencl-texture"))


@pytest.mark.parametrize("verb", [smartmem_tvm.compile, optimize])
def test_options_in_the_place_of_the_target(verb, mod):
    with pytest.raises(UserError, match="options="):
        verb(mod, Options())

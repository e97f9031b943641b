# SPDX-License-Identifier: Apache-2.0
"""Accesses of a whole network, of our kernels and of TVM's."""

import pytest
import tvm
import tvm_ffi
from tvm import relax

from helpers import constant, module, op
from memory_kernels import N, copy, transposed
from smartmem_tvm.analysis.memory_access import Accesses, kernel_accesses
from smartmem_tvm.analysis.network_access import network_accesses, total
from smartmem_tvm.deploy.schedules import our_schedules, tvm_schedules
from smartmem_tvm.deploy.textures import staged
from smartmem_tvm.pipeline import Options
from smartmem_tvm.target import parse_target, target_row

# Not this machine's CPU: with some numbers of cores the last task is a shorter one, which the model does not take.
TARGETS = ["adreno-740", "opencl", '{"kind": "llvm", "num-cores": 4}']


def network():
    weight = constant(64, 64)

    def heads(x):
        x = op.permute_dims(op.reshape(op.matmul(x, weight), (64, 4, 16)), [1, 0, 2])
        return op.nn.softmax(op.matmul(x, op.permute_dims(x, [0, 2, 1])))

    return module(heads, (64, 64))


@pytest.mark.parametrize("name", TARGETS)
def test_both_pipelines(name):
    target = parse_target(name)
    row = target_row(target)
    ours = network_accesses(our_schedules(network(), target), row)
    theirs = network_accesses(tvm_schedules(network(), target), row)
    for kernels in (ours, theirs):
        assert all(each.accesses is not None and each.accesses.l2_misses > 0 for each in kernels)
        assert [each.accesses.lines for each in kernels] == sorted((k.accesses.lines for k in kernels), reverse=True)
        assert total(kernels).stores >= (64 * 64 + 2 * 4 * 64 * 64) / 16
    assert sum(each.launches for each in ours) < sum(each.launches for each in theirs)


def test_a_kernel_counts_as_often_as_it_is_launched():
    builder = relax.BlockBuilder()
    matrix = relax.TensorType((N, N), "float32")
    x = relax.Var("x", matrix)
    with builder.function("main", [x]):
        with builder.dataflow():
            kernel = builder.add_func(transposed(), "transposed")
            once = builder.emit(relax.call_tir(kernel, [x], matrix))
            twice = builder.emit_output(relax.call_tir(kernel, [once], matrix))
        builder.emit_func_output(twice)
    row = target_row(parse_target("adreno-740"))
    (found,) = network_accesses(builder.get(), row)
    assert (found.name, found.launches) == ("transposed", 2)
    assert found.accesses == kernel_accesses(transposed(), row) * 2 == total([found])


def test_options_are_taken():
    target = parse_target("adreno-740")
    plain = our_schedules(network(), target, Options(eliminate=False, fuse=False))
    assert len(network_accesses(plain, target_row(target))) > len(
        network_accesses(our_schedules(network(), target), target_row(target))
    )


def test_tvms_side_is_its_best_whatever_the_phone():
    phones = [parse_target(name) for name in ("adreno-740", "mali-g57", "opencl")]
    row = target_row(phones[0])
    counts = [total(network_accesses(tvm_schedules(network(), target), row)) for target in phones]
    assert counts[0] == counts[1] == counts[2]


def test_a_kernel_of_another_module_is_known():
    row = target_row(parse_target("adreno-740"))
    mod = tvm.IRModule({"transposed": transposed()})
    known = {}
    first = network_accesses(called(mod), row, known=known)
    ((key, alike),) = known.items()
    assert [answer for _, answer in alike] == [first[0].accesses]
    known[key] = [(alike[0][0], Accesses(loads=1.0))]
    (again,) = network_accesses(called(mod), row, known=known)
    assert again.accesses == Accesses(loads=1.0)
    ((func, _),) = known[key]
    known[key] = [(copy(), Accesses(loads=1.0))]  # of the same hash, were it so, and not the same
    (other,) = network_accesses(called(mod), row, known=known)
    assert other.accesses == first[0].accesses and tvm_ffi.structural_equal(known[key][1][0], func)


def called(mod):
    """A network that launches the one kernel of `mod`."""
    builder = relax.BlockBuilder()
    matrix = relax.TensorType((N, N), "float32")
    x = relax.Var("x", matrix)
    ((gvar, func),) = mod.functions_items()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.call_tir(builder.add_func(func, gvar.name_hint), [x], matrix))
        builder.emit_func_output(out)
    return builder.get()


def test_halves_that_are_computed_one_by_one_are_stored_as_vectors():
    """As the code generator gets it: OpenCL's erf is a function of single numbers for TVM."""
    target = parse_target("adreno-740")
    mod = module(lambda x: op.matmul(op.nn.gelu(op.matmul(x, constant(64, 64))), constant(64, 64)), (64, 64))
    asked = Options(precision="half", textures=False, native_functions=False)
    scheduled = our_schedules(mod, target, asked)
    plain, real = (total(network_accesses(each, target_row(target))) for each in (scheduled, staged(scheduled, target)))
    result = 64 * 64 / 4  # of the model, which is float32
    assert plain.stores == 64 * 64 + result and real.stores <= 64 * 64 / 4 + result
    assert real.store_lines < plain.store_lines

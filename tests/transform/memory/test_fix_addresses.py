# SPDX-License-Identifier: Apache-2.0
"""Inputs are copied and caches come last: the same results, and one recorded run of kernels for a token on CUDA."""

import sys

import numpy as np
import pytest
import tvm
from tvm import relax

import smartmem_tvm as sm
from cache_updates import Update
from doc_blocks import ROOT
from module_lines import module_lines
from open_models import dims, sentence
from smartmem_tvm import Options
from smartmem_tvm.deploy import build
from smartmem_tvm.deploy.weights import lift_weights
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.ir.kernel import CACHE_AXIS
from smartmem_tvm.ir.several_sizes import size_functions
from smartmem_tvm.target import parse_target
from smartmem_tvm.transform import FixAddresses, KeepCaches, WriteInPlace

sys.path.insert(0, str(ROOT / "benchmarks"))
from decoder_network import ELEMENTS, Decoder

SIMPLE = Update("where", (1, 3, 4, 2), 2, 1)


def test_before_and_after():
    kept = KeepCaches()(from_onnx(SIMPLE.model()))
    assert [each.name for each in kept["main"].params] == ["past", "new", "rows"]
    fixed = FixAddresses()(kept)
    assert [each.name for each in fixed["main"].params] == ["new", "rows", "past"]
    lines = module_lines(fixed)
    assert "new_here = call take_input(new)" in lines and "rows_here = call take_input1(rows)" in lines
    assert "write_rows(past, new_here," in lines.replace("\n", " ")
    lifted, _ = lift_weights(fixed)
    assert int(lifted["main"].attrs.get("num_input", 2)) == 2  # what a recorded run may not hold


@pytest.mark.parametrize("seed", range(2))
def test_results_are_the_same(seed):
    random = np.random.default_rng(seed)
    arrays = SIMPLE.inputs(random)
    mod = KeepCaches()(from_onnx(SIMPLE.model()))
    found = []
    for fixed in (False, True):
        names = ("new", "rows", "past") if fixed else ("past", "new", "rows")
        done = WriteInPlace()(FixAddresses()(mod) if fixed else mod)
        machine = relax.VirtualMachine(tvm.compile(done, "llvm"), tvm.cpu())
        found.append([each.numpy() for each in machine["main"](*(tvm.runtime.tensor(arrays[name]) for name in names))])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_caches_nothing_changes():
    mod = from_onnx(SIMPLE.model())
    assert FixAddresses()(mod).same_as(mod)


def test_a_token_is_one_recorded_run_on_cuda():
    """All kernels but the copies of inputs, the embedding's row and the scores, which go to the caller."""
    network = Decoder(layers=1, form=ELEMENTS)
    target, options = parse_target("cuda"), Options(caches=True)
    with target:
        graph = build.optimize(from_onnx(network.model()), options=options)
        after = {}
        lowered = build.lower(graph, target, options, lambda phase, mod: after.__setitem__(phase, mod))
    main = after["cuda_graph"]["main"]
    assert int(main.attrs["num_input"]) == 2 and [each.name for each in main.params[:2]] == [
        "input_ids",
        "position_ids",
    ]
    assert len(lowered.kernels_per_graph) == 1
    assert len(calls_of(main)) <= 4 and lowered.kernels_per_graph[0] >= 2


def test_on_a_gpu_kernels_compute_the_rows_that_they_write():
    """Scores of some tokens are a CPU's, and no kernel of its own makes new keys, new values, or their numbers."""
    mod, options = from_onnx(Decoder(layers=1, form=ELEMENTS).model()), Options(caches=True)
    target = parse_target("opencl")
    with target:
        fused = WriteInPlace()(build.optimize(mod, options=options))
    writers = [func for func in fused.functions.values() if CACHE_AXIS in (func.attrs or {})]
    assert max(len(func.params) for func in writers) > 3  # more than a cache, rows and their numbers
    one, other = (sm.Decoder(sm.compile(mod, *given, options=options)) for given in ((), (target,)))
    for token in (3, 1, 4, 1, 5):
        np.testing.assert_allclose(other.feed([token]), one.feed([token]), rtol=1e-4, atol=1e-5)


def test_on_a_gpu_one_kernel_writes_the_rows_of_keys_and_values():
    """Both caches of each layer, before attention reads them; on a CPU each has a kernel of its own."""
    mod, options = from_onnx(Decoder(layers=2, form=ELEMENTS).model()), Options(caches=True)
    calls = {}
    for name in ("llvm", "opencl"):
        target = parse_target(name)
        with target:
            fused = WriteInPlace()(build.optimize(mod, target=target, options=options))
        writers = {gvar for gvar, func in fused.functions_items() if CACHE_AXIS in (func.attrs or {})}
        values = [each.value for block in fused["main"].body.blocks for each in block.bindings]
        written = [each for each in values if isinstance(each, tvm.ir.Call) and each.args and each.args[0] in writers]
        calls[name] = [len(each.attrs.inplace_indices) for each in written]
    assert calls == {"llvm": [1, 1, 1, 1], "opencl": [2, 2]}


def test_each_capacity_of_an_open_length_is_one_recorded_run_on_cuda():
    """With the options of `compile`: kernels read the length and the inputs where they are copied to."""
    proto = sentence()
    target = parse_target("cuda")
    with target:
        graph = build.optimize(from_onnx(proto, dims(proto, "3..13")))
        after = {}
        lowered = build.lower(graph, target, Options(), lambda phase, mod: after.__setitem__(phase, mod))
    assert len(lowered.kernels_per_graph) == len(size_functions(graph)) > 1
    main = after["cuda_graph"]["main_1"]
    read = [call for call in calls_of(main) if any(each.same_as(main.params[1]) for each in call.args)]
    assert len(read) == 1  # the copy of the length


def calls_of(function):
    values = [each.value for block in function.body.blocks for each in block.bindings]
    return [each for each in values if isinstance(each, tvm.ir.Call) and isinstance(each.op, tvm.ir.GlobalVar)]

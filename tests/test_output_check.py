# SPDX-License-Identifier: Apache-2.0
"""The check of outputs after each phase names the pass that changes them, and accepts right pipelines."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

import smartmem_tvm as sm
from helpers import constant, module, op
from smartmem_tvm import pass_registry
from smartmem_tvm.errors import CheckError, UserError
from smartmem_tvm.ir.kernel import rewrite_stages
from smartmem_tvm.output_check import OutputCheck
from smartmem_tvm.target import parse_target

CHECKED = sm.Options(check="outputs")


def network(x):
    y = op.matmul(op.permute_dims(op.reshape(x, (6, 4)), (1, 0)), constant(6, 5))
    return op.nn.softmax(y), op.argmax(y, axis=1)


@pytest.fixture(scope="module")
def mod():
    return module(network, (2, 3, 4))


def plus_one(stage):
    def add(store):
        return tirx.BufferStore(store.buffer, store.value + tirx.const(1, store.buffer.dtype), store.indices)

    return replace(stage, body=tvm_ffi.structural_map(stage.body, (tirx.BufferStore, add)))


def break_pass(monkeypatch, name: str) -> None:
    """Let a pass add 1 to the result of each kernel whose last stage is no reduction."""
    entry = pass_registry.PASSES[name]

    def make(options, target):
        right = entry.make(options, target)

        @tvm.transform.module_pass(opt_level=0, name="broken")
        def broken(mod, _ctx):
            return rewrite_stages(right(mod), lambda stage: plus_one(stage) if stage.is_pointwise else stage)

        return broken

    monkeypatch.setitem(pass_registry.PASSES, name, replace(entry, make=make))


@pytest.mark.parametrize("target", ["cpu", pytest.param("cuda", marks=pytest.mark.device)])
def test_a_right_pipeline_passes(mod, target, caplog):
    """Without a GPU, the check is skipped for GPU targets, with one line in the log."""
    with caplog.at_level(logging.WARNING):
        sm.compile(mod, parse_target(target), CHECKED)
    assert ["are left out" in each.message for each in caplog.records] == [True] * (target == "cuda")


@pytest.mark.parametrize(("name", "phase"), [("relax.LegalizeOps", "legalize"), ("lower-rotations", "schedule")])
def test_the_pass_that_changes_outputs_is_named(mod, monkeypatch, name, phase):
    break_pass(monkeypatch, name)
    with pytest.raises(CheckError, match=f"pass '{name}' of phase '{phase}' changes output 'output_0'") as caught:
        sm.compile(mod, options=CHECKED)
    message = str(caught.value)
    assert "largest error is" in message and "dump_dir" in message and "smartmem reduce" in message


def test_through_tvm(mod, monkeypatch):
    tvm.compile(mod, "llvm", relax_pipeline=relax.get_pipeline("smartmem", check="maps"))
    break_pass(monkeypatch, "fuse-operators")
    with pytest.raises(CheckError, match="pass 'fuse-operators'"):
        tvm.compile(mod, "llvm", relax_pipeline=relax.get_pipeline("smartmem", check="outputs"))


def test_what_the_device_computes_is_compared_too(mod):
    check = OutputCheck(mod, parse_target("opencl"))
    right = check._expected
    check.finish(lambda *_: right)
    with pytest.raises(CheckError, match=r"code generation\) changes output 'output_1'"):
        check.finish(lambda *_: [right[0], right[1] + 1])


def test_integers_are_equal_and_floats_close(mod):
    check = OutputCheck(mod, None)
    floats, integers = check._expected
    assert check._compared([floats * (1 + 5e-5), integers]) is None
    assert check._compared([floats * (1 + 5e-4), integers])[0] == "output_0"
    assert check._compared([floats, integers + 1])[0] == "output_1"
    half = OutputCheck(mod, parse_target("adreno-740"), "half-storage")
    assert half._compared([floats * (1 + 2e-3), integers])[0] == "output_0"
    half._half = True  # from the phase on that stores halves
    assert half._compared([floats * (1 + 2e-3), integers]) is None
    assert half._compared([floats * (1 + 5e-3), integers])[0] == "output_0"


def test_the_input_is_the_same_each_time_and_small_where_it_may_be_an_index():
    ids = module(lambda table, i: op.take(table, i, axis=0), (2, 3), ((5,), "int64"))
    first, second = (OutputCheck(ids, None)._arrays for _ in range(2))
    assert all(map(np.array_equal, first, second))
    assert set(first[1].tolist()) <= {0, 1}


def test_a_phase_that_cannot_be_run_is_left_out(mod, caplog):
    check = OutputCheck(mod, None)
    with caplog.at_level(logging.WARNING):
        check.after("fuse", mod, [], tvm.IRModule())
    assert len(caplog.records) == 1 and "phase 'fuse' is left out" in caplog.text


def test_what_cannot_be_checked_is_refused():
    n = tirx.Var("n", "int64")
    with pytest.raises(UserError, match="'x0' is no tensor of a static shape"):
        OutputCheck(module(op.exp, (n, 3)), None)


def test_an_unknown_check_is_refused(mod):
    with pytest.raises(UserError, match="check 'everything' does not exist: use maps or outputs"):
        sm.Options(check="everything")
    with pytest.raises(UserError, match="use maps or outputs"):
        relax.get_pipeline("smartmem", check="everything")

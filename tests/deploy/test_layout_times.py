# SPDX-License-Identifier: Apache-2.0
"""Kernels with their tensors in other orders, measured into a profile store."""

import numpy as np
import pytest
import tvm

import smartmem_tvm as sm
from at_once import executor
from helpers import constant, legal, op, random
from smartmem_tvm.deploy import layout_times
from smartmem_tvm.deploy.fill_profiles import open_store
from smartmem_tvm.deploy.layout_times import measure_layouts
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.pipeline import Options, graph_phases, run_phases
from smartmem_tvm.schedule import loop_orders
from smartmem_tvm.target import host_target, parse_target
from smartmem_tvm.transform.layout.plan_layout import layout_questions

SHAPE = (1, 4, 10, 9)


def build(x):
    """The softmax reduces along what the convolution does not store next to each other."""
    y = op.nn.softmax(op.nn.conv2d(x, constant(16, 4, 3, 3), padding=1), axis=1)
    return op.matmul(op.permute_dims(y, (0, 2, 3, 1)), constant(16, 24))


def graph(target):
    with target:
        return run_phases(legal(build, SHAPE), graph_phases(target), Options(layout="fluid"))


@pytest.fixture
def target():
    return host_target()


@pytest.fixture
def store(target):
    return open_store(None, target, 1)


def test_all_forms_are_measured_once(target, store):
    mod, said = graph(target), []
    found = measure_layouts(store, mod, executor(target), progress=lambda done, asked: said.append((done, asked)))
    questions = layout_questions(mod, loop_orders)
    assert found.kernels == len(questions) and found.forms == sum(len(q.forms) for q in questions) > 10
    assert found.failed == found.open == 0 and said[-1] == (found.measured, found.measured)
    assert all(store.form_latency(form, q.base) > 0 for q in questions for form in q.forms)
    again = measure_layouts(store, mod, executor(target))
    assert (again.forms, again.measured, again.open) == (found.forms, 0, 0)


def test_a_plan_from_measurements_is_right(target, store):
    measure_layouts(store, graph(target), executor(target))
    (x,) = random(SHAPE)
    (plain,) = sm.compile(legal(build, SHAPE), target).run(x)
    for planner in ("fluid", "exact"):
        compiled = sm.compile(legal(build, SHAPE), target, Options(layout=planner, profiles=store))
        np.testing.assert_allclose(compiled.run(x)[0], plain, rtol=1e-5, atol=1e-6)
        (said,) = [entry for entry in read_log(compiled.graph) if "planner" in entry]
        assert said["planner"] == planner and said["seconds"] <= said["seconds_now"] and not said["unmeasured"]


def test_a_store_goes_on_where_it_was_left(target, store):
    mod = graph(target)
    first = measure_layouts(store, mod, executor(target), budget=0.0)
    assert first.measured == 0 and first.open > 0
    second = measure_layouts(store, mod, executor(target))
    assert second.measured == first.open and second.open == 0


def test_a_kernel_that_fails_does_not_end_the_work(target, store, monkeypatch, caplog):
    """The first job fails; what it was about is open to the planner, and all else is measured."""
    seconds, jobs = layout_times._seconds, []

    def fails_first(devices, job):
        jobs.append(job)
        if len(jobs) == 1:
            raise RuntimeError("no such instruction")
        return seconds(devices, job)

    monkeypatch.setattr(layout_times, "_seconds", fails_first)
    found = measure_layouts(store, graph(target), executor(target))
    assert found.failed > 0 and found.measured > 0 and "no such instruction" in caplog.text
    compiled = sm.compile(legal(build, SHAPE), target, Options(layout="fluid", profiles=store))
    assert "not all forms were measured" in caplog.text
    assert compiled.run(*random(SHAPE))[0].shape == (1, 10, 9, 24)


def test_a_loop_order_that_is_none_takes_what_the_kernel_takes(target):
    """A convolution that `Slide` schedules has no rows to swap with columns."""
    questions = layout_questions(graph(target), loop_orders)
    forms = max((q.forms for q in questions), key=len)
    kernels, places = layout_times._compiled(forms, target)
    assert None not in places and len(kernels.data) < len(forms)


@pytest.mark.device
def test_on_a_gpu():
    target = parse_target("opencl")
    store = open_store(None, target)
    found = measure_layouts(store, graph(target), executor(target))
    assert found.measured > 0 and found.failed == found.open == 0
    compiled = sm.compile(legal(build, SHAPE), target, Options(layout="fluid", profiles=store))
    (x,) = random(SHAPE)
    (plain,) = sm.compile(legal(build, SHAPE), tvm.target.Target("llvm")).run(x)
    np.testing.assert_allclose(compiled.run(x)[0], plain, rtol=1e-4, atol=1e-5)

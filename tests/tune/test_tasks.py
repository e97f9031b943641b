# SPDX-License-Identifier: Apache-2.0
"""Kernels of a model as tasks: equal ones once, constants known."""

from tvm import relax

from cache_updates import Update
from helpers import constant, module
from smartmem_tvm.deploy.build import optimize
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.pipeline import Options
from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.tasks import joined, tasks_of
from smartmem_tvm.tune.tunable_kernel import CONSTANTS

TARGET = parse_target("llvm")


def test_equal_kernels_are_one_task_and_launches_are_counted():
    first, second = constant(48, 48, seed=1), constant(48, 48, seed=2)

    def build(x, y):
        for weight in (first, second, first):
            x = relax.op.nn.relu(relax.op.matmul(x, weight))
        return relax.op.nn.relu(relax.op.matmul(x, y))

    with TARGET:
        graph = optimize(module(build, (24, 48), (48, 40)))
    tasks = tasks_of(graph, TARGET)
    launches = {CONSTANTS in task.mod["main"].attrs: task.launches for task in tasks}
    assert len(tasks) == 2 and launches == {True: 3, False: 1}
    assert [task.kernel.rule for task in tasks] == ["Matmul", "Matmul"]


def test_tasks_of_a_gpu_know_no_packed_constants():
    target = parse_target("opencl")
    with target:
        graph = optimize(module(lambda x: relax.op.matmul(x, constant(48, 40)), (24, 48)))
    (task,) = tasks_of(graph, target)
    assert task.kernel.rule == "GpuMatmul" and task.launches == 1


def test_a_kernel_that_two_models_have_is_one_task():
    weight, other = constant(48, 48, seed=1), constant(48, 40, seed=2)
    models = {
        "one": lambda x: relax.op.nn.relu(relax.op.matmul(x, weight)),
        "two": lambda x: relax.op.nn.relu(relax.op.matmul(relax.op.nn.relu(relax.op.matmul(x, weight)), other)),
    }
    with TARGET:
        tasks = {name: tasks_of(optimize(module(build, (24, 48))), TARGET) for name, build in models.items()}
    found = {each.names: dict(each.models) for each in joined(tasks)}
    (both,) = (names for names in found if len(names) == 2)
    (only,) = (names for names in found if len(names) == 1)
    assert found == {both: {"one": 1, "two": 1}, only: {"two": 1}}
    assert [name.partition("/")[0] for name in both] == ["one", "two"] and only[0].startswith("two/")
    assert dict(tasks["one"][0].models) == {"": 1}


def test_what_writes_rows_of_a_cache_is_no_task():
    """It has loops of its own, which write the rows only; the sum over the cache is a task as before."""
    mod, target = from_onnx(Update("where", (1, 2, 16, 4), 2, 1).model()), parse_target("cpu")
    names = {}
    for caches in (False, True):
        options = Options(caches=caches)
        with target:
            names[caches] = {
                each for task in tasks_of(optimize(mod, options=options), target, options) for each in task.names
            }
    assert not any("write_rows" in each for each in names[True])
    assert any("sum" in each for each in names[True])

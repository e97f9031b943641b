# SPDX-License-Identifier: Apache-2.0
"""Campaigns over small kernels, in which builds are empty and times are made up."""

import zlib
from dataclasses import dataclass

from tvm.s_tir import meta_schedule as ms

from smartmem_tvm.target import parse_target
from smartmem_tvm.tune.campaign import Campaign, TuningEffort
from smartmem_tvm.tune.kernel_search import Tools
from smartmem_tvm.tune.records import Records, circumstances
from smartmem_tvm.tune.strategy import seconds_of
from smartmem_tvm.tune.tasks import Task
from smartmem_tvm.tune.tunable_kernel import TunableKernel, with_constants, workload
from tunable_kernels import CASES

TARGET = parse_target("llvm")
EFFORT = TuningEffort(trials=12, worth=1e-9, batch=4, minutes=float("inf"))


def task(name, launches=1):
    func = with_constants(CASES[name].func(), CASES[name].constants)
    return Task((name,), workload(func), TunableKernel.of(func, TARGET), launches)


class Builder(ms.builder.PyBuilder):
    def __init__(self, folder, error=None):
        self.folder, self.error, self.count = folder, error, 0

    def build(self, inputs):
        found = []
        for _ in inputs:
            self.count += 1
            artifact = self.folder / f"built{self.count}" / str(self.count)
            artifact.parent.mkdir(parents=True)
            found.append(ms.builder.BuilderResult(None if self.error else str(artifact), self.error))
        return found


class Runner:
    def run(self, inputs):
        return [
            _Answer(zlib.crc32(each.artifact_path.rpartition("/")[2].encode()) % 1000 * 1e-6 + 1e-6) for each in inputs
        ]


class _Answer:
    def __init__(self, seconds):
        self._result = ms.runner.RunnerResult([seconds], None)

    def result(self):
        return self._result


@dataclass
class Verdict:
    seconds: float | None
    untuned: float | None
    wrong: str = ""


def right(mod, target, records):
    return [Verdict(seconds_of(each), 1e-3) for each in records]


def campaign(folder, names=("matmul",), judge=right, effort=EFFORT, error=None, untuned=None, run=None):
    records = Records(folder / "records.jsonl", circumstances(TARGET, 2), {"date": "", "command": ""})
    tools = Tools(Builder(folder / str(run or id(records)), error), Runner(), records)
    tasks = [task(name) for name in names]
    return Campaign(tasks, untuned or [1e-3] * len(tasks), TARGET, "genetic", tools, judge, effort)

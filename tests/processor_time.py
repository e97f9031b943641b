# SPDX-License-Identifier: Apache-2.0
"""`pytest --processor-time FILE`: the processor seconds of each test, and of collecting them, as JSON.

Processor time says more than the clock on a machine that does other work. Child processes count once they have ended
and were waited for.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest


def processor_seconds() -> float:
    """Return what this process and its ended children have used, in user and kernel mode."""
    return sum(os.times()[:4])


class ProcessorTime:
    """Measures each phase of each test where it runs; the process that prints the results writes the file.

    Parameters
    ----------
    config : pytest.Config
        Of this process, which may be a worker of pytest-xdist.
    """

    def __init__(self, config):
        self.config = config
        self.path = Path(config.getoption("--processor-time")).absolute()
        self.collection: list[float] = []
        self.tests: Counter = Counter()
        self.start = 0.0

    def pytest_collection_finish(self):
        """Count all since the process began: imports, and the parameters of tests."""
        if hasattr(self.config, "workerinput"):
            self.config.workeroutput["processor_seconds"] = processor_seconds()
        else:
            self.collection.append(processor_seconds())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """Take a worker's time of collection."""
        self.collection.append(getattr(node, "workeroutput", {}).get("processor_seconds", 0.0))

    def pytest_runtest_logstart(self):
        """Begin with a test."""
        self.start = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        """Give the report of each phase its share; reports carry it from the workers."""
        report = yield
        now = processor_seconds()
        report.processor_seconds, self.start = now - self.start, now
        return report

    def pytest_runtest_logreport(self, report):
        """Add up the phases of a test."""
        self.tests[report.nodeid] += getattr(report, "processor_seconds", 0.0)

    def pytest_sessionfinish(self):
        """Write the most expensive test first."""
        if hasattr(self.config, "workerinput"):
            return
        tests = {name: round(seconds, 3) for name, seconds in self.tests.most_common()}
        self.path.write_text(json.dumps({"collection": self.collection, "tests": tests}, indent=1) + "\n")
